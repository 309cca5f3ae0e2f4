// Products of bf16 operands by the instruction that multiplies pairs (AVX512-BF16), where the
// processor has it. Sums are f32; the panels of the right operand hold two rows of k side by side.

#include <algorithm>

#include "gemm.h"

#if defined(__AVX512F__) && defined(__x86_64__)
#pragma GCC target("avx512bf16,avx512bw,avx512vl")
#endif

namespace vtc::VTC_ISA {

#if defined(__AVX512F__) && defined(__x86_64__)

namespace {

inline __m512 dot(f32v sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}

// R rows of A times a panel [k / 2][32][2] of B.
template <int R, int V>
void pairs_panel(Sums<R, V>& sums, const uint16_t* a, int64_t lda, const char* b, int64_t k) {
  f32v sum[R][V];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) sum[i][v] = f32v{};
  constexpr int kGroups = (R + 3) / 4;
  const char* group[kGroups];
  int64_t step = lda * 2;
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) group[g] = reinterpret_cast<const char*>(a + 4 * g * lda);
  auto add = [&](auto&& left) __attribute__((always_inline)) {
    __m512i y[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) y[v] = _mm512_loadu_si512(b + v * 64);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      __m512i x = _mm512_set1_epi32(left(group[i / 4] + i % 4 * step));
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[i][v] = (f32v)dot(sum[i][v], x, y[v]);
    }
    b += 128;
  };
  int64_t p = 0;
  for (; p + 2 <= k; p += 2)
    add([&](const char* row) {
      int pair;
      std::memcpy(&pair, row + p * 2, 4);
      return pair;
    });
  if (p < k)
    add([&](const char* row) {
      uint16_t last;
      std::memcpy(&last, row + p * 2, 2);
      return static_cast<int>(last);
    });
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) sums.at[i][v] = sum[i][v];
}

constexpr int64_t kBlock = 1024;  // rows of k at a time

void multiply_pairs(float* c, int64_t ldc, const uint16_t* a, int64_t lda, const PanelRows& b,
                    int64_t m, int64_t n, int64_t k, bool add) {
  int64_t step = even_rows(m);
  for (int64_t p = 0; p == 0 || p < k; p += kBlock) {
    int64_t depth = std::min(kBlock, k - p);
    for (int64_t j = 0; j < n; j += kPanel)
      for (int64_t i = 0; i < m; i += step) {
        const char* panel = b.base + j / kPanel * b.apart + p * kPanel * 2;
        const uint16_t* rows = a + i * lda + p;
        float* out = c + i * ldc + j;
        int64_t columns = std::min<int64_t>(n - j, kPanel);
        with_rows(std::min(m - i, step), [&](auto count) {
          constexpr int R = decltype(count)::value;
          if (columns > kLanes) {
            Sums<R, 2> sums;
            pairs_panel<R, 2>(sums, rows, lda, panel, depth);
            put_sums(sums, out, ldc, columns, add || p > 0);
          } else {
            Sums<R, 1> sums;
            pairs_panel<R, 1>(sums, rows, lda, panel, depth);
            put_sums(sums, out, ldc, columns, add || p > 0);
          }
        });
      }
  }
}

template <int R, int J>
void dot_pairs(float* c, int64_t ldc, const uint16_t* a, int64_t lda, const uint16_t* b,
               int64_t step, int64_t k) {
  f32v sum[R][J] = {};
  auto add = [&](auto&& row) __attribute__((always_inline)) {
    __m512i x[R];
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) x[i] = row(a + i * lda);
#pragma GCC unroll 8
    for (int j = 0; j < J; ++j) {
      __m512i y = (__m512i)in_register((f32v)row(b + j * step));
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) sum[i][j] = (f32v)dot(sum[i][j], x[i], y);
    }
  };
  int64_t p = 0;
  for (; p + 32 <= k; p += 32) {
#pragma GCC unroll 8
    for (int j = 0; j < J; ++j) __builtin_prefetch(b + j * step + p + kAhead / 2);
    add([&](const uint16_t* at) { return _mm512_loadu_si512(at + p); });
  }
  if (p < k) {
    __mmask32 mask = (uint64_t{1} << (k - p)) - 1;
    add([&](const uint16_t* at) { return _mm512_maskz_loadu_epi16(mask, at + p); });
  }
  for (int i = 0; i < R; ++i) store_lane_sums<J>(c + i * ldc, sum[i]);
}

void dots_pairs(float* c, int64_t ldc, const uint16_t* a, int64_t lda, const Strided& b, int64_t m,
                int64_t n, int64_t k) {
  const uint16_t* bp = reinterpret_cast<const uint16_t*>(b.base);
  constexpr int64_t kMost = 8;
  for (int64_t i = 0; i < m; i += kMost)
    with_rows<kMost>(std::min(kMost, m - i), [&](auto count) {
      constexpr int R = decltype(count)::value, J = R > 4 ? 2 : 4;
      int64_t j = 0;
      for (; j + J <= n; j += J)
        dot_pairs<R, J>(c + i * ldc + j, ldc, a + i * lda, lda, bp + j * b.column, b.column, k);
      for (; j < n; ++j)
        dot_pairs<R, 1>(c + i * ldc + j, ldc, a + i * lda, lda, bp + j * b.column, b.column, k);
    });
}

}  // namespace

void fill_bf16(Table& t) {
  if (!__builtin_cpu_supports("avx512bf16")) return;
  t.gemm.multiply_pairs = multiply_pairs;
  t.gemm.dots_pairs = dots_pairs;
}

#else

void fill_bf16(Table&) {}

#endif

}  // namespace vtc::VTC_ISA
