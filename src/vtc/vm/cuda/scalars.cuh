// The meaning of scalar operators and casts, an element at a time.
#pragma once

#include "math.cuh"
#include "tile.cuh"

namespace vtc {

template <class T>
__device__ __forceinline__ T int_power(T base, T exponent) {
  T result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result *= base;
    base *= base;
  }
  return result;
}

// PyTorch's: rounded to minus infinity from the exact remainder.
template <class T>
__device__ __forceinline__ T floor_divide(T a, T b) {
  if (b == 0) return a / b;
  T mod = fmod(a, b), div = (a - mod) / b;
  if (mod != 0 && (b < 0) != (mod < 0)) div -= 1;
  if (div == 0) return copysign(T(0), a / b);
  T floored = floor(div);
  return div - floored > T(0.5) ? floored + 1 : floored;
}
__device__ __forceinline__ int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return static_cast<int64_t>(0 - static_cast<uint64_t>(a));
  int64_t q = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}

// Comparisons and selection, of every type.
template <class T>
__device__ __forceinline__ bool compares(int op, T a, T b, bool& result) {
  switch (op) {
    case OP_EQ: result = a == b; return true;
    case OP_NE: result = a != b; return true;
    case OP_LT: result = a < b; return true;
    case OP_LE: result = a <= b; return true;
    case OP_GT: result = a > b; return true;
    case OP_GE: result = a >= b; return true;
    case OP_ISNAN: result = a != a; return true;
    case OP_ISINF: result = a == a && a - a != a - a; return true;
    default: return false;
  }
}

template <class T>
VTC_OUT_OF_LINE __device__ T float_operator(int op, T a, T b, T c) {
  switch (op) {
    case OP_ADD: return a + b;
    case OP_SUB: return a - b;
    case OP_MUL: return a * b;
    case OP_DIV: return a / b;
    case OP_FLOORDIV: return floor_divide(a, b);
    case OP_FMOD: return fmod(a, b);
    case OP_POW: return pow(a, b);
    case OP_MINIMUM: return smaller(a, b);
    case OP_MAXIMUM: return larger(a, b);
    case OP_FMA: return fma(a, b, c);
    case OP_ATAN2: return atan2(a, b);
    case OP_NEG: return -a;
    case OP_ABS: return fabs(a);
    case OP_SIGN: return a > 0 ? T(1) : a < 0 ? T(-1) : T(0);
    case OP_FLOOR: return floor(a);
    case OP_CEIL: return ceil(a);
    case OP_ROUND: return rint(a);
    case OP_TRUNC: return trunc(a);
    case OP_EXP: return exp(a);
    case OP_EXP2: return exp2(a);
    case OP_EXPM1: return expm1(a);
    case OP_LOG: return log(a);
    case OP_LOG2: return log2(a);
    case OP_LOG10: return log10(a);
    case OP_LOG1P: return log1p(a);
    case OP_SQRT: return sqrt(a);
    case OP_RSQRT: return rsqrt(a);
    case OP_SIN: return sin(a);
    case OP_COS: return cos(a);
    case OP_TAN: return tan(a);
    case OP_ASIN: return asin(a);
    case OP_ACOS: return acos(a);
    case OP_ATAN: return atan(a);
    case OP_SINH: return sinh(a);
    case OP_COSH: return cosh(a);
    case OP_TANH: return tanh(a);
    case OP_ASINH: return asinh(a);
    case OP_ACOSH: return acosh(a);
    case OP_ATANH: return atanh(a);
    case OP_ERF: return erf(a);
    case OP_ERFC: return erfc(a);
    case OP_SIGMOID: return sigmoid(a);
    case OP_RECIPROCAL: return T(1) / a;
    default: return a;
  }
}

