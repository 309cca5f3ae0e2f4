// Loads and stores of tiles.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "state.h"

namespace vtc {
namespace {

// Where nothing is moved, a program's numbers may lead anywhere.
char* address_of(char* start, int64_t bytes) {
  return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(start) + bytes);
}

}  // namespace

Place locate(const State& s, AccessView access, int kind) {
  Place p;
  p.buffer = access.buffer();
  int dims = s.kernel.dims();
  int64_t at = access.offset();
  for (int d = 0; d < dims; ++d) at += s.coordinate[d] * access.stride(d);
  int item = kItemsize[s.run->program.type(p.buffer)];
  p.first = at;
  p.at = {address_of(s.run->pointers[p.buffer], at * item),
          kind & kRowBit && s.row != kNoDim ? access.stride(s.row) : 0,
          kind & kColumnBit && s.column != kNoDim ? access.stride(s.column) : 0};
  p.r0 = p.c0 = 0;
  p.r1 = s.rows(kind);
  p.c1 = s.columns(kind);
  for (int i = 0; i < access.masks(); ++i) {
    const Word* m = access.mask(i);
    int d = static_cast<int>(m[0]);
    if (d == dims) continue;  // of the contracted dimension: its reader's business
    int64_t low = static_cast<int64_t>(m[1]) - s.coordinate[d];
    int64_t high = static_cast<int64_t>(m[2]) - s.coordinate[d];
    if (d == s.row && kind & kRowBit) {
      p.r0 = std::max(p.r0, low);
      p.r1 = std::min(p.r1, high);
    } else if (d == s.column && kind & kColumnBit) {
      p.c0 = std::max(p.c0, low);
      p.c1 = std::min(p.c1, high);
    } else if (low > 0 || high <= 0) {
      p.r1 = 0;
    }
  }
  return p;
}

namespace {

// One element a register, repeated.
void fill(char* d, const char* s, int64_t n, int size) {
  switch (size) {
    case 1: std::memset(d, *s, n); break;
    case 4:
      std::fill_n(reinterpret_cast<uint32_t*>(d), n, *reinterpret_cast<const uint32_t*>(s));
      break;
    default: std::fill_n(reinterpret_cast<uint64_t*>(d), n, *reinterpret_cast<const uint64_t*>(s));
  }
}

constexpr int64_t kShortRow = 256;  // elements; longer ones are worth a call of memcpy each

// A tile between memory (strided, `copy` converts) and a register (dense rows of c elements).
struct Mover {
  Mover(const Table& t, bool to_memory, int memory, int type)
      : table(t),
        copy(to_memory ? t.write[memory] : t.read[memory]),
        storing(to_memory),
        memory_size(kItemsize[memory]),
        register_size(kItemsize[type]),
        verbatim(memory == type && kItemsize[type] == 4) {}

  const Table& table;
  Copy copy;
  bool storing;
  int64_t memory_size, register_size;
  bool verbatim;  // 4 bytes, not converted

  void run(const Strided& at, char* reg, int64_t c, int64_t i, int64_t j, int64_t rows,
           int64_t columns) const {
    char* m = at.base + (i * at.row + j * at.column) * memory_size;
    char* x = reg + (i * c + j) * register_size;
    if (columns == 1) return one(m, at.row, x, c, rows);
    // A transposed tile is read along its rows, where its memory is contiguous.
    if (rows > 1 && at.column != 1 && std::abs(at.row) < std::abs(at.column)) {
      if (at.row == 1 && verbatim) {
        if (storing)
          return table.turn(m, at.column, x, c, columns, rows);
        return table.turn(x, c, m, at.column, rows, columns);
      }
      for (int64_t k = 0; k < columns; ++k)
        one(m + k * at.column * memory_size, at.row, x + k * register_size, c, rows);
      return;
    }
    if (at.row == columns && at.column == 1 && c == columns) return one(m, 1, x, 1, rows * columns);
    if (verbatim && at.column == 1 && columns <= kShortRow) {
      if (storing) return table.copy_rows(m, at.row, x, c, rows, columns);
      return table.copy_rows(x, c, m, at.row, rows, columns);
    }
    for (int64_t k = 0; k < rows; ++k)
      one(m + k * at.row * memory_size, at.column, x + k * c * register_size, 1, columns);
  }

