// The code of a kernel: every instruction's length, registers and addresses.
//
// A register has one kind and one element size throughout a kernel. One that a load or a bind may
// point to a buffer is written by nothing else, and in every loop (tasks are one) is written before
// it is read, so that what it points to is as large as what is read.

#include <algorithm>
#include <tuple>

#include "table.h"
#include "validate.h"

namespace vtc {
namespace {

using Wide = __int128;

constexpr int kMostDigits = 24, kMostWindows = 6;
constexpr int64_t kMostTaps = 1 << 16;
// Numbers up to it and coordinates, or the address of an element, have a sum that does not wrap.
constexpr int64_t kFar = int64_t{1} << 62;

bool within(int64_t x, int64_t most) { return x >= -most && x <= most; }

struct Use {
  int64_t at;
  int64_t rows, columns;  // of the tile there, at most
  bool write;
};

struct Register {
  int kind = -1, size = 0;
  bool points = false;  // into a buffer, perhaps
  bool plain_write = false;
  std::vector<Use> uses;
};

struct Loop {
  int dim;
  int64_t start, step;
  int64_t end = 0;
};

class Checker {
 public:
  Checker(const ProgramView& program, const KernelView& kernel)
      : p_(program), k_(kernel), table_(table()), registers_(kernel.registers()) {
    for (int d = 0; d < k_.dims(); ++d) tasks_ *= k_.tasks(d);
  }

  void run() {
    code(k_.prologue() - k_.w, k_.body() - k_.w);
    require(active_.empty(), "a loop without an end");
    int64_t body = k_.body() - k_.w;
    code(body, k_.words());
    require(active_.empty(), "a loop without an end");
    loops_.push_back({-1, body - 1, 0, k_.words()});
    for (const Register& r : registers_) check_pointing(r);
  }

 private:
  const Word* at() const { return k_.w + at_; }

  int64_t extent(int dim) const {
    if (dim == kNoDim) return 1;
    int64_t whole = std::min(k_.span(dim), k_.size(dim));
    for (const Loop& l : active_)
      if (l.dim == dim) return std::min(l.step, whole);
    return whole;
  }
  int64_t rows() const { return extent(k_.row()); }
  int64_t columns() const { return extent(k_.column()); }

  // Is the code at hand in a loop that never turns?
  bool dead() const {
    return std::any_of(active_.begin(), active_.end(),
                       [&](const Loop& l) { return k_.size(l.dim) == 0; });
  }

  Register& reg(int number, int kind, int size, bool write) {
    require(number < static_cast<int>(registers_.size()), "number of a register");
    Register& r = registers_[number];
    if (r.kind < 0) r.kind = kind, r.size = size;
    require(r.kind == kind && r.size == size, "a register of two shapes");
    int64_t n = (kind & kRowBit ? rows() : 1) * (kind & kColumnBit ? columns() : 1);
    require(rows() <= kMostElements / std::max<int64_t>(columns(), 1), "size of a tile");
    int64_t bytes = static_cast<int64_t>(k_.reg(number) >> 32);
    require(n <= bytes / size, "a tile larger than its register");
    require(write || !r.uses.empty(), "a register is read before it is written");
    r.uses.push_back({at_, kind & kRowBit ? rows() : 1, kind & kColumnBit ? columns() : 1, write});
    return r;
  }
  void read(int number, int kind, int size) { reg(number, kind, size, false); }
  void write(int number, int kind, int size) {
    Register& r = reg(number, kind, size, true);
    if (number != bound_) r.plain_write = true;
  }

  void check_pointing(const Register& r) const {
    if (!r.points) return;
    require(!r.plain_write, "an instruction writes where a register points");
    for (size_t u = 0; u < r.uses.size(); ++u) {
      if (r.uses[u].write) continue;
      size_t w = u;
      while (!r.uses[w].write) --w;
      require(r.uses[u].rows <= r.uses[w].rows && r.uses[u].columns <= r.uses[w].columns,
              "a register is read where tiles are larger");
      for (const Loop& l : loops_) {
        if (!(l.start < r.uses[u].at && r.uses[u].at < l.end) || r.uses[w].at > l.start) continue;
        for (const Use& other : r.uses)
          require(!(other.write && other.at > r.uses[u].at && other.at < l.end),
                  "a register is read before its loop writes it");
      }
    }
  }

