// Matrix products over a tile.

#include <algorithm>
#include <cstring>

#include "state.h"

namespace vtc {
namespace {

constexpr int64_t kFewRows = 8;  // up to here B is streamed as it lies

bool is_float_memory(int type) { return type == T_F32 || type == T_BF16 || type == T_F16; }

// The left operand as rows of floats, `lda` apart: in place if it is that already. Rows that lie a
// multiple of 4096 bytes apart would share the sets of the L1 cache, so they are copied.
const float* left_rows(State& s, AccessView access, int type, int64_t r, int64_t k, int64_t& lda) {
  Place p = locate(s, access, kRowBit);
  if (type == T_F32 && access.plain() && (access.stride(s.kernel.dims()) == 1 || k == 1) &&
      (r <= kFewRows || p.at.row % 1024 != 0)) {
    lda = p.at.row;
    return reinterpret_cast<const float*>(p.at.base);
  }
  lda = (k + 31) / 16 * 16;
  if (lda % 1024 == 0) lda += 16;
  char* rows = s.left.get((r * lda + 16) * 4);
  gather_lines(s, access, type, kRowBit, r, k, rows, lda);
  return reinterpret_cast<const float*>(rows);
}

// The right operand [k, c] as dense columns, for accesses with terms or masks.
Strided right_columns(State& s, AccessView access, int type, int64_t k, int64_t c) {
  char* out = s.right.get((k * c + 16) * kItemsize[kCompute[type]]);
  gather_lines(s, access, type, kColumnBit, c, k, out, k);
  return {out, 1, k};
}

// A right operand in panels: as it lies if they are those of this instruction set, and else copied.
PanelRows right_panels(State& s, AccessView access, int type, Word panels, int64_t k, int64_t c) {
  const Gemm& gemm = s.table->gemm;
  int64_t width = static_cast<int64_t>(panels & 0xffffffff);
  int64_t depth = static_cast<int64_t>(panels >> 32);
  int size = kItemsize[type];
  int64_t column = s.column == kNoDim ? 0 : s.coordinate[s.column];
  int64_t apart = s.column == kNoDim ? 0 : access.stride(s.column);
  Place p = locate(s, access, 0);
  // `locate` moves by a panel for each column.
  const char* base = p.at.base + (column / width - column) * apart * size;
  if (width == gemm.panel && depth == 1) return {base, apart * size, type};
  int64_t panels_here = (c + gemm.panel - 1) / gemm.panel;
  float* packed = reinterpret_cast<float*>(s.panels.get((panels_here * gemm.panel * k + 16) * 4));
  s.packed_base = nullptr;
  int64_t step = access.stride(s.kernel.dims());
  for (int64_t j = 0; j < panels_here * gemm.panel; ++j)
    for (int64_t q = 0; q < k; ++q) {
      float x = 0;
      int64_t at = j / width * apart + q / depth * step + j % width * depth + q % depth;
      if (j < c) s.table->read[type](&x, 1, base + at * size, 1, 1);
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

}  // namespace

void matmul(State& s, const Word* w) {
  int type = type2_of(w[0]), kind = kind_dst_of(w[0]), dims = s.kernel.dims();
  int64_t k = static_cast<int64_t>(w[1]), r = s.rows(kind), c = s.columns(kind);
  AccessView left{w + 3}, right{w + 3 + left.words()};
  char* out = s.reg[dst_of(w[0])];
  if (!is_float_memory(type))
    return matmul_f64(s, left, right, r, c, k, reinterpret_cast<double*>(out));
  const Gemm& gemm = s.table->gemm;
  int64_t lda;
  const float* a = left_rows(s, left, type, r, k, lda);
  float* d = reinterpret_cast<float*>(out);
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