  void one(char* m, int64_t mstep, char* x, int64_t xstep, int64_t n) const {
    if (storing)
      copy(m, mstep, x, xstep, n);
    else
      copy(x, xstep, m, mstep, n);
  }
};

// The elements of a tile whose addresses have runtime terms.
void move_terms(State& s, AccessView access, const Place& p, const Mover& mover, char* reg,
                int64_t c) {
  int64_t extent = s.run->program.extent(p.buffer);
  char* start = s.run->pointers[p.buffer];
  int terms = access.terms();
  bool across = false;
  for (int t = 0; t < terms; ++t) across |= TermView{access.term(t)}.kind() & kColumnBit;
  for (int64_t i = p.r0; i < p.r1; ++i) {
    int64_t step = across ? 1 : p.c1 - p.c0;
    for (int64_t j = p.c0; j < p.c1; j += step) {
      int64_t address = p.first + i * p.at.row + j * p.at.column;
      int bad = -1;
      for (int t = 0; t < terms; ++t)
        if (!TermValue(s, TermView{access.term(t)}).add(address, i, j, c)) bad = t;
      int64_t last = address + (step - 1) * p.at.column;
      if (bad < 0 && (std::min(address, last) < 0 || std::max(address, last) >= extent))
        bad = terms - 1;
      if (bad >= 0) {
        s.fail(p.buffer, bad);
        continue;
      }
      mover.one(start + address * mover.memory_size, p.at.column,
                reg + (i * c + j) * mover.register_size, 1, step);
    }
  }
}

}  // namespace

bool stays_in_buffer(const State& s, const Word* w) {
  int type = type_of(w[0]), kind = kind_dst_of(w[0]);
  AccessView access{w + 2};
  if (!access.plain() || type != type2_of(w[0]) || type == T_BOOL || w[1] & 2) return false;
  return dense(locate(s, access, kind).at, s.rows(kind), s.columns(kind));
}

// What a load gives where it is masked off, in rows [first, last) of its register.
static void others(State& s, const Word* w, char* reg, int size, int64_t first, int64_t last) {
  Word head = w[0];
  int kind = kind_dst_of(head);
  int64_t c = s.columns(kind);
  if (!(w[1] & 1)) {
    std::memset(reg + first * c * size, 0, (last - first) * c * size);
    return;
  }
  int a = a_of(head), kind_a = kind_a_of(head);
  int64_t ra = s.rows(kind_a), ca = s.columns(kind_a);
  for (int64_t i = first; i < last; ++i) {
    const char* from = s.reg[a] + (ra == 1 ? 0 : i) * ca * size;
    char* to = reg + i * c * size;
    if (ca == c)
      std::memmove(to, from, c * size);
    else
      fill(to, from, c, size);
  }
}

void load(State& s, const Word* w) {
  Word head = w[0];
  int kind = kind_dst_of(head), dst = dst_of(head), type = type_of(head), memory = type2_of(head);
  AccessView access{w + 2};
  Place p = locate(s, access, kind);
  int64_t r = s.rows(kind), c = s.columns(kind);
  if (access.plain()) {
    if (type == memory && type != T_BOOL && !(w[1] & 2) && dense(p.at, r, c)) {
      s.reg[dst] = p.at.base;
      return;
    }
    s.reg[dst] = s.home[dst];
    Mover(*s.table, false, memory, type).run(p.at, s.reg[dst], c, 0, 0, r, c);
    return;
  }
  char* reg = s.reg[dst] = s.home[dst];
  int size = kItemsize[type];
  bool whole = p.r0 <= 0 && p.c0 <= 0 && p.r1 >= r && p.c1 >= c;
  if (!whole || access.terms()) {
    // Rows of which the load writes every element need no other value.
    int64_t c0 = std::max<int64_t>(p.c0, 0), c1 = std::min(p.c1, c);
    bool across = !access.terms() && c0 == 0 && c1 == c;
    int64_t from = across ? std::max<int64_t>(p.r0, 0) : r, to = across ? std::min(p.r1, r) : r;
    if (from >= to) from = to = r;
    others(s, w, reg, size, 0, from);
    others(s, w, reg, size, to, r);
  }
  if (p.empty()) return;
  Mover mover(*s.table, false, memory, type);
  if (access.terms())
    move_terms(s, access, p, mover, reg, c);
  else
    mover.run(p.at, reg, c, p.r0, p.c0, p.r1 - p.r0, p.c1 - p.c0);
}

