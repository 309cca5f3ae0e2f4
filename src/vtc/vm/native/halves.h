// Vectors of floats read from rows of f32, bf16 or f16 memory.
#pragma once

#include <utility>

#include "isa.h"
#include "simd.h"

namespace vtc::VTC_ISA {

template <int Type>
inline f32v load_floats(const char* p) {
  constexpr int w = lanes<float>;
  if constexpr (Type == T_F32) {
    return load<f32v>(p);
  } else if constexpr (Type == T_BF16) {
    using U = Part<uint32_t, w>;
    return (f32v)(__builtin_convertvector(load<Part<uint16_t, w>>(p), U) << 16);
  } else {
#if defined(__AVX512F__)
    return (f32v)_mm512_cvtph_ps(load<__m256i>(p));
#elif defined(__F16C__)
    return (f32v)_mm256_cvtph_ps(load<__m128i>(p));
#else
    using U = Part<uint32_t, w>;
    U bits = __builtin_convertvector(load<Part<uint16_t, w>>(p), U);
    U rest = bits & 0x7fff;
    U finite = (U)((f32v)(rest << 13) * 0x1p112f);
    U value = rest >= 0x7c00 ? (rest << 13) | 0x7f800000u : finite;
    return (f32v)(value | (bits & 0x8000) << 16);
#endif
  }
}

// The first n floats at p, n less than a vector.
template <int Type>
inline f32v load_floats_tail(const char* p, int64_t n) {
  constexpr int size = Type == T_F32 ? 4 : 2;
  if constexpr (Type == T_F32) {
    return load_tail<f32v>(p, n);
  } else {
    char held[lanes<float> * size] = {};
    std::memcpy(held, p, n * size);
    return load_floats<Type>(held);
  }
}

// Calls f with the memory type as a constant.
template <class F>
inline void with_type(int type, F f) {
  switch (type) {
    case T_F32: return f(std::integral_constant<int, T_F32>{});
    case T_BF16: return f(std::integral_constant<int, T_BF16>{});
    default: return f(std::integral_constant<int, T_F16>{});
  }
}

}  // namespace vtc::VTC_ISA
