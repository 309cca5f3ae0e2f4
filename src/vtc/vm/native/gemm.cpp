// Packing of right operands, and products over packed ones.

#include "gemm.h"

#include <algorithm>

#include "transpose.h"

namespace vtc::VTC_ISA {
namespace {

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

// Rows of k at a time: what is read of A in a block stays in the second cache level.
constexpr int64_t kBlock = 512;

template <int Type, bool kOffsets>
void multiply_panels(float* c, int64_t ldc, LeftRows a, const PanelRows& b, int64_t m, int64_t n,
                     int64_t k, bool add) {
  constexpr int size = Type == T_F32 ? 4 : 2;
  int64_t step = even_rows(m), block = k < 2 * kBlock ? std::max<int64_t>(k, 1) : kBlock;
  for (int64_t p = 0; p == 0 || p < k; p += block) {
    int64_t depth = std::min(block, k - p);
    for (int64_t j = 0; j < n; j += kPanel)
      for (int64_t i = 0; i < m; i += step) {
        LeftRows rows{a.base + i * a.lda, a.lda, nullptr};
        if constexpr (kOffsets)
          rows.offsets = a.offsets + p;
        else
          rows.base += p;
        const char* panel = b.base + j / kPanel * b.apart + p * kPanel * size;
        int64_t columns = std::min<int64_t>(n - j, kPanel);
        with_rows(std::min(m - i, step), [&](auto count) {
          multiply_rows<decltype(count)::value, Type, kOffsets>(c + i * ldc + j, ldc, rows, panel,
                                                                columns, depth, add || p > 0);
        });
      }
  }
}

void multiply(float* c, int64_t ldc, const LeftRows& a, const PanelRows& b, int64_t m, int64_t n,
              int64_t k, bool add) {
  with_type(b.type, [&](auto type) {
    if (a.offsets)
      multiply_panels<decltype(type)::value, true>(c, ldc, a, b, m, n, k, add);
    else
      multiply_panels<decltype(type)::value, false>(c, ldc, a, b, m, n, k, add);
  });
}

}  // namespace

void fill_gemm(Table& t) {
  t.gemm.panel = kPanel;
  t.gemm.pack = pack;
  t.gemm.multiply = multiply;
}

}  // namespace vtc::VTC_ISA