void store(State& s, const Word* w) {
  Word head = w[0];
  int kind = kind_dst_of(head), a = a_of(head), memory = type2_of(head), type = type_of(head);
  AccessView access{w + 2};
  Place p = locate(s, access, kind);
  if (w[1] & 1) {
    bool there = s.reg[a] == p.at.base;
    char* value = s.reg[a];
    s.reg[a] = s.home[a];
    if (there && value != s.home[a]) return;
  }
  char* reg = s.reg[a];
  int64_t c = s.columns(kind);
  if (p.empty()) return;
  Mover mover(*s.table, true, memory, type);
  if (access.terms()) return move_terms(s, access, p, mover, reg, c);
  if (w[1] & 2 && type == memory && access.plain() && dense(p.at, s.rows(kind), c)) {
    s.table->stream(p.at.base, reg, s.count(kind) * kItemsize[type]);
    return;
  }
  mover.run(p.at, reg, c, p.r0, p.c0, p.r1 - p.r0, p.c1 - p.c0);
}

void bind(State& s, const Word* w) {
  int kind = kind_dst_of(w[0]), dst = dst_of(w[0]);
  AccessView access{w + 1};
  Place p = locate(s, access, kind);
  bool direct = access.plain() && s.run->program.type(p.buffer) == type_of(w[0]) &&
                dense(p.at, s.rows(kind), s.columns(kind));
  s.reg[dst] = direct ? p.at.base : s.home[dst];
}

std::pair<int64_t, int64_t> contracted_part(const State& s, AccessView access, int64_t k) {
  std::pair<int64_t, int64_t> part{0, k};
  for (int i = 0; i < access.masks(); ++i) {
    const Word* m = access.mask(i);
    if (static_cast<int>(m[0]) != s.kernel.dims()) continue;
    part.first = std::max(part.first, static_cast<int64_t>(m[1]));
    part.second = std::min(part.second, static_cast<int64_t>(m[2]));
  }
  return part;
}

void gather_lines(State& s, AccessView access, int type, int axis, int64_t n, int64_t k, char* out,
                  int64_t ld) {
  Place p = locate(s, access, axis);
  int dims = s.kernel.dims(), terms = access.terms();
  int64_t step = access.stride(dims), extent = s.run->program.extent(p.buffer);
  Copy copy = s.table->read[type];
  char* start = s.run->pointers[p.buffer];
  auto [k0, k1] = contracted_part(s, access, k);
  int size = kItemsize[kCompute[type]];
  bool down = axis == kRowBit;
  int64_t apart = down ? p.at.row : p.at.column, first = down ? p.r0 : p.c0;
  int64_t last_line = p.empty() ? 0 : down ? p.r1 : p.c1;
  for (int64_t i = 0; i < n; ++i, out += ld * size) {
    int64_t address = p.first + i * apart + k0 * step;
    bool skip = i < first || i >= last_line || k0 >= k1;
    for (int t = 0; t < terms && !skip; ++t)
      if (!TermValue(s, TermView{access.term(t)}).add(address, i, i, 1)) {
        s.fail(p.buffer, t);
        skip = true;
      }
    int64_t last = address + (k1 - k0 - 1) * step;
    if (!skip && terms && (std::min(address, last) < 0 || std::max(address, last) >= extent)) {
      s.fail(p.buffer, terms - 1);
      skip = true;
    }
    if (skip || k1 - k0 < k) std::memset(out, 0, k * size);
    if (!skip) copy(out + k0 * size, 1, start + address * kItemsize[type], step, k1 - k0);
  }
}

}  // namespace vtc
