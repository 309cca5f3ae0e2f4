// Functions of f32 without branches: the elements of a thread go through them side by side.
//
// Those of CUDA's library that have none are used as they are (expf, logf, erff, rsqrtf). Errors are
// in units in the last place.
#pragma once

#include "layout.h"

namespace vtc {

template <class T>
__device__ __forceinline__ T smaller(T a, T b) {
  return a != a || a < b ? a : b;  // NaN if either is
}
template <class T>
__device__ __forceinline__ T larger(T a, T b) {
  return a != a || a > b ? a : b;
}

__device__ __forceinline__ float smaller(float a, float b) { return smaller_or_nan(a, b); }
__device__ __forceinline__ float larger(float a, float b) { return larger_or_nan(a, b); }

// 1 / (1 + exp(-a)), error 3. Below -88 it is 0.
__device__ __forceinline__ float sigmoid(float a) {
  return approximate_reciprocal(1.0f + expf(-a));
}
__device__ __forceinline__ double sigmoid(double a) { return 1.0 / (1.0 + exp(-a)); }

// a / b, error 1: one step of Newton from an approximate quotient of operands that are scaled so
// that neither the reciprocal nor the residue leaves the normal range.
__device__ __forceinline__ float quotient(float a, float b) {
  float size = fabsf(b);
  float scale = size > 0x1p64f ? 0x1p-64f : size < 0x1p-64f ? 0x1p64f : 1.0f;
  float x = a * scale, y = b * scale;
  float r = approximate_reciprocal(y), q = x * r;
  float better = fmaf(fmaf(-q, y, x), r, q);
  // q is right where it is infinite or no number, and has the sign of a zero.
  return a != 0.0f && fabsf(better) < 0x1p127f ? better : q;
}

// Square root, error 1.
__device__ __forceinline__ float square_root(float a) {
  float scale = a < 0x1p-96f ? 0x1p64f : 1.0f, back = a < 0x1p-96f ? 0x1p-32f : 1.0f;
  float x = a * scale, r = approximate_rsqrt(x), root = x * r;
  float better = fmaf(fmaf(-root, root, x), 0.5f * r, root) * back;
  return a == 0.0f || a > 0x1.fffffep127f ? a : better;
}

// tanh, error 4: an odd polynomial near 0, else 1 - 2 / (exp(2 |a|) + 1).
__device__ __forceinline__ float tangent(float a) {
  float x = fabsf(a), s = a * a;
  float power = approximate_exp2(x * 0x1.715476p+1f);
  float far = fmaf(-2.0f, approximate_reciprocal(1.0f + power), 1.0f);
  float p = fmaf(s, -0x1.88f316p-8f, 0x1.560deap-6f);
  p = fmaf(p, s, -0x1.b8c7cep-5f);
  p = fmaf(p, s, 0x1.110aeep-3f);
  p = fmaf(p, s, -0x1.555542p-2f);
  float near = fmaf(p * s, a, a);
  return x < 0.6f ? near : copysignf(far, a);
}

// x (1 + erf(x / sqrt(2))) / 2.
__device__ __forceinline__ float gelu(float x) {
  float half = 0.5f * x;
  return fmaf(half, erff(x * 0x1.6a09e6p-1f), half);
}

// x (1 + tanh(u)) / 2 = x / (1 + exp(-2 u)), where u = sqrt(2 / pi) (x + 0.044715 x^3). Relative error
// 2^-23 times the larger of 4 and |u|.
__device__ __forceinline__ float gelu_tanh(float x) {
  float power = approximate_exp2(x * fmaf(x * x, -0x1.a5a7d0p-4f, -0x1.26aec2p+1f));
  return x * approximate_reciprocal(1.0f + power);
}

}  // namespace vtc
