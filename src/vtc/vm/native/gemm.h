// The register tile of matrix products: rows of a left operand times one panel of a right one.
//
// A panel is two vectors wide and holds [k][2 vectors], so that a step of k is two loads and one
// broadcast a row. The left operand is read where it lies: element (m, k) is at base + m * lda + k,
// or at base + m * lda + offsets[k] where it is in pieces (a concat, a shuffle, taps of a stencil).
#pragma once

#include "halves.h"
#include "lanes.h"

namespace vtc::VTC_ISA {

constexpr int kLanes = lanes<float>;
constexpr int kPanel = 2 * kLanes;
// Accumulators fill the register file but for two vectors of B and a broadcast.
#if defined(__AVX512F__)
constexpr int kRows = 14;
#elif defined(__AVX2__)
constexpr int kRows = 6;
#else
constexpr int kRows = 4;
#endif

constexpr int64_t kAhead = 1024;  // bytes that are prefetched ahead of a stream

// Keeps the compiler from reading a vector again for each use of it.
inline f32v in_register(f32v v) {
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#elif defined(__x86_64__)
  asm("" : "+x"(v));
#endif
  return v;
}

// c[j] = the sum of the lanes of v[j] for j < J; four at a time share their additions.
template <int J>
inline void store_lane_sums(float* c, const f32v* v) {
#if defined(__AVX512F__)
  if constexpr (J == 4) {
    auto pairs = [](f32v a, f32v b) {
      return _mm512_add_ps(_mm512_unpacklo_ps((__m512)a, (__m512)b),
                           _mm512_unpackhi_ps((__m512)a, (__m512)b));
    };
    __m512d low = _mm512_castps_pd(pairs(v[0], v[1])), high = _mm512_castps_pd(pairs(v[2], v[3]));
    // Every quarter now holds the four sums, each of a quarter of its lanes.
    __m512 all = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)),
                               _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all),
                                _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(all), 1)));
    _mm_storeu_ps(c, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
    return;
  }
#endif
  for (int j = 0; j < J; ++j) c[j] = fold_vector(v[j], [](auto a, auto b) { return a + b; });
}

// The sums of R rows and V vectors of columns (V 1: the panel has no more than one).
template <int R, int V>
struct Sums {
  f32v at[R][V];
};

// `b` is a panel of memory type `Type`.
template <int R, int V, int Type, bool kOffsets>
inline void sum_panel(Sums<R, V>& sums, const LeftRows& a, const char* b, int64_t k) {
  constexpr int step = kPanel * (Type == T_F32 ? 4 : 2), vector = step / 2;
  f32v sum[R][V];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) sum[i][v] = f32v{};
  // Four rows share a pointer: an address is a register and a multiple of another.
  constexpr int kGroups = (R + 3) / 4;
  const float* group[kGroups];
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) group[g] = a.base + 4 * g * a.lda;
  for (int64_t p = 0; p < k; ++p, b += step) {
    f32v y[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) y[v] = load_floats<Type>(b + v * vector);
    int64_t at = kOffsets ? a.offsets[p] : p;
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      f32v x = splat(group[i / 4][at + i % 4 * a.lda]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[i][v] = fma(x, y[v], sum[i][v]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) sums.at[i][v] = sum[i][v];
}

// Writes (or adds) sums to rows of n columns, ldc apart.
template <int R, int V>
inline void put_sums(const Sums<R, V>& sums, float* c, int64_t ldc, int64_t n, bool add) {
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
    float* row = c + i * ldc;
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      int64_t left = n - v * kLanes;
      f32v x = sums.at[i][v];
      if (left >= kLanes) {
        store(row + v * kLanes, add ? x + load<f32v>(row + v * kLanes) : x);
      } else if (left > 0) {
        if (add) x += load_tail<f32v>(row + v * kLanes, left);
        store_tail(row + v * kLanes, x, left);
      }
    }
  }
}

template <int R, int Type, bool kOffsets>
inline void multiply_rows(float* c, int64_t ldc, const LeftRows& a, const char* b, int64_t n,
                          int64_t k, bool add) {
  if (n > kLanes) {
    Sums<R, 2> sums;
    sum_panel<R, 2, Type, kOffsets>(sums, a, b, k);
    put_sums(sums, c, ldc, n, add);
  } else {
    Sums<R, 1> sums;
    sum_panel<R, 1, Type, kOffsets>(sums, a, b, k);
    put_sums(sums, c, ldc, n, add);
  }
}

// Calls f with `rows`, from 1 to kRows, as a constant.
template <int R = kRows, class F>
inline void with_rows(int64_t rows, F f) {
  if constexpr (R > 1) {
    if (rows != R) return with_rows<R - 1>(rows, f);
  }
  f(std::integral_constant<int, R>{});
}

// The rows of a step that divides m into even parts of at most kRows.
inline int64_t even_rows(int64_t m) {
  int64_t parts = (m + kRows - 1) / kRows;
  return (m + parts - 1) / std::max<int64_t>(parts, 1);
}

}  // namespace vtc::VTC_ISA
