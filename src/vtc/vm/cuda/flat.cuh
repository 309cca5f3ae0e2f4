// Pointwise kernels on tensors without gaps: see flat.h. A thread has a group of elements.
#pragma once

#include "flat.h"
#include "group_memory.cuh"
#include "row_operators.cuh"

namespace vtc {

// The part of the group of y at elements `first` on, where y begins again after `d.period`.
template <int kType>
__device__ __forceinline__ void load_repeated(const Flat& d, unsigned column, GroupPart part,
                                              PackedGroup& to) {
  const char* base = reinterpret_cast<const char*>(d.y);
  to = {};
#pragma unroll
  for (int e = 0; e < kRun; ++e) {
    if (e < part.low || e >= part.high) continue;
    set_element<kType>(to, e, element_at<kType>(base + column * itemsize(kType)));
    column = column + 1 == static_cast<unsigned>(d.period) ? 0 : column + 1;
  }
}

// The same of a whole group.
template <int kType>
__device__ __forceinline__ void load_whole_repeated(const Flat& d, unsigned column, PackedGroup& to) {
  constexpr int kSize = itemsize(kType);
  const char* base = reinterpret_cast<const char*>(d.y);
  const char *at = base + column * kSize, *end = base + static_cast<int64_t>(d.period) * kSize;
  if constexpr (kSize == 2) {
    if (column + kRun <= static_cast<unsigned>(d.period) && load_covering(at, true, end, to.v)) {
      to.v[0] = shifted_vector(to.v, static_cast<uint32_t>(reinterpret_cast<uint64_t>(at) & 15));
      return;
    }
  } else if (column + kRun <= static_cast<unsigned>(d.period) &&
             !(reinterpret_cast<uint64_t>(at) & 15)) {
    return load_group<kType>(at, to);
  }
  load_repeated<kType>(d, column, GroupPart(0, kRun), to);
}

// The block of threads `block`.
template <int kType, int kForm>
__device__ __forceinline__ void run_flat(const Flat& d, unsigned block) {
  constexpr int kSize = itemsize(kType);
  using Held = ValuesOf<kRun>;
  int group = static_cast<int>(block) * d.threads + static_cast<int>(threadIdx.x);
  int first = group * kRun - d.lead;
  GroupPart part(first, d.count);
  if (part.none()) return;
  int64_t offset = static_cast<int64_t>(first) * kSize;
  const char* x_at = reinterpret_cast<const char*>(d.x) + offset;
  const char* y_at = reinterpret_cast<const char*>(d.y) + offset;
  PackedGroup x, y;
  bool two = kForm != FLAT_UNARY && d.y;
  // All loads of a thread are under way before the first is waited for.
  if (part.all()) {
    load_group<kType>(x_at, x);
    if (two && !d.period) load_group<kType>(y_at, y);
    if (two && d.period)
      load_whole_repeated<kType>(d, static_cast<unsigned>(first) % static_cast<unsigned>(d.period), y);
  } else {
    load_part<kType>(x_at, part, x);
    if (two && !d.period) load_part<kType>(y_at, part, y);
    if (two && d.period)
      load_repeated<kType>(
          d, static_cast<unsigned>(first + part.low) % static_cast<unsigned>(d.period), part, y);
  }
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
