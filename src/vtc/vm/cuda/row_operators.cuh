// Operators that come with a launch.
#pragma once

#include "registers.cuh"
#include "rows.h"

namespace vtc {

__device__ __forceinline__ float rounded_to_bf16(float x) { return from_bf16(pack_bf16(x, 0.0f)); }
__device__ __forceinline__ float rounded_to_f16(float x) { return from_f16(pack_f16(x, 0.0f)); }

// body(f), where f(x) = op(x).
template <class Body>
__device__ __forceinline__ void with_unary(int op, Body body) {
  switch (op) {
#define VTC_CASE(OP, RESULT) \
  case OP: return body([](float x) { return RESULT; });
    VTC_UNARY(VTC_CASE)
#undef VTC_CASE
    case D_BF16: return body([](float x) { return rounded_to_bf16(x); });
    case D_F16: return body([](float x) { return rounded_to_f16(x); });
    default: return body([](float x) { return x; });
  }
}

// body(f), where f(x, y) = op(x, y), of those whose results are numbers.
template <class Body>
__device__ __forceinline__ void with_binary(int op, Body body) {
  switch (op) {
    case D_ADD: return body([](float x, float y) { return x + y; });
    case D_SUB: return body([](float x, float y) { return x - y; });
    case D_RSUB: return body([](float x, float y) { return y - x; });
    case D_MUL: return body([](float x, float y) { return x * y; });
    case D_DIV: return body([](float x, float y) { return quotient(x, y); });
    case D_RDIV: return body([](float x, float y) { return quotient(y, x); });
    case D_MINIMUM: return body([](float x, float y) { return smaller(x, y); });
    case D_MAXIMUM: return body([](float x, float y) { return larger(x, y); });
    default: return body([](float x, float) { return x; });
  }
}

// A = op(A).
template <int kCount>
__device__ __forceinline__ void apply(int op, ValuesOf<kCount>& a) {
  if (op == kNoOperator) return;
  with_unary(op, [&](auto f) { each(a, f); });
}

// A = op(A, B).
template <int kCount>
__device__ __forceinline__ void apply(int op, ValuesOf<kCount>& a, const ValuesOf<kCount>& b) {
  if (op == kNoOperator) return;
  with_binary(op, [&](auto f) { each(a, b, f); });
}

// A = op(A, B), of those that a choice is between.
template <int kCount>
__device__ __forceinline__ void apply_simple(int op, ValuesOf<kCount>& a, const ValuesOf<kCount>& b) {
  switch (op) {
    case D_ADD: return each(a, b, [](float x, float y) { return x + y; });
    case D_SUB: return each(a, b, [](float x, float y) { return x - y; });
    case D_RSUB: return each(a, b, [](float x, float y) { return y - x; });
    case D_MUL: return each(a, b, [](float x, float y) { return x * y; });
    case D_MINIMUM: return each(a, b, [](float x, float y) { return smaller(x, y); });
    case D_MAXIMUM: return each(a, b, [](float x, float y) { return larger(x, y); });
    case D_B_TO_A: return each(a, b, [](float, float y) { return y; });
    default: return;
  }
}

// body(f), where f(x) = whether compare(x, number).
template <class Body>
__device__ __forceinline__ void with_comparison(int op, float number, Body body) {
  switch (op) {
    case D_EQ: return body([=](float x) { return x == number; });
    case D_NE: return body([=](float x) { return x != number; });
    case D_LT: return body([=](float x) { return x < number; });
    case D_LE: return body([=](float x) { return x <= number; });
    case D_GT: return body([=](float x) { return x > number; });
    default: return body([=](float x) { return x >= number; });
  }
}

// A = compare(A, number) ? second(A, B) : third(A, B).
template <int kCount>
__device__ __forceinline__ void choose(int op, float number, int second, int third,
                                       ValuesOf<kCount>& a, const ValuesOf<kCount>& b) {
  uint32_t chosen = 0;
  with_comparison(op, number, [&](auto f) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) chosen |= static_cast<uint32_t>(f(a.x[n])) << n;
  });
  ValuesOf<kCount> other = a;
  apply_simple(second, a, b);
  apply_simple(third, other, b);
#pragma unroll
  for (int n = 0; n < kCount; ++n) a.x[n] = chosen >> n & 1 ? a.x[n] : other.x[n];
}

}  // namespace vtc
