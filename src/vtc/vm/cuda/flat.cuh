// Pointwise kernels on tensors without gaps: see flat.h. A thread has a group of elements.
#pragma once

#include "flat.h"
#include "group_memory.cuh"
#include "row_operators.cuh"

namespace vtc {

// The group of y at elements `first` on, where y begins again after `d.period`.
template <int kType>
__device__ __forceinline__ void load_repeated(const Flat& d, int first, GroupPart part, PackedGroup& to) {
  const char* base = reinterpret_cast<const char*>(d.y);
  unsigned period = static_cast<unsigned>(d.period);
  unsigned column = static_cast<unsigned>(first + part.low) % period;
  if (part.all() && column + kRun <= period)
    return load_unaligned<kType>(base, static_cast<int>(column), d.period, to);
  to = {};
#pragma unroll
  for (int e = 0; e < kRun; ++e) {
    if (e < part.low || e >= part.high) continue;
    set_element<kType>(to, e, element_at<kType>(base + column * itemsize(kType)));
    column = column + 1 == period ? 0 : column + 1;
  }
}

// The block of threads `block`.
template <int kType, int kForm>
__device__ __forceinline__ void run_flat(const Flat& d, unsigned block) {
  constexpr int kSize = itemsize(kType);
  using Held = ValuesOf<kRun>;
  int group = static_cast<int>(block) * d.threads + own_thread();
  int first = group * kRun - d.lead;
  GroupPart part(first, d.count);
  if (part.none()) return;
  int64_t offset = static_cast<int64_t>(first) * kSize;
  auto load = [&](uint64_t address, PackedGroup& to) {
    const char* at = reinterpret_cast<const char*>(address) + offset;
    part.all() ? load_group<kType>(at, to) : load_part<kType>(at, part, to);
  };
  PackedGroup x, y = {};
  load(d.x, x);
  bool two = kForm != FLAT_UNARY && d.y;
  if (two) d.period ? load_repeated<kType>(d, first, part, y) : load(d.y, y);
  auto take_y = [&](Held& b) {
    if (kForm != FLAT_UNARY) unpack<kType>(y.v, b.x);
    if (!two) each(b, [&](float) { return d.number; });
  };
  auto put = [&](const Held& a) {
    store_part<kType>(reinterpret_cast<char*>(d.out) + offset, part, a.x);
  };
  auto with_one = [&](int op, auto join) {
    with_unary(op, [&](auto f) {
      Held a;
      unpack<kType>(x.v, a.x);
      if constexpr (kForm == FLAT_UNARY) {
        each(a, f);
      } else {
        Held b;
        take_y(b);
        each(a, b, [&](float p, float q) { return join(f, p, q); });
      }
      put(a);
    });
  };
  if constexpr (kForm == FLAT_UNARY)
    return with_one(d.first, 0);
  else if constexpr (kForm == FLAT_GATE)
    return with_one(d.first, [](auto f, float p, float q) { return f(p) * q; });
  else if constexpr (kForm == FLAT_BIAS)
    return with_one(d.last, [](auto f, float p, float q) { return f(p + q); });
  else if constexpr (kForm == FLAT_BINARY)
    return with_binary(d.second, [&](auto f) {
      Held a, b;
      unpack<kType>(x.v, a.x);
      take_y(b);
      each(a, b, f);
      put(a);
    });
  Held a, b;
  unpack<kType>(x.v, a.x);
  take_y(b);
  if constexpr (kForm == FLAT_CHOOSE) {
    choose(d.compare, d.number, d.second, d.third, a, b);
  } else {
    apply(d.first, a);
    apply(d.second, a, b);
    apply(d.last, a);
  }
  put(a);
}

}  // namespace vtc
