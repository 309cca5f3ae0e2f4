// Square blocks of 4-byte elements, transposed in registers.
#pragma once

#include <utility>

#include "simd.h"

namespace vtc::VTC_ISA {

template <int Step, int... I>
inline void exchange(f32v& a, f32v& b, std::integer_sequence<int, I...>) {
  constexpr int n = lanes<float>;
  f32v x = __builtin_shufflevector(a, b, ((I & Step) ? I - Step + n : I)...);
  f32v y = __builtin_shufflevector(a, b, ((I & Step) ? I + n : I + Step)...);
  a = x;
  b = y;
}

template <int Step>
inline void transpose_steps(f32v* v) {
#pragma GCC unroll 16
  for (int i = 0; i < lanes<float>; ++i)
    if (!(i & Step))
      exchange<Step>(v[i], v[i + Step], std::make_integer_sequence<int, lanes<float>>{});
  if constexpr (Step > 1) transpose_steps<Step / 2>(v);
}

// The transpose of the square whose rows are the vectors v[0], v[1], ...
inline void transpose(f32v* v) { transpose_steps<lanes<float> / 2>(v); }

}  // namespace vtc::VTC_ISA
