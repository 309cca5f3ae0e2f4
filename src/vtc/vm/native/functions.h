// Elementary functions of any vector of floats: our own for f32 where there is fused multiply-add,
// else the C library's, an element at a time.
#pragma once

#include "math.h"

namespace vtc::VTC_ISA {

#define VTC_VECTOR(Name, vector, expression)                        \
  struct Name {                                                     \
    template <class V>                                              \
    static V f(V a) {                                               \
      if constexpr (VTC_HAS_FMA && std::is_same_v<V, f32v>)         \
        return vector(a);                                           \
      else                                                          \
        return each(a, [](auto x) -> decltype(x) { return expression; }); \
    }                                                               \
  }

VTC_VECTOR(Exp, vexp, std::exp(x));
VTC_VECTOR(Exp2, vexp2, std::exp2(x));
VTC_VECTOR(Expm1, vexpm1, std::expm1(x));
VTC_VECTOR(Log, vlog, std::log(x));
VTC_VECTOR(Log2, vlog2, std::log2(x));
VTC_VECTOR(Log10, vlog10, std::log10(x));
VTC_VECTOR(Log1p, vlog1p, std::log1p(x));
VTC_VECTOR(Sin, vsin, std::sin(x));
VTC_VECTOR(Cos, vcos, std::cos(x));
VTC_VECTOR(Tanh, vtanh, std::tanh(x));
VTC_VECTOR(Erf, verf, std::erf(x));
VTC_VECTOR(Sigmoid, vsigmoid, 1 / (1 + std::exp(-x)));

#undef VTC_VECTOR

}  // namespace vtc::VTC_ISA
