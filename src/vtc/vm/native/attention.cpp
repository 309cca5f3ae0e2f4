// Attention over a tile of queries.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "state.h"

namespace vtc {
namespace {

constexpr int64_t kFewRows = 8;  // up to here keys and values are streamed as they lie

struct AttentionView {
  const Word* w;

  int64_t length() const { return static_cast<int64_t>(w[1]); }
  int64_t head_dim() const { return static_cast<int64_t>(w[2]); }
  double real(int i) const {
    double x;
    std::memcpy(&x, &w[i], 8);
    return x;
  }
  template <class T>
  T scale() const {
    return static_cast<T>(real(3));
  }
  bool has(int flag) const { return w[4] & flag; }
  template <class T>
  T softcap() const {
    return static_cast<T>(real(5));
  }
  int64_t shift() const { return static_cast<int64_t>(w[6]); }
  int64_t window() const { return static_cast<int64_t>(w[7]); }
  int position() const { return static_cast<int>(w[8]); }
  AccessView access(int i) const {
    AccessView found{w + 9};
    while (i--) found = AccessView{found.w + found.words()};
    return found;
  }
};

constexpr int kSoftcap = 1, kCausal = 2, kWindow = 4, kMask = 8;
constexpr int64_t kBlock = 128;  // key positions at a time

// Positions of keys that row i of the tile sees: [low, high).
struct Seen {
  int64_t low, high;
};

Seen seen_by(const State& s, const AttentionView& v, int64_t i) {
  Seen seen{0, v.length()};
  if (!v.has(kCausal)) return seen;
  int d = v.position();
  int64_t at = (d == kNoDim ? 0 : s.coordinate[d] + (d == s.row ? i : 0)) + v.shift();
  seen.high = std::clamp<int64_t>(at + 1, 0, v.length());
  if (v.has(kWindow)) seen.low = std::clamp<int64_t>(at - v.window() + 1, 0, v.length());
  return seen;
}

// Adds the mask to a block of scores of one row: -inf where a bool mask is false.
template <class T>
void add_mask(const State& s, AccessView mask, int type, int64_t i, int64_t t, int64_t n,
              T* scores) {
  Place p = locate(s, mask, kRowBit);
  int64_t step = mask.stride(s.kernel.dims());
  const char* base = p.at.base + (i * p.at.row + t * step) * kItemsize[type];
  if (type == T_BOOL) {
    for (int64_t j = 0; j < n; ++j)
      if (!base[j * step]) scores[j] = -INFINITY;
    return;
  }
  if (type == T_F64) {
    const double* held = reinterpret_cast<const double*>(base);
    for (int64_t j = 0; j < n; ++j) scores[j] += static_cast<T>(held[j * step]);
    return;
  }
  float held[kBlock];
  s.table->read[type](held, 1, base, step, n);
  for (int64_t j = 0; j < n; ++j) scores[j] += held[j];
}

// out[r, n] = a[r, k] * b.
void product(State&, double* out, const double* a, int64_t lda, const Strided& b, int, int64_t r,
             int64_t n, int64_t k) {
  const double* bp = reinterpret_cast<const double*>(b.base);
  for (int64_t i = 0; i < r; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < k; ++p) sum += a[i * lda + p] * bp[p * b.row + j * b.column];
      out[i * n + j] = sum;
    }
}

void product(State& s, float* out, const float* a, int64_t lda, const Strided& b, int type,
             int64_t r, int64_t n, int64_t k) {
  const Gemm& gemm = s.table->gemm;
  if (r <= kFewRows && b.row == 1) return gemm.dots(out, n, a, lda, b, type, r, n, k);
  if (r <= kFewRows && b.column == 1) return gemm.axpy(out, n, a, lda, b, type, r, n, k);
  int64_t panels = (n + gemm.panel - 1) / gemm.panel;
  float* packed = reinterpret_cast<float*>(s.panels.get((panels * gemm.panel * k + 16) * 4));
  s.packed_base = nullptr;
  gemm.pack(packed, b, type, k, n);
  PanelRows panel{reinterpret_cast<const char*>(packed), gemm.panel * k * 4, T_F32};
  gemm.multiply(out, n, {a, lda, nullptr}, panel, r, n, k, false);
}

// Scores and their softmax are kept for a block of keys only; earlier sums are rescaled where a
// later block has a larger score (online softmax, Milakov and Gimelshein, arXiv:1805.02867).
template <class T>
void attend(State& s, const Word* w) {
  constexpr int kType = sizeof(T) == 8 ? T_F64 : T_F32;
  const T kNone = -std::numeric_limits<T>::infinity();
  AttentionView v{w};
  const Table& table = *s.table;
  const ProgramView& program = s.run->program;
  int dims = s.kernel.dims(), kind = kind_dst_of(w[0]);
  int64_t r = s.rows(kind), c = s.columns(kind), depth = v.head_dim();
  T* out = reinterpret_cast<T*>(s.reg[dst_of(w[0])]);
  AccessView query = v.access(0), key = v.access(1), value = v.access(2), mask = v.access(3);
  int type_q = program.type(query.buffer()), type_k = program.type(key.buffer());
  int type_v = program.type(value.buffer());
  T* q = reinterpret_cast<T*>(
      s.attention.get((r * depth + r * kBlock + r * c + 2 * r + 64) * sizeof(T)));
  T* scores = q + r * depth;
  T* partial = scores + r * kBlock;
  T* top = partial + r * c;
  T* sum = top + r;
  Strided kb = locate(s, key, 0).at, vb = locate(s, value, 0).at, qb = locate(s, query, kRowBit).at;
  int64_t along = s.column == kNoDim ? 1 : key.stride(s.column);
  int64_t key_step = key.stride(dims), value_step = value.stride(dims);
  int64_t query_along = s.column == kNoDim ? 1 : query.stride(s.column);
  for (int64_t i = 0; i < r; ++i) {
    table.read[type_q](q + i * depth, 1, qb.base + i * qb.row * kItemsize[type_q], query_along,
                       depth);
    for (int64_t d = 0; d < depth; ++d) q[i * depth + d] *= v.scale<T>();
  }
  std::fill_n(out, r * c, T(0));
  std::fill_n(top, r, kNone);
  std::fill_n(sum, r, T(0));
  Seen all{v.length(), 0};
  for (int64_t i = 0; i < r; ++i) {
    Seen seen = seen_by(s, v, i);
    all = {std::min(all.low, seen.low), std::max(all.high, seen.high)};
  }
  for (int64_t t = all.low; t < all.high; t += kBlock) {
    int64_t n = std::min(kBlock, all.high - t);
    Strided keys{kb.base + t * key_step * kItemsize[type_k], along, key_step};
    Strided values{vb.base + t * value_step * kItemsize[type_v], value_step,
                   s.column == kNoDim ? 1 : value.stride(s.column)};
    product(s, scores, q, depth, keys, type_k, r, n, depth);
    for (int64_t i = 0; i < r; ++i) {
      T* row = scores + i * n;
      if (v.has(kSoftcap)) {
        T cap = v.softcap<T>(), inverse = 1 / cap;
        table.map[OP_MUL][kType](row, row, &inverse, nullptr, n, 2);
        table.map[OP_TANH][kType](row, row, nullptr, nullptr, n, 0);
        table.map[OP_MUL][kType](row, row, &cap, nullptr, n, 2);
      }
      if (v.has(kMask)) add_mask(s, mask, program.type(mask.buffer()), i, t, n, row);
      Seen seen = seen_by(s, v, i);
      for (int64_t j = 0; j < n && t + j < seen.low; ++j) row[j] = kNone;
      for (int64_t j = std::max<int64_t>(0, seen.high - t); j < n; ++j) row[j] = kNone;
      T now = top[i];
      table.fold[FOLD_MAX][kType][kWhole](&now, row, 1, n);
      // A row that has seen no key yet stays at sum 0.
      T from = now == kNone ? T(0) : now;
      table.map[OP_SUB][kType](row, row, &from, nullptr, n, 2);
      table.map[OP_EXP][kType](row, row, nullptr, nullptr, n, 0);
      double block = 0;
      table.fold[FOLD_SUM][kType][kWhole](&block, row, 1, n);
      T factor = std::exp(top[i] - from);
      sum[i] = sum[i] * factor + static_cast<T>(block);
      top[i] = now;
      if (factor != 1)
        table.map[OP_MUL][kType](out + i * c, out + i * c, &factor, nullptr, c, 2);
    }
    product(s, partial, scores, n, values, type_v, r, c, n);
    table.map[OP_ADD][kType](out, out, partial, nullptr, r * c, 0);
  }
  for (int64_t i = 0; i < r; ++i) {
    T inverse = sum[i] == 0 ? T(0) : 1 / sum[i];
    table.map[OP_MUL][kType](out + i * c, out + i * c, &inverse, nullptr, c, 2);
  }
}

}  // namespace

void attention(State& s, const Word* w) {
  if (type_of(w[0]) == T_F64)
    attend<double>(s, w);
  else
    attend<float>(s, w);
}

}  // namespace vtc
