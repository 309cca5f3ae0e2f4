// The values of A and B, and how they lie in memory.
#pragma once

#include "access.cuh"

namespace vtc {

// A or B. Integers and bools are bits of floats there.
template <int kCount>
struct ValuesOf {
  float x[kCount];
};
using Values = ValuesOf<kElements>;

// What V held is not wanted: no register has to keep it.
template <int kCount>
__device__ __forceinline__ void forget(ValuesOf<kCount>& v) {
#pragma unroll
  for (int e = 0; e < kCount; ++e) v.x[e] = undefined_float();
}

// Vectors of kRun elements; 0 for types that are moved an element at a time.
__device__ __forceinline__ constexpr int vectors_of(int type) {
  return itemsize(type) == 2 && type != T_I16 ? 1 : type == T_F32 || type == T_I32 ? 2 : 0;
}

template <int kType>
__device__ __forceinline__ void unpack(const Vector (&v)[2], float* x) {
  const uint32_t w[8] = {v[0].x, v[0].y, v[0].z, v[0].w, v[1].x, v[1].y, v[1].z, v[1].w};
#pragma unroll
  for (int n = 0; n < kRun; ++n) {
    if constexpr (kType == T_BF16)
      x[n] = n & 1 ? __uint_as_float(w[n / 2] & 0xffff0000u) : from_bf16(w[n / 2]);
    else if constexpr (kType == T_F16)
      x[n] = n & 1 ? from_f16_high(w[n / 2]) : from_f16(w[n / 2]);
    else
      x[n] = __uint_as_float(w[n]);
  }
}

template <int kType>
__device__ __forceinline__ void pack(const float* x, Vector (&v)[2]) {
  uint32_t w[8];
#pragma unroll
  for (int n = 0; n < 4 * vectors_of(kType); ++n) {
    if constexpr (kType == T_BF16)
      w[n] = pack_bf16(x[2 * n], x[2 * n + 1]);
    else if constexpr (kType == T_F16)
      w[n] = pack_f16(x[2 * n], x[2 * n + 1]);
    else
      w[n] = __float_as_uint(x[n]);
  }
#pragma unroll
  for (int n = 0; n < vectors_of(kType); ++n)
    v[n] = Vector{w[4 * n], w[4 * n + 1], w[4 * n + 2], w[4 * n + 3]};
}

// Calls f with the memory type as a constant, of those that move in vectors.
template <int kType>
struct MemoryType {
  static constexpr int value = kType;
};
template <class F>
__device__ __forceinline__ void with_vector_type(int type, F f) {
  switch (type) {
    case T_BF16: return f(MemoryType<T_BF16>());
    case T_F16: return f(MemoryType<T_F16>());
    default: return f(MemoryType<T_F32>());
  }
}

}  // namespace vtc
