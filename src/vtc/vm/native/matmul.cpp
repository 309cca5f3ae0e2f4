// Matrix products over a tile.

#include <algorithm>
#include <cstring>

#include "state.h"

namespace vtc {
namespace {

constexpr int64_t kFewRows = 8;  // up to here B is streamed as it lies

bool is_float_memory(int type) { return type == T_F32 || type == T_BF16 || type == T_F16; }

// Rows of a left operand that are copied, `lda` elements apart; tasks in a row that have the same
// rows copy them once. Gives null where the copy is there.
char* left_copy(State& s, const Place& p, bool plain, int64_t r, int64_t k, int64_t size,
                int64_t& lda) {
  constexpr int64_t kLine = 64;
  lda = (k * size + kLine) / kLine * kLine / size + kLine / size;
  if (lda * size % 4096 == 0) lda += kLine / size;
  char* rows = s.left.get((r * lda + 16) * size);
  if (plain && s.left_base == p.at.base && s.left_rows == r) return nullptr;
  s.left_base = plain ? p.at.base : nullptr;
  s.left_rows = r;
  return rows;
}

// May rows be read where they lie? Not if they share the sets of the L1 cache, being a multiple of
// 4096 bytes apart.
bool in_place(const State& s, AccessView access, const Place& p, int64_t r, int64_t k,
              int64_t size) {
  return access.plain() && (access.stride(s.kernel.dims()) == 1 || k == 1) &&
         (r == 1 || p.at.row * size % 4096 != 0);
}

// The left operand as rows of floats, `lda` apart: in place if it is that already.
const float* left_rows(State& s, AccessView access, int type, int64_t r, int64_t k, int64_t& lda) {
  Place p = locate(s, access, kRowBit);
  if (type == T_F32 && in_place(s, access, p, r, k, 4)) {
    lda = p.at.row;
    return reinterpret_cast<const float*>(p.at.base);
  }
  char* rows = left_copy(s, p, access.plain(), r, k, 4, lda);
  if (rows && type == T_F32 && access.plain() && p.at.row == 1)
    s.table->turn(rows, lda, p.at.base, access.stride(s.kernel.dims()), r, k);
  else if (rows)
    gather_lines(s, access, type, kRowBit, r, k, rows, lda);
  return reinterpret_cast<const float*>(s.left.get(0));
}

// The right operand [k, c] as dense columns, for accesses with terms or masks.
Strided right_columns(State& s, AccessView access, int type, int64_t k, int64_t c) {
  char* out = s.right.get((k * c + 16) * kItemsize[kCompute[type]]);
  gather_lines(s, access, type, kColumnBit, c, k, out, k);
  return {out, 1, k};
}

// The same as rows of bf16, where the operand is that.
const uint16_t* left_pairs(State& s, AccessView access, int64_t r, int64_t k, int64_t& lda) {
  Place p = locate(s, access, kRowBit);
  if (in_place(s, access, p, r, k, 2)) {
    lda = p.at.row;
    return reinterpret_cast<const uint16_t*>(p.at.base);
  }
  char* rows = left_copy(s, p, access.plain(), r, k, 2, lda);
  const uint16_t* found = reinterpret_cast<const uint16_t*>(s.left.get(0));
  if (!rows) return found;
  if (access.plain() && access.stride(s.kernel.dims()) == 1) {
    for (int64_t i = 0; i < r; ++i)
      std::memcpy(rows + i * lda * 2, p.at.base + i * p.at.row * 2, k * 2);
    return found;
  }
  // Gathered as floats; they are bf16 numbers, so that the upper half of each is all.
  float* wide = reinterpret_cast<float*>(s.spare.get((r * k + 16) * 4));
  gather_lines(s, access, T_BF16, kRowBit, r, k, reinterpret_cast<char*>(wide), k);
  for (int64_t i = 0; i < r; ++i)
    for (int64_t q = 0; q < k; ++q) {
      uint32_t bits;
      std::memcpy(&bits, wide + i * k + q, 4);
      uint16_t half = static_cast<uint16_t>(bits >> 16);
      std::memcpy(rows + (i * lda + q) * 2, &half, 2);
    }
  return found;
}

// The panels of a right operand, from the one on in which the tile starts.
PanelRows panels_at(const State& s, AccessView access, int type, int64_t width) {
  bool moves = s.column != kNoDim;
  int64_t column = moves ? s.coordinate[s.column] : 0, apart = moves ? access.stride(s.column) : 0;
  // `locate` moves by a panel for each column.
  const char* base = locate(s, access, 0).at.base;
  return {base + (column / width - column) * apart * kItemsize[type], apart * kItemsize[type],
          type};
}

// A right operand in panels: as it lies if they are those of this instruction set, and else copied.
PanelRows right_panels(State& s, AccessView access, int type, Word panels, int64_t k, int64_t c) {
  const Gemm& gemm = s.table->gemm;
  int64_t width = static_cast<int64_t>(panels & 0xffffffff);
  int64_t depth = static_cast<int64_t>(panels >> 32);
  PanelRows given = panels_at(s, access, type, width);
  if (width == gemm.panel && depth == 1) return given;
  int64_t count = (c + gemm.panel - 1) / gemm.panel, step = access.stride(s.kernel.dims());
  float* packed = reinterpret_cast<float*>(s.panels.get((count * gemm.panel * k + 16) * 4));
  s.packed_base = nullptr;
  for (int64_t j = 0; j < count * gemm.panel; ++j)
    for (int64_t q = 0; q < k; ++q) {
      float x = 0;
      int64_t at = q / depth * step + j % width * depth + q % depth;
      const char* from = given.base + j / width * given.apart + at * kItemsize[type];
      if (j < c) s.table->read[type](&x, 1, from, 1, 1);
      packed[(j / gemm.panel * k + q) * gemm.panel + j % gemm.panel] = x;
    }
  return {reinterpret_cast<const char*>(packed), gemm.panel * k * 4, T_F32};
}

// Products of f64: plain loops, rows of B innermost.
void matmul_f64(State& s, AccessView left, AccessView right, int64_t r, int64_t c, int64_t k,
                double* out) {
  int dims = s.kernel.dims();
  Strided a = locate(s, left, kRowBit).at, b = locate(s, right, kColumnBit).at;
  a.column = left.stride(dims);
  b.row = right.stride(dims);
  if (!left.plain()) {
    a = {s.left.get((r * k + 16) * 8), k, 1};
    gather_lines(s, left, T_F64, kRowBit, r, k, a.base, k);
  }
  if (!right.plain()) b = right_columns(s, right, T_F64, k, c);
  const double* ap = reinterpret_cast<const double*>(a.base);
  const double* bp = reinterpret_cast<const double*>(b.base);
  std::fill_n(out, r * c, 0.0);
  for (int64_t i = 0; i < r; ++i)
    for (int64_t p = 0; p < k; ++p) {
      double x = ap[i * a.row + p * a.column];
      const double* row = bp + p * b.row;
      for (int64_t j = 0; j < c; ++j) out[i * c + j] += x * row[j * b.column];
    }
}

// Products that may use the instruction for pairs of bf16: false if this is none.
bool matmul_pairs(State& s, AccessView left, AccessView right, Word panels, int64_t r, int64_t c,
                  int64_t k, float* d) {
  const Gemm& gemm = s.table->gemm;
  bool packed = panels == (static_cast<Word>(gemm.panel) | Word{2} << 32);
  if (!gemm.multiply_pairs || (panels && !packed)) return false;
  Strided b{};
  if (!packed) {
    if (r > kFewRows || !right.plain()) return false;
    b = locate(s, right, kColumnBit).at;
    b.row = right.stride(s.kernel.dims());
    if (b.row != 1 && k != 1) return false;
  }
  int64_t lda;
  const uint16_t* a = left_pairs(s, left, r, k, lda);
  if (packed)
    gemm.multiply_pairs(d, c, a, lda, panels_at(s, right, T_BF16, gemm.panel), r, c, k, false);
  else
    gemm.dots_pairs(d, c, a, lda, b, r, c, k);
  return true;
}

}  // namespace

void matmul(State& s, const Word* w) {
  int type = type2_of(w[0]), kind = kind_dst_of(w[0]), dims = s.kernel.dims();
  int64_t k = static_cast<int64_t>(w[1]), r = s.rows(kind), c = s.columns(kind);
  AccessView left{w + 3}, right{w + 3 + left.words()};
  char* out = s.reg[dst_of(w[0])];
  if (!is_float_memory(type))
    return matmul_f64(s, left, right, r, c, k, reinterpret_cast<double*>(out));
  const Gemm& gemm = s.table->gemm;
  float* d = reinterpret_cast<float*>(out);
  if (type == T_BF16 && matmul_pairs(s, left, right, w[2], r, c, k, d)) return;
  int64_t lda;
  const float* a = left_rows(s, left, type, r, k, lda);
  if (w[2]) {
    PanelRows b = right_panels(s, right, type, w[2], k, c);
    return gemm.multiply(d, c, {a, lda, nullptr}, b, r, c, k, false);
  }
  Strided b = locate(s, right, kColumnBit).at;
  b.row = right.stride(dims);
  int type_b = type;
  if (!right.plain()) {
    b = right_columns(s, right, type, k, c);
    type_b = T_F32;
  }
  if (r <= kFewRows && (b.row == 1 || k == 1)) return gemm.dots(d, c, a, lda, b, type_b, r, c, k);
  if (r <= kFewRows && (b.column == 1 || c == 1))
    return gemm.axpy(d, c, a, lda, b, type_b, r, c, k);
  int64_t panels = (c + gemm.panel - 1) / gemm.panel;
  float* packed = reinterpret_cast<float*>(s.panels.get((panels * gemm.panel * k + 16) * 4));
  if (!right.plain() || s.packed_base != b.base || s.packed_columns != c) {
    gemm.pack(packed, b, type_b, k, c);
    s.packed_base = right.plain() ? b.base : nullptr;
    s.packed_columns = c;
  }
  PanelRows panel{reinterpret_cast<const char*>(packed), gemm.panel * k * 4, T_F32};
  gemm.multiply(d, c, {a, lda, nullptr}, panel, r, c, k, false);
}

}  // namespace vtc