  void code(int64_t first, int64_t end) {
    for (at_ = first;;) {
      require(at_ < end, "code without DONE");
      int op = op_of(*at());
      require(length_of(*at()) > 0 || at_ + 1 < end, "code without DONE");
      int64_t length = words_of(at());
      require(length >= 1 && at_ + length <= end, "length of an instruction");
      if (op == OP_DONE) {
        require(length == 1 && at_ + 1 == end, "words behind DONE");
        return;
      }
      int64_t used = instruction(op, length);
      require(used == length, "words of an instruction");
      if (op != OP_BIND) bound_ = -1;
      at_ += length;
    }
  }

  int64_t instruction(int op, int64_t length);
  int64_t loop(int64_t length);
  int64_t endloop(int64_t length);
  int64_t move(int op, int64_t length);
  int64_t scalar(int op);
  int64_t fold(int op, int64_t length);
  int64_t spilled(int op, int64_t length, Word which);
  int64_t matmul(int64_t length);
  void panels(AccessView a, int kind, int64_t k) const;
  int64_t attention(int64_t length);
  int64_t convolution(int64_t length);

  // The words of the access at `offset` words from the head of the instruction.
  int64_t access(int64_t offset, int64_t length, int strides, bool terms_allowed = true) {
    require(offset + 2 <= length, "an access is cut short");
    AccessView a{at() + offset};
    require(a.strides() == strides && offset + a.words() <= length, "length of an access");
    require(a.buffer() < p_.buffers(), "buffer of an access");
    require(terms_allowed || a.plain(), "terms or masks where there may be none");
    for (int t = 0; t < a.terms(); ++t) {
      TermView term{a.term(t)};
      require(term.type() == T_I32 || term.type() == T_I64, "type of a term");
      require(term.kind() <= 3, "kind of a term");
      read(term.reg(), term.kind(), kItemsize[term.type()]);
    }
    for (int m = 0; m < a.masks(); ++m) {
      const Word* mask = a.mask(m);
      require(mask[0] < static_cast<Word>(strides), "dimension of a mask");
      for (int bound : {1, 2})
        require(within(static_cast<int64_t>(mask[bound]), kFar), "bounds of a mask");
    }
    return a.words();
  }

  // Every address of an access is inside its buffer. Dimension d takes the coordinates [0, n[d]).
  // `more` elements behind each are there too. Where terms are added, the addresses of the first and
  // the last element of a run are checked as it is copied: none between them may wrap.
  void inside(AccessView a, const int64_t* n, int count, int64_t more = 0) const {
    if (dead()) return;
    if (a.terms() > 0) {
      for (int d = 0; d < count; ++d) {
        Wide run = Wide{a.stride(d)} * n[d];
        require(run >= -kFar && run <= kFar, "a stride that addresses wrap at");
      }
      return;
    }
    Wide low = a.offset(), high = Wide{a.offset()} + more;
    for (int d = 0; d < count; ++d) {
      int64_t first = 0, last = n[d] - 1;
      for (int m = 0; m < a.masks(); ++m) {
        if (static_cast<int>(a.mask(m)[0]) != d) continue;
        first = std::max(first, static_cast<int64_t>(a.mask(m)[1]));
        last = std::min(last, static_cast<int64_t>(a.mask(m)[2]) - 1);
      }
      if (first > last) return;
      Wide one = Wide{a.stride(d)} * first, other = Wide{a.stride(d)} * last;
      low += std::min(one, other);
      high += std::max(one, other);
    }
    require(low >= 0 && high < p_.extent(a.buffer()), "an address outside of its buffer");
  }

  // Coordinates of the kernel's dimensions. A dimension of no size is still at 0 where tiles do not
  // extend along it.
  void coordinates(int64_t* n, int kind) const {
    for (int d = 0; d < k_.dims(); ++d) {
      bool tiled = (d == k_.row() && kind & kRowBit) || (d == k_.column() && kind & kColumnBit);
      n[d] = std::max<int64_t>(k_.size(d), tiled ? 0 : 1);
    }
  }

