// Groups of elements of one type, some of which are another's or begin anywhere, between memory and
// registers. Nothing is touched that is not of the group.
#pragma once

#include "shifted.cuh"

namespace vtc {

// A group as it lies in memory, in its first vectors_of(kType) vectors.
struct PackedGroup {
  Vector v[2];
};

// Which elements of a group are there: from `low` up to `high`.
struct GroupPart {
  int low, high;

  // Of a group that begins `first` elements into `count`.
  __device__ __forceinline__ GroupPart(int first, int count)
      : low(first < 0 ? -first : 0), high(count - first < kRun ? count - first : kRun) {}
  __device__ __forceinline__ bool none() const { return low >= high; }
  __device__ __forceinline__ bool all() const { return low == 0 && high == kRun; }
  __device__ __forceinline__ uint32_t bits() const {
    return none() ? 0 : ((1u << high) - 1) & ~((1u << low) - 1);
  }
};

__device__ __forceinline__ float element_of(int type, uint32_t bits) {
  return type == T_BF16 ? from_bf16(bits) : type == T_F16 ? from_f16(bits) : __uint_as_float(bits);
}

// The bits of the element at `at`.
template <int kType>
__device__ __forceinline__ uint32_t element_at(const char* at) {
  if constexpr (itemsize(kType) == 2)
    return *reinterpret_cast<const uint16_t*>(at);
  else
    return *reinterpret_cast<const uint32_t*>(at);
}

template <int kType>
__device__ __forceinline__ void store_element_as(char* at, float x) {
  if constexpr (kType == T_F32)
    *reinterpret_cast<float*>(at) = x;
  else
    *reinterpret_cast<uint16_t*>(at) =
        static_cast<uint16_t>(kType == T_BF16 ? pack_bf16(x, 0.0f) : pack_f16(x, 0.0f));
}

template <int kType>
__device__ __forceinline__ void set_element(PackedGroup& to, int e, uint32_t bits) {
  uint32_t words[8] = {to.v[0].x, to.v[0].y, to.v[0].z, to.v[0].w,
                       to.v[1].x, to.v[1].y, to.v[1].z, to.v[1].w};
  if constexpr (itemsize(kType) == 2)
    words[e / 2] |= bits << (e % 2 * 16);
  else
    words[e] = bits;
  to = {{{words[0], words[1], words[2], words[3]}, {words[4], words[5], words[6], words[7]}}};
}

// Of the group at `at` the part that is there; zeros elsewhere.
template <int kType>
__device__ __forceinline__ void load_part(const char* at, GroupPart part, PackedGroup& to) {
  to = {};
#pragma unroll
  for (int e = 0; e < kRun; ++e)
    if (e >= part.low && e < part.high)
      set_element<kType>(to, e, element_at<kType>(at + e * itemsize(kType)));
}

template <int kType>
__device__ __forceinline__ void load_group(const char* at, PackedGroup& to) {
#pragma unroll
  for (int n = 0; n < vectors_of(kType); ++n) to.v[n] = load_cached_vector(at + 16 * n);
}

// The words from byte `skipped` on of two vectors side by side.
__device__ __forceinline__ Vector shifted_vector(const Vector (&v)[2], uint32_t skipped) {
  uint32_t w[8] = {v[0].x, v[0].y, v[0].z, v[0].w, v[1].x, v[1].y, v[1].z, v[1].w};
  shift_words<1>(w, skipped);
  return {w[0], w[1], w[2], w[3]};
}

// Of elements of 16 bits those of a group from `at` on, wherever they begin: the two vectors that
// cover them. `there`: is the group? False if one of these goes beyond `end`; it is not read.
__device__ __forceinline__ bool load_covering(const char* at, bool there, const char* end,
                                              Vector (&to)[2]) {
  uint32_t skipped = static_cast<uint32_t>(reinterpret_cast<uint64_t>(at) & 15);
  const char* first = at - skipped;
  int vectors = skipped ? 2 : 1;
  bool fits = first + 16 * vectors <= end;
  to[0] = load_vector_if(first, there && fits);
  to[1] = load_vector_if(first + 16, there && fits && skipped);
  return !there || fits;
}

// The part that is there of the group at `at`, which is aligned, = x.
template <int kType>
__device__ __forceinline__ void store_part(char* at, GroupPart part, const float* x) {
  constexpr int kSize = itemsize(kType);
  Vector v[2];
  pack<kType>(x, v);
  if (part.all()) {
#pragma unroll
    for (int n = 0; n < vectors_of(kType); ++n) store_vector(at + 16 * n, v[n]);
    return;
  }
  uint32_t w[8] = {v[0].x, v[0].y, v[0].z, v[0].w, v[1].x, v[1].y, v[1].z, v[1].w};
#pragma unroll
  for (int e = 0; e < kRun; ++e) {
    if (e < part.low || e >= part.high) continue;
    if constexpr (kSize == 2)
      *reinterpret_cast<uint16_t*>(at + 2 * e) = static_cast<uint16_t>(w[e / 2] >> (e % 2 * 16));
    else
      *reinterpret_cast<uint32_t*>(at + 4 * e) = w[e];
  }
}

}  // namespace vtc
