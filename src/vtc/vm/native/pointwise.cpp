// Scalar operators of the instruction set over dense runs of elements.

#include "functions.h"
#include "lanes.h"

namespace vtc::VTC_ISA {
namespace {

using u8 = uint8_t;

// The lanes of a mask as bools.
template <class V>
inline auto bools(V mask) {
  constexpr int n = sizeof(V) / sizeof(ElementOf<V>);
  return __builtin_convertvector(-mask, Part<u8, n>);
}

template <bool Splat, class T>
inline auto operand(const T* p, int64_t i) {
  if constexpr (Splat)
    return splat(*p);
  else
    return load<Vec<T>>(p + i);
}

template <bool Splat, class T>
inline auto operand_tail(const T* p, int64_t i, int64_t n) {
  if constexpr (Splat)
    return splat(*p);
  else
    return load_tail<Vec<T>>(p + i, n);
}

template <class F, class T, class R>
void map1(void* dv, const void* av, const void*, const void*, int64_t n, unsigned) {
  R* d = static_cast<R*>(dv);
  const T* a = static_cast<const T*>(av);
  constexpr int w = lanes<T>;
  auto apply = [](Vec<T> x) {
    if constexpr (std::is_same_v<T, R>)
      return F::f(x);
    else
      return bools(F::f(x));
  };
  int64_t i = 0;
  for (; i + w <= n; i += w) store(d + i, apply(load<Vec<T>>(a + i)));
  if (i < n) store_tail(d + i, apply(load_tail<Vec<T>>(a + i, n - i)), n - i);
}

template <class F, class T, class R, bool SA, bool SB>
void loop2(R* d, const T* a, const T* b, int64_t n) {
  constexpr int w = lanes<T>;
  auto apply = [](Vec<T> x, Vec<T> y) {
    if constexpr (std::is_same_v<decltype(F::f(x, y)), Vec<R>>)
      return F::f(x, y);
    else
      return bools(F::f(x, y));
  };
  int64_t i = 0;
  for (; i + w <= n; i += w) store(d + i, apply(operand<SA>(a, i), operand<SB>(b, i)));
  if (i < n) {
    int64_t rest = n - i;
    store_tail(d + i, apply(operand_tail<SA>(a, i, rest), operand_tail<SB>(b, i, rest)), rest);
  }
}

template <class F, class T, class R>
void map2(void* d, const void* a, const void* b, const void*, int64_t n, unsigned splat) {
  auto* dt = static_cast<R*>(d);
  auto* at = static_cast<const T*>(a);
  auto* bt = static_cast<const T*>(b);
  switch (splat & 3) {
    case 0: return loop2<F, T, R, false, false>(dt, at, bt, n);
    case 1: return loop2<F, T, R, true, false>(dt, at, bt, n);
    case 2: return loop2<F, T, R, false, true>(dt, at, bt, n);
    default: return loop2<F, T, R, true, true>(dt, at, bt, n);
  }
}

template <class T, bool SA, bool SB, bool SC>
void loop_fma(T* d, const T* a, const T* b, const T* c, int64_t n) {
  constexpr int w = lanes<T>;
  int64_t i = 0;
  for (; i + w <= n; i += w)
    store(d + i, fma(operand<SA>(a, i), operand<SB>(b, i), operand<SC>(c, i)));
  if (i < n) {
    int64_t rest = n - i;
    Vec<T> r = fma(operand_tail<SA>(a, i, rest), operand_tail<SB>(b, i, rest),
                   operand_tail<SC>(c, i, rest));
    store_tail(d + i, r, rest);
  }
}

template <class T>
void map_fma(void* dv, const void* av, const void* bv, const void* cv, int64_t n, unsigned splat) {
  auto* d = static_cast<T*>(dv);
  auto* a = static_cast<const T*>(av);
  auto* b = static_cast<const T*>(bv);
  auto* c = static_cast<const T*>(cv);
  switch (splat & 7) {
    case 0: return loop_fma<T, false, false, false>(d, a, b, c, n);
    case 1: return loop_fma<T, true, false, false>(d, a, b, c, n);
    case 2: return loop_fma<T, false, true, false>(d, a, b, c, n);
    case 3: return loop_fma<T, true, true, false>(d, a, b, c, n);
    case 4: return loop_fma<T, false, false, true>(d, a, b, c, n);
    case 5: return loop_fma<T, true, false, true>(d, a, b, c, n);
    case 6: return loop_fma<T, false, true, true>(d, a, b, c, n);
    default: return loop_fma<T, true, true, true>(d, a, b, c, n);
  }
}

template <class T>
inline Vec<T> choose(const u8* m, Vec<T> b, Vec<T> c) {
  if constexpr (sizeof(T) == 4) {
    return (Vec<T>)blend(load_mask(m), (f32v)b, (f32v)c);
  } else {
    auto set = load<Part<u8, lanes<T>>>(m);
    if constexpr (sizeof(T) == 1) {
      return set != 0 ? b : c;
    } else {
#if defined(__AVX512F__)
      __mmask8 mask = static_cast<__mmask8>(_mm_test_epi8_mask(
          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(m)), _mm_set1_epi8(-1)));
      return (Vec<T>)_mm512_mask_blend_pd(mask, (__m512d)c, (__m512d)b);
#else
      return __builtin_convertvector(set, i64v) != 0 ? b : c;
#endif
    }
  }
}

template <class T, bool SB, bool SC>
void loop_select(T* d, const u8* m, const T* b, const T* c, int64_t n) {
  constexpr int w = lanes<T>;
  int64_t i = 0;
  for (; i + w <= n; i += w)
    store(d + i, choose<T>(m + i, operand<SB>(b, i), operand<SC>(c, i)));
  for (; i < n; ++i) d[i] = m[i] ? b[SB ? 0 : i] : c[SC ? 0 : i];
}

template <class T>
void map_select(void* dv, const void* av, const void* bv, const void* cv, int64_t n,
                unsigned splat) {
  auto* d = static_cast<T*>(dv);
  auto* m = static_cast<const u8*>(av);
  auto* b = static_cast<const T*>(bv);
  auto* c = static_cast<const T*>(cv);
  if (splat & 1) {
    const T* from = *m ? b : c;
    bool one = splat & (*m ? 2 : 4);
    for (int64_t i = 0; i < n; ++i) d[i] = from[one ? 0 : i];
    return;
  }
  switch (splat >> 1) {
    case 0: return loop_select<T, false, false>(d, m, b, c, n);
    case 1: return loop_select<T, true, false>(d, m, b, c, n);
    case 2: return loop_select<T, false, true>(d, m, b, c, n);
    default: return loop_select<T, true, true>(d, m, b, c, n);
  }
}

// An operator that has no vector form: F::s an element at a time.
template <class F, class T>
void each2(void* dv, const void* av, const void* bv, const void*, int64_t n, unsigned splat) {
  T* d = static_cast<T*>(dv);
  const T* a = static_cast<const T*>(av);
  const T* b = static_cast<const T*>(bv);
  const int64_t sa = splat & 1 ? 0 : 1, sb = splat & 2 ? 0 : 1;
  for (int64_t i = 0; i < n; ++i) d[i] = F::s(a[i * sa], b[i * sb]);
}

#define VTC_BINARY(Name, expression)           \
  struct Name {                                \
    template <class V>                         \
    static auto f(V a, V b) {                  \
      return expression;                       \
    }                                          \
  }
#define VTC_UNARY(Name, expression)            \
  struct Name {                                \
    template <class V>                         \
    static auto f(V a) {                       \
      return expression;                       \
    }                                          \
  }

VTC_BINARY(Sub, a - b);
VTC_BINARY(Add, a + b);
VTC_BINARY(Mul, a* b);
VTC_BINARY(Div, a / b);
VTC_BINARY(Eq, a == b);
VTC_BINARY(Ne, a != b);
VTC_BINARY(Lt, a < b);
VTC_BINARY(Le, a <= b);
VTC_BINARY(Gt, a > b);
VTC_BINARY(Ge, a >= b);
VTC_BINARY(And, (a & b));
VTC_BINARY(Or, (a | b));
VTC_BINARY(Xor, (a ^ b));
VTC_BINARY(Shl, a << b);
VTC_BINARY(Shr, a >> b);
VTC_BINARY(Min, vmin(a, b));
VTC_BINARY(Max, vmax(a, b));
VTC_UNARY(Neg, -a);
VTC_UNARY(AbsInt, (a < 0 ? -a : a));
VTC_UNARY(AbsFloat, vabs(a));
VTC_UNARY(Sign, (V)((a > 0 ? V{} + 1 : V{}) - (a < 0 ? V{} + 1 : V{})));
VTC_UNARY(Not, ~a);
VTC_UNARY(NotBool, a ^ 1);
VTC_UNARY(IsNan, a != a);
VTC_UNARY(IsInf, vabs(a) == splat(static_cast<ElementOf<V>>(INFINITY)));
VTC_UNARY(Floor, vround<1>(a));
VTC_UNARY(Ceil, vround<2>(a));
VTC_UNARY(Round, vround<0>(a));
VTC_UNARY(Trunc, vround<3>(a));
VTC_UNARY(Sqrt, vsqrt(a));
VTC_UNARY(Rsqrt, 1 / vsqrt(a));
VTC_UNARY(Reciprocal, 1 / a);

// A function of the C library.
#define VTC_LIBRARY(Name, expression)                               \
  struct Name {                                                     \
    template <class V>                                              \
    static V f(V a) {                                               \
      return each(a, [](auto x) -> decltype(x) { return expression; }); \
    }                                                               \
  }
VTC_LIBRARY(Tan, std::tan(x));
VTC_LIBRARY(Asin, std::asin(x));
VTC_LIBRARY(Acos, std::acos(x));
VTC_LIBRARY(Atan, std::atan(x));
VTC_LIBRARY(Sinh, std::sinh(x));
VTC_LIBRARY(Cosh, std::cosh(x));
VTC_LIBRARY(Asinh, std::asinh(x));
VTC_LIBRARY(Acosh, std::acosh(x));
VTC_LIBRARY(Atanh, std::atanh(x));
VTC_LIBRARY(Erfc, std::erfc(x));

struct Pow {
  template <class T>
  static T s(T a, T b) {
    return std::pow(a, b);
  }
};

struct Atan2 {
  template <class T>
  static T s(T a, T b) {
    return std::atan2(a, b);
  }
};

struct Fmod {
  template <class T>
  static T s(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      return std::fmod(a, b);
    } else {
      // The least integer over -1 traps, and x % 0 has no value of its own.
      return b == 0 || b == -1 ? 0 : a % b;
    }
  }
};