template <class T>
__device__ T integer_operator(int op, T a, T b) {
  using U = decltype(T() + uint32_t());  // sums wrap
  switch (op) {
    case OP_ADD: return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    case OP_SUB: return static_cast<T>(static_cast<U>(a) - static_cast<U>(b));
    case OP_MUL: return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
    case OP_FLOORDIV: return static_cast<T>(floor_divide(int64_t(a), int64_t(b)));
    case OP_FMOD: return b == 0 || b == -1 ? T(0) : a % b;
    case OP_IPOW: return int_power(a, b > 0 ? b : T(0));
    case OP_MINIMUM: return a < b ? a : b;
    case OP_MAXIMUM: return a > b ? a : b;
    case OP_AND: return a & b;
    case OP_OR: return a | b;
    case OP_XOR: return a ^ b;
    case OP_NOT: return ~a;
    case OP_SHL: return static_cast<T>(static_cast<U>(a) << (b & (8 * sizeof(T) - 1)));
    case OP_SHR: return a >> (b & (8 * sizeof(T) - 1));
    case OP_NEG: return static_cast<T>(0 - static_cast<U>(a));
    case OP_ABS: return a < 0 ? static_cast<T>(0 - static_cast<U>(a)) : a;
    case OP_SIGN: return (a > 0) - (a < 0);
    default: return a;
  }
}

__device__ __forceinline__ float apply(int op, float a, float b, float c) {
  return float_operator(op, a, b, c);
}
__device__ __forceinline__ double apply(int op, double a, double b, double c) {
  return float_operator(op, a, b, c);
}
__device__ __forceinline__ int64_t apply(int op, int64_t a, int64_t b, int64_t) {
  return integer_operator(op, a, b);
}
__device__ __forceinline__ int32_t apply(int op, int32_t a, int32_t b, int32_t) {
  return integer_operator(op, a, b);
}
__device__ __forceinline__ uint32_t apply(int op, uint32_t a, uint32_t b, uint32_t) {
  switch (op) {
    case OP_AND: return a & b;
    case OP_OR: return a | b;
    case OP_XOR: return a ^ b;
    default: return a ^ 1;  // not
  }
}

// A float as an integer, as PyTorch's CPU kernels convert: what does not fit is the least integer.
template <class F>
__device__ __forceinline__ int64_t to_i64(F a) {
  return a >= F(-9223372036854775808.0) && a < F(9223372036854775808.0) ? static_cast<int64_t>(a)
                                                                        : INT64_MIN;
}
__device__ __forceinline__ int64_t to_i64(int64_t a) { return a; }
__device__ __forceinline__ int64_t to_i64(int32_t a) { return a; }
__device__ __forceinline__ int64_t to_i64(uint32_t a) { return a; }

template <class F>
__device__ __forceinline__ int32_t to_i32(F a) {
  return a >= F(-2147483648.0) && a < F(2147483648.0) ? static_cast<int32_t>(a) : INT32_MIN;
}
__device__ __forceinline__ int32_t to_i32(int64_t a) { return static_cast<int32_t>(a); }
__device__ __forceinline__ int32_t to_i32(int32_t a) { return a; }
__device__ __forceinline__ int32_t to_i32(uint32_t a) { return static_cast<int32_t>(a); }

// The value as memory type `type` holds it, in its compute type U.
template <class U, class T>
__device__ __forceinline__ U cast_element(int type, T a) {
  switch (type) {
    case T_F64: return static_cast<U>(static_cast<double>(a));
    case T_F32: return static_cast<U>(static_cast<float>(a));
    case T_BF16: return static_cast<U>(from_bf16(pack_bf16(static_cast<float>(a), 0.0f) & 0xffff));
    case T_F16: return static_cast<U>(from_f16(pack_f16(static_cast<float>(a), 0.0f) & 0xffff));
    case T_I64: return static_cast<U>(to_i64(a));
    case T_I32: return static_cast<U>(to_i32(a));
    case T_I16: return static_cast<U>(static_cast<int16_t>(to_i32(a)));
    case T_I8: return static_cast<U>(static_cast<int8_t>(to_i32(a)));
    case T_U8: return static_cast<U>(static_cast<uint8_t>(to_i32(a)));
    default: return static_cast<U>(a != 0);
  }
}

