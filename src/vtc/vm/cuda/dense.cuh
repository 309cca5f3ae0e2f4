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

// A thread's team, and the row that it is at. A team behind the last row computes that one once more.
template <class Elements>
struct DenseRows {
  const Dense& d;
  RowTeam team;
  Elements elements;
  int teams, own;  // of a block; which of them
  int64_t begin;   // bytes
  bool there;

  __device__ __forceinline__ DenseRows(const Dense& launched, float* kept)
      : d(launched), team{own_thread(), 32, 1, kept}, elements{team.thread, d.lanes, d.columns},
        teams(1), own(0) {
    if (d.lanes <= 32) {
      int shift = __ffs(d.lanes) - 1;
      team.width = d.lanes;
      elements.slot &= d.lanes - 1;
      teams = d.threads >> shift, own = team.thread >> shift;
    } else {
      team.warps = d.lanes >> 5;
    }
  }
  // Of `teams` rows from `first` on the team's own.
  __device__ __forceinline__ void go_to(int first) {
    int row = first + own;
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
__device__ __forceinline__ void dense_norm(const Dense& d, unsigned block, unsigned blocks,
                                           float* kept) {
  using Elements = DenseElements<kType, kCount, kGrouped>;
  DenseRows<Elements> rows(d, kept);
  const Elements& elements = rows.elements;
  typename Elements::Raw scale, shift;
  if (d.scale) scale = elements.load(reinterpret_cast<const char*>(d.scale));
  if (d.shift) shift = elements.load(reinterpret_cast<const char*>(d.shift));
  auto sum = [](float p, float q) { return p + q; };
#pragma unroll 1
  for (int at = static_cast<int>(block) * rows.teams; at < d.rows;
       at += static_cast<int>(blocks) * rows.teams) {
    rows.go_to(at);
    typename Elements::Raw x = rows.load(d.x), y;
    if (d.y) y = rows.load(d.y);
    ValuesOf<kCount> a = elements.values(x), b;
    if (d.y) each(a, elements.values(y), sum);
    if (d.sum) rows.store(d.sum, a);
    if (d.centered) {
      float mean = rows.team.fold(a, Sum()) * d.share;
      each(a, [=](float p) { return p - mean; });
      elements.leave(0.0f, a);
    }
    b = a;
    each(b, [](float p) { return p * p; });
    float root = rsqrtf(rows.team.fold(b, Sum()) * d.share + d.number);
    each(a, [=](float p) { return p * root; });
    if (kType == T_BF16 && d.rounded) round_bf16(a);
    if (kType == T_F16 && d.rounded) round_f16(a);
    if (d.scale) each(a, elements.values(scale), [](float p, float q) { return p * q; });
    if (d.shift) each(a, elements.values(shift), sum);
    rows.store(d.out, a);
  }
}

template <int kType, int kCount, bool kGrouped>
__device__ __forceinline__ void dense_softmax(const Dense& d, unsigned block, unsigned, float* kept) {
  using Elements = DenseElements<kType, kCount, kGrouped>;
  DenseRows<Elements> rows(d, kept);
  rows.go_to(static_cast<int>(block) * rows.teams);
  ValuesOf<kCount> a = rows.elements.values(rows.load(d.x));
  rows.elements.leave(Most::none(), a);
  float most = rows.team.fold(a, Most());
  each(a, [=](float p) { return expf(p - most); });
  rows.elements.leave(0.0f, a);
  float part = approximate_reciprocal(rows.team.fold(a, Sum()));
  each(a, [=](float p) { return p * part; });
  rows.store(d.out, a);
}

}  // namespace vtc