struct FloorDiv {
  template <class T>
  static T s(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (b == 0) return a / b;
      T mod = std::fmod(a, b);
      T quotient = (a - mod) / b;
      if (mod != 0 && (b < 0) != (mod < 0)) quotient -= 1;
      if (quotient == 0) return std::copysign(T(0), a / b);
      T whole = std::floor(quotient);
      return quotient - whole > T(0.5) ? whole + 1 : whole;
    } else {
      if (b == 0) return 0;
      if (b == -1) return static_cast<T>(0 - static_cast<std::make_unsigned_t<T>>(a));
      T quotient = a / b;
      return quotient - ((a % b != 0) & ((a < 0) != (b < 0)));
    }
  }
};

struct IntPow {
  template <class T>
  static T s(T a, T b) {
    using U = std::make_unsigned_t<T>;
    U result = 1, base = static_cast<U>(a);
    for (U e = b < 0 ? 0 : static_cast<U>(b); e; e >>= 1, base *= base)
      if (e & 1) result *= base;
    return static_cast<T>(result);
  }
};

template <class F>
void floats1(Map* row) {
  row[T_F32] = map1<F, float, float>;
  row[T_F64] = map1<F, double, double>;
}

template <class F>
void integers1(Map* row) {
  row[T_I32] = map1<F, int32_t, int32_t>;
  row[T_I64] = map1<F, int64_t, int64_t>;
}