__device__ __forceinline__ constexpr int compute_type(int type) {
  return type == T_BF16 || type == T_F16                     ? int{T_F32}
         : type == T_I16 || type == T_I8 || type == T_U8 ? int{T_I32}
                                                             : type;
}

// dst = op(a, b, c) on elements in shared memory; `pc` is where the arguments go on.
__device__ __forceinline__ void slow_scalar(const Tile& t, int op, Instruction own, int& pc) {
  int to = own.dst(), at_c = kNowhere;
  if (op == OP_FMA || op == OP_SELECT) at_c = static_cast<int>(t.words[pc++]);
  with_type(own.type(), [&](auto zero) {
    using T = decltype(zero);
    bool selects = op == OP_SELECT;
    Source<uint32_t> mask{own.a(), 0};
    Source<T> a{own.a(), T()};
    if (own.a() == kImmediate) {
      mask.value = static_cast<uint32_t>(t.words[pc]);
      a.value = immediate<T>(t.words[pc++]);
    }
    Source<T> b = source<T>(t, own.b(), pc), c = source<T>(t, at_c, pc);
#pragma unroll 1
    for (int e = 0; e < t.groups * kRun; e += step_of(to)) {
      T y = own.b() == kNowhere ? T() : b.at(t, e);
      if (selects) {
        put<T>(t, to, e, mask.at(t, e) ? y : c.at(t, e));
        continue;
      }
      T x = a.at(t, e), z = at_c == kNowhere ? T() : c.at(t, e);
      bool truth;
      if (compares(op, x, y, truth))
        put<uint32_t>(t, to, e, truth);
      else
        put<T>(t, to, e, apply(op, x, y, z));
    }
  });
}

__device__ __forceinline__ void slow_cast(const Tile& t, Instruction own, int& pc) {
  int type = own.type2(), to = own.dst();
  with_type(own.type(), [&](auto zero) {
    using T = decltype(zero);
    Source<T> a = source<T>(t, own.a(), pc);
#pragma unroll 1
    for (int e = 0; e < t.groups * kRun; e += step_of(to)) {
      T x = a.at(t, e);
      switch (compute_type(type)) {
        case T_F64: put<double>(t, to, e, cast_element<double>(type, x)); break;
        case T_F32: put<float>(t, to, e, cast_element<float>(type, x)); break;
        case T_I64: put<int64_t>(t, to, e, cast_element<int64_t>(type, x)); break;
        case T_I32: put<int32_t>(t, to, e, cast_element<int32_t>(type, x)); break;
        default: put<uint32_t>(t, to, e, cast_element<uint32_t>(type, x));
      }
    }
  });
}

// dst = a: MOVE, and CONST as a move of an immediate.
__device__ __forceinline__ void slow_move(const Tile& t, Instruction own, int& pc) {
  with_type(own.type(), [&](auto zero) {
    using T = decltype(zero);
    Source<T> a = source<T>(t, own.a(), pc);
#pragma unroll 1
    for (int e = 0; e < t.groups * kRun; e += step_of(own.dst())) put<T>(t, own.dst(), e, a.at(t, e));
  });
}

// dst = the coordinate along a dimension.
__device__ __forceinline__ void iota(const Tile& t, Instruction own, int& pc) {
  int d = static_cast<int>(t.words[pc++]);
  int64_t first = t.start(d);
#pragma unroll 1
  for (int e = 0; e < t.groups * kRun; e += step_of(own.dst())) {
    int g = e / kRun;
    int64_t inside = d == t.row() ? t.i(g) : d == t.column() ? t.column_of(g, e % kRun) : 0;
    put<int64_t>(t, own.dst(), e, first + inside);
  }
}

}  // namespace vtc
