// Scalar operators on A and B.
#pragma once

#include "memory.cuh"

namespace vtc {

__device__ __forceinline__ float truth(bool b) { return __uint_as_float(b ? 1u : 0u); }

// X(operator, f(x)).
#define VTC_UNARY(X)                                                       \
  X(D_NEG, -x)                                                             \
  X(D_ABS, fabsf(x))                                                       \
  X(D_FLOOR, floorf(x))                                                    \
  X(D_EXP, expf(x))                                                        \
  X(D_EXP2, exp2f(x))                                                      \
  X(D_LOG, logf(x))                                                        \
  X(D_SQRT, square_root(x))                                                \
  X(D_RSQRT, rsqrtf(x))                                                    \
  X(D_TANH, tangent(x))                                                    \
  X(D_ERF, erff(x))                                                        \
  X(D_SIGMOID, sigmoid(x))                                                 \
  X(D_RECIPROCAL, quotient(1.0f, x))                                       \
  X(D_ISNAN, truth(x != x))                                                \
  X(D_NOT, __uint_as_float(__float_as_uint(x) ^ 1u))                       \
  X(D_SQUARE, x * x)                                                       \
  X(D_SILU, x * sigmoid(x))                                                \
  X(D_GELU, gelu(x))                                                       \
  X(D_GELU_TANH, gelu_tanh(x))

// X(operator, f(x, y)), where x is of A.
#define VTC_BINARY(X)                                                      \
  X(D_ADD, x + y)                                                          \
  X(D_SUB, x - y)                                                          \
  X(D_RSUB, y - x)                                                         \
  X(D_MUL, x * y)                                                          \
  X(D_DIV, quotient(x, y))                                                 \
  X(D_RDIV, quotient(y, x))                                                \
  X(D_MINIMUM, smaller(x, y))                                              \
  X(D_MAXIMUM, larger(x, y))                                               \
  X(D_EQ, truth(x == y))                                                   \
  X(D_NE, truth(x != y))                                                   \
  X(D_LT, truth(x < y))                                                    \
  X(D_LE, truth(x <= y))                                                   \
  X(D_GT, truth(x > y))                                                    \
  X(D_GE, truth(x >= y))                                                   \
  X(D_AND, __uint_as_float(__float_as_uint(x) & __float_as_uint(y)))       \
  X(D_OR, __uint_as_float(__float_as_uint(x) | __float_as_uint(y)))        \
  X(D_RSQRT_SUM, rsqrtf(x + y))

// A scalar: an element a group.
struct Scalar {
  float x[kGroups];
};

__device__ __forceinline__ Scalar scalar_at(const Tile& t, int location, Word number) {
  Scalar s;
#pragma unroll
  for (int g = 0; g < kGroups; ++g)
    s.x[g] = location == kImmediate ? argument(number) : *narrow_at<float>(t, location, g);
  return s;
}

template <int kCount, class F>
__device__ __forceinline__ void each(ValuesOf<kCount>& a, F f) {
#pragma unroll
  for (int e = 0; e < kCount; ++e) a.x[e] = f(a.x[e]);
}

template <int kCount, class F>
__device__ __forceinline__ void each(ValuesOf<kCount>& a, const ValuesOf<kCount>& b, F f) {
#pragma unroll
  for (int e = 0; e < kCount; ++e) a.x[e] = f(a.x[e], b.x[e]);
}

// A = op(A, y), where y has an element a group.
template <int kCount, class F>
__device__ __forceinline__ void each_by_part(ValuesOf<kCount>& a, const float (&y)[kCount / kRun],
                                             F f) {
#pragma unroll
  for (int e = 0; e < kCount; ++e) a.x[e] = f(a.x[e], y[e / kRun]);
}

// Copies that stay apart: no register has to hold two values from here on.
template <int kCount>
__device__ __forceinline__ void move(ValuesOf<kCount>& to, const ValuesOf<kCount>& from) {
#pragma unroll
  for (int e = 0; e < kCount; ++e) to.x[e] = copied(from.x[e]);
}

template <class F>
__device__ __forceinline__ void each(Values& a, const Scalar& b, F f) {
#pragma unroll
  for (int e = 0; e < kElements; ++e) a.x[e] = f(a.x[e], b.x[e / kRun]);
}

// A = f(A, B, a value in shared memory or a scalar).
template <class F>
__device__ __forceinline__ void each_of_three(const Tile& t, int location, Word number, Values& a,
                                              const Values& b, F f) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    float c[kRun];
    group_in(t, location, number, g, c);
#pragma unroll
    for (int e = 0; e < kRun; ++e) {
      float& x = a.x[g * kRun + e];
      x = f(x, b.x[g * kRun + e], c[e]);
    }
  }
}

template <int kCount>
__device__ __forceinline__ void round_bf16(ValuesOf<kCount>& a) {
#pragma unroll
  for (int e = 0; e < kCount; e += 2) {
    uint32_t both = pack_bf16(a.x[e], a.x[e + 1]);
    a.x[e] = from_bf16(both);
    a.x[e + 1] = __uint_as_float(both & 0xffff0000u);
  }
}

template <int kCount>
__device__ __forceinline__ void round_f16(ValuesOf<kCount>& a) {
#pragma unroll
  for (int e = 0; e < kCount; e += 2) {
    uint32_t both = pack_f16(a.x[e], a.x[e + 1]);
    a.x[e] = from_f16(both);
    a.x[e + 1] = from_f16_high(both);
  }
}

// One operator of `DeviceOp` on scalars.
__device__ __forceinline__ float scalar_operator(int op, float x, float y) {
  switch (op) {
#define VTC_CASE(OP, RESULT) \
  case OP: return RESULT;
    VTC_UNARY(VTC_CASE)
    VTC_BINARY(VTC_CASE)
#undef VTC_CASE
    default: return x;
  }
}

// dst = op(a, b): narrow f32. Where the tile has one row, one group stands for all.
__device__ __forceinline__ void narrow_scalar(const Tile& t, Instruction own, Word number) {
  int op = own.type() | own.type2() << 4, a = own.a(), b = own.b();
  bool one_row = t.slots() >= t.groups * kThreads;
  float result = 0.0f;
#pragma unroll 1
  for (int g = 0; g < kGroups; ++g) {
    if (g == 0 || !one_row) {
      float x = a == kImmediate ? argument(number) : *narrow_at<float>(t, a, g);
      float y = b == kImmediate  ? argument(number)
                : b == kNowhere ? 0.0f
                                : *narrow_at<float>(t, b, g);
      result = scalar_operator(op, x, y);
    }
    *narrow_at<float>(t, own.dst(), g) = result;
  }
}

}  // namespace vtc