  void left_inside(ConvolutionView c, PartView p) const;

  const ProgramView& p_;
  const KernelView& k_;
  const Table& table_;
  std::vector<Register> registers_;
  std::vector<Loop> active_, loops_;
  int64_t at_ = 0, tasks_ = 1;
  int bound_ = -1;  // the register that the instruction before binds
};

int64_t Checker::loop(int64_t length) {
  require(length == 3, "length of a loop");
  int d = dst_of(*at());
  int64_t step = static_cast<int64_t>(at()[1]);
  require(d < k_.dims() && step >= 1 && step <= kMostElements, "dimension or step of a loop");
  for (const Loop& l : active_) require(l.dim != d, "two loops over a dimension");
  active_.push_back({d, at_, step});
  return 3;
}

int64_t Checker::endloop(int64_t length) {
  require(length == 2 && !active_.empty(), "the end of no loop");
  Loop l = active_.back();
  active_.pop_back();
  require(static_cast<int64_t>(at()[1]) == at_ - l.start, "where a loop ends");
  require(static_cast<int64_t>(k_.w[l.start + 2]) == at_ + 2 - l.start, "where a loop goes on");
  l.end = at_;
  loops_.push_back(l);
  return 2;
}

int64_t Checker::instruction(int op, int64_t length) {
  if (op == OP_LOOP) return loop(length);
  if (op == OP_ENDLOOP) return endloop(length);
  if (op >= OP_CONST && op <= OP_CAST) return move(op, length);
  if (op >= OP_REDUCE && op <= OP_MERGE) return fold(op, length);
  if (op == OP_MATMUL) return matmul(length);
  if (op == OP_ATTENTION) return attention(length);
  if (op == OP_CONVOLUTION) return convolution(length);
  require(op >= kFirstScalar && op < kOps, "no instruction");
  return scalar(op);
}

int64_t Checker::move(int op, int64_t length) {
  Word w = *at();
  int type = type_of(w), type2 = type2_of(w), kind = kind_dst_of(w), kind_a = kind_a_of(w);
  require(type < kTypes && is_compute(type), "type of an instruction");
  int size = kItemsize[type];
  int64_t n[kMaxDims + 1] = {};
  switch (op) {
    case OP_CONST: write(dst_of(w), kind, size); return 2;
    case OP_PARAM:
      require(length == 2 && at()[1] < static_cast<Word>(p_.params()), "number of a param");
      write(dst_of(w), kind, size);
      return 2;
    case OP_IOTA:
      require(length == 2 && at()[1] < static_cast<Word>(k_.dims()) && type == T_I64, "an iota");
      write(dst_of(w), kind, 8);
      return 2;
    case OP_MOVE:
      require((kind | kind_a) == kind, "kinds of a move");
      read(a_of(w), kind_a, size);
      write(dst_of(w), kind, size);
      return 1;
    case OP_CAST:
      require(type2 < kTypes && table_.cast[type][type2], "types of a cast");
      read(a_of(w), kind, size);
      write(dst_of(w), kind, kItemsize[kCompute[type2]]);
      return 1;
    default: break;
  }
  int64_t offset = op == OP_BIND ? 1 : 2;
  int64_t words = offset + access(offset, length, k_.dims());
  AccessView a{at() + offset};
  int memory = p_.type(a.buffer());
  require(op == OP_BIND || (type2 == memory && kCompute[memory] == type), "types of an access");
  coordinates(n, kind);
  inside(a, n, k_.dims());
  if (op == OP_STORE) {
    require(kind_a == kind, "kinds of a store");
    read(a_of(w), kind, size);
    return words;
  }
  if (op == OP_LOAD && at()[1] & 1) {
    require((kind | kind_a) == kind, "kinds of a load");
    read(a_of(w), kind_a, size);
  }
  Register& r = reg(dst_of(w), kind, size, true);
  if (op == OP_BIND) {
    r.points = true;
    bound_ = dst_of(w);
    // The value is written by the next instruction.
  } else {
    bool copies = at()[1] & 2 || memory != type || type == T_BOOL || !a.plain();
    r.points |= !copies;
  }
  return words;
}

int64_t Checker::scalar(int op) {
  Word w = *at();
  int type = type_of(w), kind = kind_dst_of(w);
  require(type < kTypes && table_.map[op][type], "type of an operator");
  int size = kItemsize[type];
  bool compares = (op >= OP_EQ && op <= OP_GE) || op == OP_ISNAN || op == OP_ISINF;
  bool binary = op <= OP_ATAN2 || (op >= OP_EQ && op <= OP_XOR) || op == OP_SHL || op == OP_SHR;
  int arity = op == OP_SELECT || op == OP_FMA ? 3 : binary ? 2 : 1;
  int regs[3] = {a_of(w), b_of(w), c_of(w)};
  int kinds[3] = {kind_a_of(w), kind_b_of(w), kind_c_of(w)};
  for (int i = 0; i < 3; ++i) {
    if (i >= arity) {
      require(regs[i] == 0 && kinds[i] == 0, "an operand that is none");
      continue;
    }
    require((kinds[i] | kind) == kind, "kinds of an operator");
    read(regs[i], kinds[i], op == OP_SELECT && i == 0 ? 1 : size);
  }
  write(dst_of(w), kind, compares ? 1 : size);
  return 1;
}

int64_t Checker::fold(int op, int64_t length) {
  Word w = *at();
  require(length >= 2, "a reduction is cut short");
  Word which = at()[1];
  int type = type_of(w), type2 = type2_of(w), kind = kind_dst_of(w), kind_a = kind_a_of(w);
  require(which < kFolds && type < kTypes && is_compute(type), "a reduction");
  bool places = has_places(static_cast<int64_t>(which));
  require(places ? table_.arg[0][type][0] != nullptr : table_.fold[which][type][0] != nullptr,
          "type of a reduction");
  require(op == OP_REDUCE || type2 == accumulator_type(static_cast<int>(which), type),
          "type of an accumulator");
  int size = kItemsize[type], held = kItemsize[type2 < kTypes ? type2 : 0];
  int64_t words = 2;
  switch (op) {
    case OP_REDUCE:
    case OP_ACCUM:
      require((kind_a | kind) == kind_a, "kinds of a reduction");
      words += places ? k_.dims() : 0;
      require(length == words, "length of a reduction");
      read(a_of(w), kind_a, size);
      if (op == OP_REDUCE) {
        write(dst_of(w), kind, places ? 8 : size);
      } else {
        read(dst_of(w), kind, held);
        write(dst_of(w), kind, held);
        if (places) write(b_of(w), kind, 8);
      }
      return words;
    case OP_INIT:
      write(dst_of(w), kind, held);
      if (places) write(b_of(w), kind, 8);
      return words;
    case OP_FINISH:
      read(a_of(w), kind, held);
      if (places) read(b_of(w), kind, 8);
      write(dst_of(w), kind, places ? 8 : size);
      return words;
    case OP_SCAN: {
      require(length == 3 && at()[2] < static_cast<Word>(k_.dims()) && table_.scan[which][type],
              "a scan");
      int d = static_cast<int>(at()[2]);
      int axis = d == k_.column() ? kColumnBit : d == k_.row() ? kRowBit : 0;
      require(kind_a == kind && (kind & axis) == axis && kind_b_of(w) == (kind & ~axis),
              "kinds of a scan");
      read(a_of(w), kind, size);
      read(b_of(w), kind & ~axis, held);
      write(b_of(w), kind & ~axis, held);
      write(dst_of(w), kind, size);
      return 3;
    }
    default: return spilled(op, length, which);
  }
}

int64_t Checker::spilled(int op, int64_t length, Word which) {
  Word w = *at();
  int type2 = type2_of(w), kind = op == OP_SPILL ? kind_a_of(w) : kind_dst_of(w);
  int64_t words = op == OP_SPILL ? 4 : 6;
  require(length == words, "length of a spill");
  int64_t offset = static_cast<int64_t>(at()[2]), bytes = static_cast<int64_t>(at()[3]);
  int64_t n = (kind & kRowBit ? rows() : 1) * (kind & kColumnBit ? columns() : 1);
  require(n <= kMostElements, "size of a tile");
  bool places = has_places(static_cast<int64_t>(which));
  int64_t need = (n * kItemsize[type2] + 7) / 8 * 8 + (places ? n * 8 : 0);
  require(offset >= 0 && offset % 8 == 0 && bytes % 8 == 0 && bytes >= need, "room of a spill");
  Wide slots = tasks_;
  if (op == OP_MERGE) {
    int64_t tasks = static_cast<int64_t>(at()[4]), group = static_cast<int64_t>(at()[5]);
    require(tasks >= 1 && group >= 1 && tasks <= kMostElements, "tasks of a merge");
    slots = (Wide{tasks_ - 1} / group + 1) * tasks;
  }
  require(Wide{offset} + slots * bytes <= p_.arena_bytes(), "a spill outside of the arena");
  if (op == OP_SPILL) {
    read(a_of(w), kind, kItemsize[type2]);
    if (places) read(b_of(w), kind, 8);
  } else {
    write(dst_of(w), kind, kItemsize[type2]);
    if (places) write(b_of(w), kind, 8);
  }
  return words;
}

int64_t Checker::matmul(int64_t length) {
  Word w = *at();
  int type = type_of(w), memory = type2_of(w), kind = kind_dst_of(w);
  require(length >= 3, "a product is cut short");
  int64_t k = static_cast<int64_t>(at()[1]);
  bool floats = memory == T_F32 || memory == T_BF16 || memory == T_F16;
  require((type == T_F32 && floats) || (type == T_F64 && memory == T_F64), "types of a product");
  require(k >= 0 && k <= int64_t{1} << 30, "contracted size");
  require(std::max(rows(), columns()) <= (int64_t{1} << 31) / std::max<int64_t>(k, 1),
          "size of a product's tile");
  int64_t n[kMaxDims + 1];
  int64_t words = 3;
  for (int side : {kRowBit, kColumnBit}) {
    int64_t offset = words;
    words += access(offset, length, k_.dims() + 1);
    AccessView a{at() + offset};
    require(p_.type(a.buffer()) == memory, "type of an operand");
    if (side == kColumnBit && at()[2]) {
      panels(a, kind, k);
      continue;
    }
    for (int t = 0; t < a.terms(); ++t)
      require((TermView{a.term(t)}.kind() | side) == side, "kind of an operand's term");
    coordinates(n, side & kind);
    n[k_.dims()] = k;
    inside(a, n, k_.dims() + 1);
  }
  write(dst_of(w), kind, kItemsize[type]);
  return words;
}

// A right operand in panels: tiles start where panels do, and every panel is there whole.
void Checker::panels(AccessView a, int kind, int64_t k) const {
  int64_t width = static_cast<int64_t>(at()[2] & 0xffffffff);
  int64_t depth = static_cast<int64_t>(at()[2] >> 32);
  require(width >= 1 && width <= 1024 && depth >= 1 && depth <= 16, "size of a panel");
  require(a.plain(), "panels with terms or masks");
  require(type2_of(*at()) != T_F64, "type of panels");
  require(a.stride(k_.dims()) == width * depth, "rows of a panel");
  int64_t n[kMaxDims + 1];
  coordinates(n, kColumnBit & kind);
  int column = k_.column();
  if (column != kNoDim) {
    require(kind & kColumnBit, "kind of a product in panels");
    require(k_.span(column) >= k_.size(column) || k_.span(column) % width == 0, "span of panels");
    for (const Loop& l : active_)
      require(l.dim != column || l.step % width == 0, "a loop that is not over whole panels");
    n[column] = (n[column] + width - 1) / width;
  }
  n[k_.dims()] = (k + depth - 1) / depth;
  inside(a, n, k_.dims() + 1);
  // The last element of a panel's row, where there is a row.
  for (int d = 0; d <= k_.dims(); ++d)
    if (n[d] == 0) return;
  inside(a, n, k_.dims() + 1, width * depth - 1);
}

int64_t Checker::attention(int64_t length) {
  Word w = *at();
  int kind = kind_dst_of(w);
  require(length >= 9, "an attention is cut short");
  require(type_of(w) == T_F32 || type_of(w) == T_F64, "type of an attention");
  int64_t keys = static_cast<int64_t>(at()[1]), depth = static_cast<int64_t>(at()[2]);
  require(keys >= 0 && keys <= kMostElements, "length of attention");
  require(depth >= 0 && depth <= 1 << 16, "head size of attention");
  require(rows() <= 1 << 16 && columns() <= 1 << 16, "size of attention's tile");
  int column = k_.column();
  require(column != kNoDim && k_.span(column) >= k_.size(column) && kind & kColumnBit,
          "columns of attention");
  for (const Loop& l : active_) require(l.dim != column, "a loop over the columns of attention");
  require(at()[8] == kNoDim || at()[8] < static_cast<Word>(k_.dims()), "position of attention");
  int64_t shift = static_cast<int64_t>(at()[6]), window = static_cast<int64_t>(at()[7]);
  require(within(shift, kMostElements) && within(window, kMostElements), "window");
  int64_t n[kMaxDims + 1];
  int64_t words = 9;
  int count = at()[4] & 8 ? 4 : 3;
  for (int operand = 0; operand < count; ++operand) {
    int64_t offset = words;
    words += access(offset, length, k_.dims() + 1, false);
    AccessView a{at() + offset};
    int memory = p_.type(a.buffer());
    bool fits = operand < 3 ? kCompute[memory] == type_of(w) : kCompute[memory] == T_F32;
    fits |= operand == 3 && (memory == T_BOOL || memory == T_F64);
    require(fits, "type of attention's operand");
    coordinates(n, kind);
    n[k_.dims()] = operand == 0 ? 1 : keys;
    // Query and key are contracted along the head; a mask does not move along the columns.
    if (operand < 2) n[column] = depth;
    if (operand == 3) n[column] = 1;
    inside(a, n, k_.dims() + 1);
  }
  write(dst_of(w), kind, kItemsize[type_of(w)]);
  return words;
}

// Digits divide the coordinate of a dimension completely, so that rows of a tile are runs along the
// innermost one.
int64_t Checker::convolution(int64_t length) {
  Word w = *at();
  int type = type_of(w), memory = type2_of(w), kind = kind_dst_of(w);
  require(length_of(w) == 0 && length >= ConvolutionView::kHead, "a convolution is cut short");
  ConvolutionView c{at()};
  bool floats = memory == T_F32 || memory == T_BF16 || memory == T_F16;
  require((type == T_F32 && floats) || (type == T_F64 && memory == T_F64), "types of a convolution");
  int digits = c.digits(), windows = c.windows(), parts = c.parts();
  require(digits <= kMostDigits && windows <= kMostWindows, "digits or windows of a convolution");
  int64_t words = ConvolutionView::kHead + 3 * digits + 5 * windows;
  require(words <= length, "a convolution is cut short");
  int64_t below[kMaxDims];
  std::fill_n(below, kMaxDims, 1);
  uint32_t seen = 0;
  for (int i = digits - 1; i >= 0; --i) {
    require(c.dim(i) < k_.dims() && c.size(i) >= 1 && c.size(i) <= kMostElements, "a digit");
    int64_t& inner = below[c.dim(i)];
    require(c.divisor(i) == inner && inner <= kMostElements / c.size(i), "divisor of a digit");
    inner *= c.size(i);
    int window = c.window_of(i);
    require(window < windows, "window of a digit");
    require(c.dim(i) != k_.column() || (window < 0 && c.divisor(i) == 1 &&
                                        c.size(i) >= k_.size(c.dim(i))), "columns of a convolution");
    if (window < 0) continue;
    require(!(seen >> window & 1), "a window of two digits");
    seen |= 1u << window;
  }
  for (int i = 0; i < digits; ++i)
    require(below[c.dim(i)] >= k_.size(c.dim(i)), "digits of a dimension");
  int64_t taps = 1;
  for (int i = 0; i < windows; ++i) {
    require(c.taps(i) >= 0 && c.taps(i) <= kMostTaps, "taps of a window");
    taps *= c.taps(i);
    require(taps <= kMostTaps, "taps of windows");
    for (int64_t x : {c.step(i), c.dilation(i), c.pad(i), c.extent(i)})
      require(x >= -(int64_t{1} << 31) && x <= int64_t{1} << 31, "a window");
  }
  int64_t depth = 0;
  for (int part = 0; part < parts; ++part) {
    int64_t offset = words + 4 + digits + windows;
    require(offset <= length, "a convolution is cut short");
    PartView p{at() + words, digits, windows};
    require(p.k() >= 0 && p.k() <= int64_t{1} << 24, "contracted size");
    depth += p.k();
    require(p.w[1] < static_cast<Word>(p_.buffers()) && p_.type(p.buffer()) == memory,
            "left operand of a convolution");
    words = offset + access(offset, length, k_.dims() + windows + 1, false);
    AccessView right = p.right();
    require(p_.type(right.buffer()) == memory, "type of an operand");
    require(k_.row() == kNoDim || right.stride(k_.row()) == 0, "rows of a right operand");
    require(c.width() == 0 || c.width() <= 1024, "size of a panel");
    int64_t n[kMaxDims + kMostWindows + 1];
    coordinates(n, kind);
    for (int i = 0; i < windows; ++i) n[k_.dims() + i] = c.taps(i);
    n[k_.dims() + windows] = p.k();
    int column = k_.column();
    if (c.width() && column != kNoDim) {
      // The stride of the column leads from panel to panel, which a tile starts with.
      require(k_.span(column) % c.width() == 0 || k_.span(column) >= k_.size(column),
              "columns of panels");
      for (const Loop& l : active_) require(l.dim != column, "a loop over columns in panels");
      n[column] = (std::max<int64_t>(n[column], 1) + c.width() - 1) / c.width();
    }
    inside(right, n, k_.dims() + windows + 1, std::max<int64_t>(c.width(), 1) - 1);
    left_inside(c, p);
  }
  require(depth * std::max<int64_t>(taps, 1) <= int64_t{1} << 26, "size of a convolution");
  require(std::max(rows(), columns()) <= (int64_t{1} << 31) / std::max<int64_t>(depth * taps, 1),
          "size of a convolution's tile");
  for (auto [there, number, own] : {std::tuple{c.scaled(), a_of(w), kind_a_of(w)},
                                    std::tuple{c.shifted(), b_of(w), kind_b_of(w)}}) {
    if (!there) continue;
    require(own == kColumnBit, "kinds of a convolution");
    read(number, own, kItemsize[type]);
  }
  require(kind == ((k_.row() == kNoDim ? 0 : kRowBit) | (k_.column() == kNoDim ? 0 : kColumnBit)),
          "kind of a convolution");
  write(dst_of(w), kind, kItemsize[type]);
  return words;
}

// Every address of a left operand that a window does not leave out is inside its buffer.
void Checker::left_inside(ConvolutionView c, PartView p) const {
  if (dead()) return;
  for (int d = 0; d < k_.dims(); ++d)
    if (k_.size(d) == 0) return;
  Wide low = p.offset(), high = p.offset();
  auto span = [&](int64_t stride, int64_t count) {
    Wide reach = Wide{stride} * (count - 1);
    low += std::min<Wide>(reach, 0);
    high += std::max<Wide>(reach, 0);
  };
  bool none = p.k() == 0;
  for (int i = 0; i < c.digits(); ++i) {
    if (c.window_of(i) >= 0) {
      require(p.digit_stride(i) == 0, "a stride of a window's digit");
    } else {
      // A digit of a dimension that tiles do not reach stays below its size.
      span(p.digit_stride(i), c.divisor(i) == 1 && c.size(i) > k_.size(c.dim(i))
                                  ? k_.size(c.dim(i)) : c.size(i));
    }
  }
  for (int i = 0; i < c.windows(); ++i) {
    none |= c.extent(i) <= 0 || c.taps(i) == 0;
    span(p.window_stride(i), std::max<int64_t>(c.extent(i), 1));
  }
  span(p.k_stride(), std::max<int64_t>(p.k(), 1));
  require(none || (low >= 0 && high < p_.extent(p.buffer())), "an address outside of its buffer");
}

}  // namespace

void validate_code(const ProgramView& program, const KernelView& kernel) {
  Checker(program, kernel).run();
}

}  // namespace vtc
