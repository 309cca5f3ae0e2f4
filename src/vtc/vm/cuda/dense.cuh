// Norms and softmax of rows without gaps: see dense.h.
#pragma once

#include "dense.h"
#include "group_memory.cuh"
#include "row_team.cuh"

namespace vtc {

// A thread's elements of the rows of a tensor, or of one row.
template <int kType, int kCount, bool kGrouped>
struct DenseElements {
  static constexpr int kSize = itemsize(kType);
  // As they lie in memory: elements of 16 bits two a word where they are in groups.
  struct Raw {
    uint32_t w[kGrouped ? kCount * kSize / 4 : kCount];
  };

  int slot, lanes, columns;

  __device__ __forceinline__ int column(int n) const {
    return kGrouped ? (n / kRun * lanes + slot) * kRun + n % kRun : n * lanes + slot;
  }
  __device__ __forceinline__ bool has(int n) const { return column(n) < columns; }

  // Those of the row at `row`; zeros behind its end.
  __device__ __forceinline__ Raw load(const char* row) const {
    Raw own;
    if constexpr (kGrouped) {
      constexpr int kEach = vectors_of(kType);
#pragma unroll
      for (int n = 0; n < kCount / kRun * kEach; ++n) {
        int first = n / kEach * kRun;
        Vector v = load_vector_if(row + column(first) * kSize + n % kEach * 16, has(first));
        own.w[4 * n] = v.x, own.w[4 * n + 1] = v.y, own.w[4 * n + 2] = v.z, own.w[4 * n + 3] = v.w;
      }
    } else {
#pragma unroll
      for (int n = 0; n < kCount; ++n)
        own.w[n] = has(n) ? element_at<kType>(row + column(n) * kSize) : 0;
    }
    return own;
  }

  __device__ __forceinline__ ValuesOf<kCount> values(const Raw& own) const {
    ValuesOf<kCount> a;
    if constexpr (kGrouped) {
      constexpr int kEach = vectors_of(kType);
#pragma unroll
      for (int g = 0; g < kCount / kRun; ++g) {
        Vector v[2] = {};
#pragma unroll
        for (int k = 0; k < kEach; ++k) {
          const uint32_t* w = own.w + 4 * (g * kEach + k);
          v[k] = Vector{w[0], w[1], w[2], w[3]};
        }
        unpack<kType>(v, a.x + g * kRun);
      }
    } else {
#pragma unroll
      for (int n = 0; n < kCount; ++n) a.x[n] = element_of(kType, own.w[n]);
    }
    return a;
  }

  __device__ __forceinline__ void store(char* row, const ValuesOf<kCount>& a) const {
    if constexpr (kGrouped) {
#pragma unroll
      for (int g = 0; g < kCount / kRun; ++g) {
        if (!has(g * kRun)) continue;
        Vector v[2];
        pack<kType>(a.x + g * kRun, v);
#pragma unroll
        for (int k = 0; k < vectors_of(kType); ++k)
          store_vector(row + column(g * kRun) * kSize + 16 * k, v[k]);
      }
    } else {
#pragma unroll
      for (int n = 0; n < kCount; ++n)
        if (has(n)) store_element_as<kType>(row + column(n) * kSize, a.x[n]);
    }
  }

  // Those behind the end become `none`.
  __device__ __forceinline__ void leave(float none, ValuesOf<kCount>& a) const {
#pragma unroll
    for (int n = 0; n < kCount; ++n) a.x[n] = has(kGrouped ? n / kRun * kRun : n) ? a.x[n] : none;
  }
};

// A thread's team and row. A team behind the last row computes that one once more.
template <class Elements>
struct DenseRow {
  Elements elements;
  RowTeam team;
  int64_t begin;  // bytes
  bool there;

  __device__ __forceinline__ DenseRow(const Dense& d, unsigned block, float* kept)
      : elements{own_thread(), d.lanes, d.columns}, team{own_thread(), 32, 1, kept} {
    int row = static_cast<int>(block);
    if (d.lanes <= 32) {
      int shift = __ffs(d.lanes) - 1;
      team.width = d.lanes;
      elements.slot &= d.lanes - 1;
      row = row * (d.threads >> shift) + (team.thread >> shift);
    } else {
      team.warps = d.lanes >> 5;
    }
    there = row < d.rows;
    begin = static_cast<int64_t>(there ? row : d.rows - 1) * d.columns * Elements::kSize;
  }
  __device__ __forceinline__ typename Elements::Raw load(uint64_t address) const {
    return elements.load(reinterpret_cast<const char*>(address) + begin);
  }
  template <int kCount>
  __device__ __forceinline__ void store(uint64_t address, const ValuesOf<kCount>& a) const {
    if (there) elements.store(reinterpret_cast<char*>(address) + begin, a);
  }
};

template <int kType, int kCount, bool kGrouped>
__device__ __forceinline__ void dense_norm(const Dense& d, unsigned block, float* kept) {
  using Elements = DenseElements<kType, kCount, kGrouped>;
  DenseRow<Elements> row(d, block, kept);
  const Elements& elements = row.elements;
  // All loads are under way before one is waited for.
  typename Elements::Raw x = row.load(d.x), y, scale, shift;
  if (d.y) y = row.load(d.y);
  if (d.scale) scale = elements.load(reinterpret_cast<const char*>(d.scale));
  if (d.shift) shift = elements.load(reinterpret_cast<const char*>(d.shift));
  auto sum = [](float p, float q) { return p + q; };
  ValuesOf<kCount> a = elements.values(x), b;
  if (d.y) each(a, elements.values(y), sum);
  if (d.sum) row.store(d.sum, a);
  if (d.centered) {
    float mean = row.team.fold(a, Sum()) * d.share;
    each(a, [=](float p) { return p - mean; });
    elements.leave(0.0f, a);
  }
  b = a;
  each(b, [](float p) { return p * p; });
  float root = rsqrtf(row.team.fold(b, Sum()) * d.share + d.number);
  each(a, [=](float p) { return p * root; });
  if (kType == T_BF16 && d.rounded) round_bf16(a);
  if (kType == T_F16 && d.rounded) round_f16(a);
  if (d.scale) each(a, elements.values(scale), [](float p, float q) { return p * q; });
  if (d.shift) each(a, elements.values(shift), sum);
  row.store(d.out, a);
}

template <int kType, int kCount, bool kGrouped>
__device__ __forceinline__ void dense_softmax(const Dense& d, unsigned block, float* kept) {
  DenseRow<DenseElements<kType, kCount, kGrouped>> row(d, block, kept);
  ValuesOf<kCount> a = row.elements.values(row.load(d.x));
  row.elements.leave(Most::none(), a);
  float most = row.team.fold(a, Most());
  each(a, [=](float p) { return expf(p - most); });
  row.elements.leave(0.0f, a);
  float part = approximate_reciprocal(row.team.fold(a, Sum()));
  each(a, [=](float p) { return p * part; });
  row.store(d.out, a);
}

}  // namespace vtc
