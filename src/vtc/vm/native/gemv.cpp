// Products of a few rows, which stream the right operand as it lies: packing it would cost more than
// using it once.

#include <algorithm>

#include "gemm.h"

namespace vtc::VTC_ISA {
namespace {

// R rows of A times J columns of B, whose columns are contiguous.
template <int Type, int R, int J>
void dot_block(float* c, int64_t ldc, const float* a, int64_t lda, const char* b, int64_t step,
               int64_t k) {
  constexpr int size = Type == T_F32 ? 4 : 2;
  f32v sum[R][J] = {};
  int64_t p = 0;
  auto add = [&](auto&& row, auto&& column) {
    f32v x[R];
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) x[i] = row(i);
#pragma GCC unroll 8
    for (int j = 0; j < J; ++j) {
      f32v y = in_register(column(j));
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) sum[i][j] = fma(x[i], y, sum[i][j]);
    }
  };
  // At the end of its columns a block fetches the beginning of the next ones.
  [[maybe_unused]] int64_t turn = k - kAhead / size, next = J * step - k;
  for (; p + kLanes <= k; p += kLanes) {
    // One row computes so little between its loads that the processor itself looks far enough ahead.
    if constexpr (R > 1) {
      const char* ahead = b + (p < turn ? p : p + next) * size + kAhead;
#pragma GCC unroll 8
      for (int j = 0; j < J; ++j) __builtin_prefetch(ahead + j * step * size);
    }
    add([&](int i) { return load<f32v>(a + i * lda + p); },
        [&](int j) { return load_floats<Type>(b + (j * step + p) * size); });
  }
  if (p < k)
    add([&](int i) { return load_tail<f32v>(a + i * lda + p, k - p); },
        [&](int j) { return load_floats_tail<Type>(b + (j * step + p) * size, k - p); });
  constexpr int kSums = J > 4 ? 4 : J;
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < J; j += kSums) store_lane_sums<kSums>(c + i * ldc + j, sum[i] + j);
}

template <int Type, int R>
void dot_rows(float* c, int64_t ldc, const float* a, int64_t lda, const Strided& b, int64_t n,
              int64_t k) {
  constexpr int size = Type == T_F32 ? 4 : 2;
  constexpr int J = kLanes < 16 ? 2 : R == 1 ? 8 : R <= 4 ? 4 : 2;
  int64_t j = 0;
  for (; j + J <= n; j += J)
    dot_block<Type, R, J>(c + j, ldc, a, lda, b.base + j * b.column * size, b.column, k);
  for (; j < n; ++j)
    dot_block<Type, R, 1>(c + j, ldc, a, lda, b.base + j * b.column * size, b.column, k);
}

void dots(float* c, int64_t ldc, const float* a, int64_t lda, const Strided& b, int type, int64_t m,
          int64_t n, int64_t k) {
  with_type(type, [&](auto constant) {
    constexpr int kType = decltype(constant)::value;
    constexpr int64_t kMost = kLanes == 16 ? 8 : 4;
    for (int64_t i = 0; i < m; i += kMost)
      with_rows<kMost>(std::min(kMost, m - i), [&](auto count) {
        dot_rows<kType, decltype(count)::value>(c + i * ldc, ldc, a + i * lda, lda, b, n, k);
      });
  });
}

// R rows of A times up to V vectors of columns of B, whose rows are contiguous.
template <int Type, int R, int V>
void axpy_block(float* c, int64_t ldc, const float* a, int64_t lda, const char* b, int64_t step,
                int64_t n, int64_t k) {
  constexpr int size = Type == T_F32 ? 4 : 2;
  f32v sum[R][V] = {};
  auto row = [&](int64_t p, auto&& column) {
    f32v y[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) y[v] = column(v);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      f32v x = splat(a[i * lda + p]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sum[i][v] = fma(x, y[v], sum[i][v]);
    }
  };
  bool whole = n >= V * kLanes;
  for (int64_t p = 0; p < k; ++p, b += step * size) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) __builtin_prefetch(b + 8 * step * size + v * kLanes * size);
    if (whole) {
      row(p, [&](int v) { return load_floats<Type>(b + v * kLanes * size); });
    } else {
      row(p, [&](int v) {
        int64_t left = n - v * kLanes;
        if (left >= kLanes) return load_floats<Type>(b + v * kLanes * size);
        return left > 0 ? load_floats_tail<Type>(b + v * kLanes * size, left) : f32v{};
      });
    }
  }
  for (int i = 0; i < R; ++i)
    for (int v = 0; v < V; ++v) {
      int64_t left = n - v * kLanes;
      if (left >= kLanes)
        store(c + i * ldc + v * kLanes, sum[i][v]);
      else if (left > 0)
        store_tail(c + i * ldc + v * kLanes, sum[i][v], left);
    }
}

void axpy(float* c, int64_t ldc, const float* a, int64_t lda, const Strided& b, int type, int64_t m,
          int64_t n, int64_t k) {
  constexpr int V = kLanes == 16 ? 4 : 2;
  with_type(type, [&](auto constant) {
    constexpr int kType = decltype(constant)::value;
    constexpr int size = kType == T_F32 ? 4 : 2;
    for (int64_t j = 0; j < n; j += V * kLanes) {
      const char* column = b.base + j * size;
      int64_t left = n - j, i = 0;
      if constexpr (kLanes == 16)
        for (; i + 6 <= m; i += 6)
          axpy_block<kType, 6, V>(c + i * ldc + j, ldc, a + i * lda, lda, column, b.row, left, k);
      for (; i + 4 <= m; i += 4)
        axpy_block<kType, 4, V>(c + i * ldc + j, ldc, a + i * lda, lda, column, b.row, left, k);
      for (; i + 2 <= m; i += 2)
        axpy_block<kType, 2, V>(c + i * ldc + j, ldc, a + i * lda, lda, column, b.row, left, k);
      if (i < m)
        axpy_block<kType, 1, V>(c + i * ldc + j, ldc, a + i * lda, lda, column, b.row, left, k);
    }
  });
}

}  // namespace

void fill_gemv(Table& t) {
  t.gemm.dots = dots;
  t.gemm.axpy = axpy;
}

}  // namespace vtc::VTC_ISA
