// Pointwise kernels on tensors without gaps: see flat.h.
#pragma once

#include "flat.h"
#include "group_memory.cuh"
#include "row_operators.cuh"

namespace vtc {

// The group of y from `column` on, where y begins again after `d.period`.
template <int kType>
__device__ __forceinline__ void load_repeated(const Flat& d, unsigned column, PackedGroup& to) {
  constexpr int kSize = itemsize(kType);
  unsigned period = static_cast<unsigned>(d.period);
  const char* base = reinterpret_cast<const char*>(d.y);
  const char *at = base + column * kSize, *end = base + static_cast<int64_t>(d.period) * kSize;
  bool inside = column + kRun <= period;
  if constexpr (kSize == 2) {
    if (load_covering(at, inside, end, to.v) && inside) {
      to.v[0] = shifted_vector(to.v, static_cast<uint32_t>(reinterpret_cast<uint64_t>(at) & 15));
      return;
    }
  } else if (inside && !(reinterpret_cast<uint64_t>(at) & 15)) {
    return load_group<kType>(at, to);
  }
  to = {};
#pragma unroll
  for (int e = 0; e < kRun; ++e) {
    set_element<kType>(to, e, element_at<kType>(base + column * kSize));
    column = column + 1 == period ? 0 : column + 1;
  }
}

// A = the form's result of A and B.
template <int kForm, int kOp, int kCount>
__device__ __forceinline__ void compute_flat(const Flat& d, ValuesOf<kCount>& a,
                                             const ValuesOf<kCount>& b) {
  if constexpr (kForm == FLAT_BINARY) {
    apply(d.second, a, b);
  } else if constexpr (kForm == FLAT_CHOOSE) {
    choose(d.compare, d.number, d.second, d.third, a, b);
  } else if constexpr (kForm == FLAT_ANY) {
    apply(d.first, a);
    apply(d.second, a, b);
    apply(d.last, a);
  } else {
    if (kForm == FLAT_BIAS) each(a, b, [](float p, float q) { return p + q; });
    if (kOp != D_B_TO_A) apply(kOp, a);
    if (kForm == FLAT_GATE) each(a, b, [](float p, float q) { return p * q; });
  }
}

// The element i, if there is one.
template <int kType, int kForm, int kOp>
__device__ __forceinline__ void run_element(const Flat& d, int i) {
  constexpr int kSize = itemsize(kType);
  if (i >= d.count) return;
  auto load = [&](uint64_t address, int at) {
    const char* from = reinterpret_cast<const char*>(address) + static_cast<int64_t>(at) * kSize;
    return element_of(kType, element_at<kType>(from));
  };
  ValuesOf<1> a{{load(d.x, i)}}, b{{d.number}};
  if (kForm != FLAT_UNARY && d.y) {
    int at = i;
    if (d.period) at = static_cast<int>(static_cast<unsigned>(i) % static_cast<unsigned>(d.period));
    b.x[0] = load(d.y, at);
  }
  compute_flat<kForm, kOp>(d, a, b);
  char* to = reinterpret_cast<char*>(d.out) + static_cast<int64_t>(i) * kSize;
  store_element_as<kType>(to, a.x[0]);
}

// The block of threads `block`, with an element a thread.
template <int kType, int kForm, int kOp>
__device__ __forceinline__ void run_single(const Flat& d, unsigned block) {
  run_element<kType, kForm, kOp>(d, static_cast<int>(block) * d.threads + own_thread());
}

// The block of threads `block`, with a group a thread.
template <int kType, int kForm, int kOp>
__device__ __forceinline__ void run_flat(const Flat& d, unsigned block) {
  constexpr int kSize = itemsize(kType);
  int group = static_cast<int>(block) * d.threads + static_cast<int>(threadIdx.x);
  if (__builtin_expect(group >= d.groups, 0)) {
    // Of the last block, all of whose threads are behind the last group.
    int behind = (d.groups + d.threads - 1) / d.threads * d.threads;
    if (group < behind) return;
    int n = group - behind, inner = d.groups * kRun;
    return run_element<kType, kForm, kOp>(d, n < d.head ? n : n + inner);
  }
  int first = d.head + group * kRun;
  int64_t offset = static_cast<int64_t>(first) * kSize;
  PackedGroup x, y;
  load_group<kType>(reinterpret_cast<const char*>(d.x) + offset, x);
  bool two = kForm == FLAT_GATE || kForm == FLAT_BIAS || (kForm != FLAT_UNARY && d.y);
  if (two) {
    if (__builtin_expect(!d.period, kForm != FLAT_BIAS))
      load_group<kType>(reinterpret_cast<const char*>(d.y) + offset, y);
    else
      load_repeated<kType>(d, static_cast<unsigned>(first) % static_cast<unsigned>(d.period), y);
  }
  ValuesOf<kRun> a, b;
  unpack<kType>(x.v, a.x);
  if (two)
    unpack<kType>(y.v, b.x);
  else
#pragma unroll
    for (int e = 0; e < kRun; ++e) b.x[e] = d.number;
  compute_flat<kForm, kOp>(d, a, b);
  Vector v[2];
  pack<kType>(a.x, v);
  char* to = reinterpret_cast<char*>(d.out) + offset;
#pragma unroll
  for (int n = 0; n < vectors_of(kType); ++n) store_vector(to + 16 * n, v[n]);
}

}  // namespace vtc