template <class F>
void numbers2(Map* row) {
  row[T_F32] = map2<F, float, float>;
  row[T_F64] = map2<F, double, double>;
  row[T_I32] = map2<F, int32_t, int32_t>;
  row[T_I64] = map2<F, int64_t, int64_t>;
}

template <class F>
void compare(Map* row) {
  row[T_F32] = map2<F, float, u8>;
  row[T_F64] = map2<F, double, u8>;
  row[T_I32] = map2<F, int32_t, u8>;
  row[T_I64] = map2<F, int64_t, u8>;
  row[T_BOOL] = map2<F, u8, u8>;
}

template <class F>
void bits2(Map* row) {
  row[T_I32] = map2<F, int32_t, int32_t>;
  row[T_I64] = map2<F, int64_t, int64_t>;
  row[T_BOOL] = map2<F, u8, u8>;
}

template <class F, bool Floats, bool Integers>
void scalars2(Map* row) {
  if constexpr (Floats) {
    row[T_F32] = each2<F, float>;
    row[T_F64] = each2<F, double>;
  }
  if constexpr (Integers) {
    row[T_I32] = each2<F, int32_t>;
    row[T_I64] = each2<F, int64_t>;
  }
}

}  // namespace

void fill_pointwise(Table& t) {
  auto& m = t.map;
  numbers2<Add>(m[OP_ADD]);
  numbers2<Sub>(m[OP_SUB]);
  numbers2<Mul>(m[OP_MUL]);
  m[OP_DIV][T_F32] = map2<Div, float, float>;
  m[OP_DIV][T_F64] = map2<Div, double, double>;
  numbers2<Min>(m[OP_MINIMUM]);
  numbers2<Max>(m[OP_MAXIMUM]);
  scalars2<FloorDiv, true, true>(m[OP_FLOORDIV]);
  scalars2<Fmod, true, true>(m[OP_FMOD]);
  scalars2<Pow, true, false>(m[OP_POW]);
  scalars2<Atan2, true, false>(m[OP_ATAN2]);
  scalars2<IntPow, false, true>(m[OP_IPOW]);
  m[OP_FMA][T_F32] = map_fma<float>;
  m[OP_FMA][T_F64] = map_fma<double>;
  compare<Eq>(m[OP_EQ]);
  compare<Ne>(m[OP_NE]);
  compare<Lt>(m[OP_LT]);
  compare<Le>(m[OP_LE]);
  compare<Gt>(m[OP_GT]);
  compare<Ge>(m[OP_GE]);
  bits2<And>(m[OP_AND]);
  bits2<Or>(m[OP_OR]);
  bits2<Xor>(m[OP_XOR]);
  integers1<Not>(m[OP_NOT]);
  m[OP_NOT][T_BOOL] = map1<NotBool, u8, u8>;
  m[OP_SHL][T_I32] = map2<Shl, int32_t, int32_t>;
  m[OP_SHL][T_I64] = map2<Shl, int64_t, int64_t>;
  m[OP_SHR][T_I32] = map2<Shr, int32_t, int32_t>;
  m[OP_SHR][T_I64] = map2<Shr, int64_t, int64_t>;
  m[OP_ISNAN][T_F32] = map1<IsNan, float, u8>;
  m[OP_ISNAN][T_F64] = map1<IsNan, double, u8>;
  m[OP_ISINF][T_F32] = map1<IsInf, float, u8>;
  m[OP_ISINF][T_F64] = map1<IsInf, double, u8>;
  m[OP_SELECT][T_F32] = map_select<float>;
  m[OP_SELECT][T_F64] = map_select<double>;
  m[OP_SELECT][T_I32] = map_select<int32_t>;
  m[OP_SELECT][T_I64] = map_select<int64_t>;
  m[OP_SELECT][T_BOOL] = map_select<u8>;
  floats1<Neg>(m[OP_NEG]);
  integers1<Neg>(m[OP_NEG]);
  floats1<AbsFloat>(m[OP_ABS]);
  integers1<AbsInt>(m[OP_ABS]);
  floats1<Sign>(m[OP_SIGN]);
  integers1<Sign>(m[OP_SIGN]);
  floats1<Floor>(m[OP_FLOOR]);
  floats1<Ceil>(m[OP_CEIL]);
  floats1<Round>(m[OP_ROUND]);
  floats1<Trunc>(m[OP_TRUNC]);
  floats1<Exp>(m[OP_EXP]);
  floats1<Exp2>(m[OP_EXP2]);
  floats1<Expm1>(m[OP_EXPM1]);
  floats1<Log>(m[OP_LOG]);
  floats1<Log2>(m[OP_LOG2]);
  floats1<Log10>(m[OP_LOG10]);
  floats1<Log1p>(m[OP_LOG1P]);
  floats1<Sqrt>(m[OP_SQRT]);
  floats1<Rsqrt>(m[OP_RSQRT]);
  floats1<Sin>(m[OP_SIN]);
  floats1<Cos>(m[OP_COS]);
  floats1<Tan>(m[OP_TAN]);
  floats1<Asin>(m[OP_ASIN]);
  floats1<Acos>(m[OP_ACOS]);
  floats1<Atan>(m[OP_ATAN]);
  floats1<Sinh>(m[OP_SINH]);
  floats1<Cosh>(m[OP_COSH]);
  floats1<Tanh>(m[OP_TANH]);
  floats1<Asinh>(m[OP_ASINH]);
  floats1<Acosh>(m[OP_ACOSH]);
  floats1<Atanh>(m[OP_ATANH]);
  floats1<Erf>(m[OP_ERF]);
  floats1<Erfc>(m[OP_ERFC]);
  floats1<Sigmoid>(m[OP_SIGMOID]);
  floats1<Reciprocal>(m[OP_RECIPROCAL]);
}

}  // namespace vtc::VTC_ISA
