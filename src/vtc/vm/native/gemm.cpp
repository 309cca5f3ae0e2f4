// Matrix products of float tiles.
//
// Large products run a register tile of rows x 2 vectors over panels of B packed as [k][2 vectors];
// products of a few rows stream B as it lies, since packing it would cost more than using it once.

#include "halves.h"
#include "lanes.h"
#include "transpose.h"

namespace vtc::VTC_ISA {
namespace {

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

template <int R>
inline void micro(float* c, int64_t ldc, const float* a, int64_t lda, const float* b, int64_t n,
                  int64_t k, bool add) {
  f32v low[R], high[R];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) low[i] = high[i] = f32v{};
  for (int64_t p = 0; p < k; ++p) {
    f32v b0 = load<f32v>(b), b1 = load<f32v>(b + kLanes);
    b += kPanel;
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      f32v x = splat(a[i * lda + p]);
      low[i] = fma(x, b0, low[i]);
      high[i] = fma(x, b1, high[i]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
    float* row = c + i * ldc;
    if (n >= kPanel) {
      if (add) low[i] += load<f32v>(row), high[i] += load<f32v>(row + kLanes);
      store(row, low[i]);
      store(row + kLanes, high[i]);
      continue;
    }
    float held[kPanel];
    store(held, low[i]);
    store(held + kLanes, high[i]);
    for (int64_t j = 0; j < n; ++j) row[j] = add ? row[j] + held[j] : held[j];
  }
}

template <int R>
void micro_rows(int64_t rows, float* c, int64_t ldc, const float* a, int64_t lda, const float* b,
                int64_t n, int64_t k, bool add) {
  if constexpr (R > 0) {
    if (rows == R) return micro<R>(c, ldc, a, lda, b, n, k, add);
    micro_rows<R - 1>(rows, c, ldc, a, lda, b, n, k, add);
  }
}

void multiply(float* c, int64_t ldc, const float* a, int64_t lda, const float* packed, int64_t m,
              int64_t n, int64_t k, bool add) {
  for (int64_t j = 0; j < n; j += kPanel)
    for (int64_t i = 0; i < m; i += kRows) {
      int64_t rows = m - i < kRows ? m - i : kRows, columns = n - j < kPanel ? n - j : kPanel;
      micro_rows<kRows>(rows, c + i * ldc + j, ldc, a + i * lda, lda, packed + j * k, columns, k,
                        add);
    }
}

// Columns that are contiguous in k: blocks of vectors are transposed.
template <int Type>
void pack_columns(float* packed, const Strided& b, int64_t k, int64_t n) {
  constexpr int size = Type == T_F32 ? 4 : 2;
  for (int64_t j = 0; j < kPanel; j += kLanes) {
    int64_t p = 0;
    for (; p + kLanes <= k && j < n; p += kLanes) {
      f32v v[kLanes];
      for (int i = 0; i < kLanes; ++i)
        v[i] = j + i < n ? load_floats<Type>(b.base + ((j + i) * b.column + p) * size) : f32v{};
      transpose(v);
      for (int i = 0; i < kLanes; ++i) store(packed + (p + i) * kPanel + j, v[i]);
    }
    if (j >= n) {
      for (; p < k; ++p) store(packed + p * kPanel + j, f32v{});
      continue;
    }
    for (; p < k; ++p)
      for (int i = 0; i < kLanes; ++i)
        packed[p * kPanel + j + i] =
            j + i < n ? load_floats_tail<Type>(b.base + ((j + i) * b.column + p) * size, 1)[0] : 0;
  }
}

template <int Type>
void pack_rows(float* packed, const Strided& b, int64_t k, int64_t n) {
  constexpr int size = Type == T_F32 ? 4 : 2;
  for (int64_t p = 0; p < k; ++p, packed += kPanel) {
    const char* row = b.base + p * b.row * size;
    for (int64_t j = 0; j < kPanel; j += kLanes) {
      f32v v{};
      if (b.column != 1) {
        for (int i = 0; i < kLanes && j + i < n; ++i)
          v[i] = load_floats_tail<Type>(row + (j + i) * b.column * size, 1)[0];
      } else if (j + kLanes <= n) {
        v = load_floats<Type>(row + j * size);
      } else if (j < n) {
        v = load_floats_tail<Type>(row + j * size, n - j);
      }
      store(packed + j, v);
    }
  }
}

void pack(float* packed, const Strided& b, int type, int64_t k, int64_t n) {
  with_type(type, [&](auto constant) {
    constexpr int kType = decltype(constant)::value;
    constexpr int size = kType == T_F32 ? 4 : 2;
    for (int64_t j = 0; j < n; j += kPanel) {
      Strided at{b.base + j * b.column * size, b.row, b.column};
      int64_t columns = n - j < kPanel ? n - j : kPanel;
      if (b.row == 1 && b.column != 1)
        pack_columns<kType>(packed + j * k, at, k, columns);
      else
        pack_rows<kType>(packed + j * k, at, k, columns);
    }
  });
}

inline float sum_lanes(f32v v) {
  return fold_vector(v, [](auto a, auto b) { return a + b; });
}

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
      f32v y = column(j);
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) sum[i][j] = fma(x[i], y, sum[i][j]);
    }
  };
  for (; p + kLanes <= k; p += kLanes)
    add([&](int i) { return load<f32v>(a + i * lda + p); },
        [&](int j) { return load_floats<Type>(b + (j * step + p) * size); });
  if (p < k)
    add([&](int i) { return load_tail<f32v>(a + i * lda + p, k - p); },
        [&](int j) { return load_floats_tail<Type>(b + (j * step + p) * size, k - p); });
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < J; ++j) c[i * ldc + j] = sum_lanes(sum[i][j]);
}

template <int Type, int R>
void dot_rows(float* c, int64_t ldc, const float* a, int64_t lda, const Strided& b, int64_t n,
              int64_t k) {
  constexpr int size = Type == T_F32 ? 4 : 2;
  constexpr int J = kLanes == 16 ? 4 : 2;
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
    int64_t i = 0;
    for (; i + 4 <= m; i += 4) dot_rows<kType, 4>(c + i * ldc, ldc, a + i * lda, lda, b, n, k);
    if (m - i == 3) return dot_rows<kType, 3>(c + i * ldc, ldc, a + i * lda, lda, b, n, k);
    if (m - i == 2) return dot_rows<kType, 2>(c + i * ldc, ldc, a + i * lda, lda, b, n, k);
    if (m - i == 1) dot_rows<kType, 1>(c + i * ldc, ldc, a + i * lda, lda, b, n, k);
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

void fill_gemm(Table& t) { t.gemm = {kPanel, pack, multiply, dots, axpy}; }

}  // namespace vtc::VTC_ISA
