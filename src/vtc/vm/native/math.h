// Elementary functions of float vectors, at most 2 ulp from the true value.
//
// Range reductions are Cody and Waite's; the polynomials are minimax fits of our own (Lawson's
// iteration, coefficients rounded to float one after the other). Functions that are rarely hot, and
// all of them where there is no fused multiply-add, call the C library an element at a time.
#pragma once

#include "erf_table.h"
#include "simd.h"

namespace vtc::VTC_ISA {

template <class V, class... C>
inline V horner(V, float c) {
  return splat(c);
}

// c0 + x * (c1 + x * (c2 + ...)).
template <class... C>
inline f32v horner(f32v x, float c0, float c1, C... rest) {
  return fma(horner(x, c1, rest...), x, splat(c0));
}

inline i32v to_int(f32v x) { return __builtin_convertvector(x, i32v); }
inline f32v to_float(i32v x) { return __builtin_convertvector(x, f32v); }

// p * 2^n for integral n in [-252, 254]: two factors, so that results may be denormal or infinite.
inline f32v scale(f32v p, f32v n) {
#if defined(__AVX512F__)
  return (f32v)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  i32v whole = to_int(n);
  i32v half = whole >> 1;
  f32v a = (f32v)((half + 127) << 23);
  f32v b = (f32v)((whole - half + 127) << 23);
  return p * a * b;
#endif
}

constexpr float kLog2e = 1.44269504f;
constexpr float kLn2High = 0.6931471229f;  // 24 bits: exact products come from fma
constexpr float kLn2Low = 5.769998879e-08f;

// x, or the bound that it exceeds; keeps NaN.
#if defined(__AVX512F__)
inline f32v at_least(float low, f32v x) {
  return (f32v)_mm512_max_ps((__m512)splat(low), (__m512)x);
}
inline f32v at_most(float high, f32v x) {
  return (f32v)_mm512_min_ps((__m512)splat(high), (__m512)x);
}
#else
inline f32v at_least(float low, f32v x) { return x < splat(low) ? splat(low) : x; }
inline f32v at_most(float high, f32v x) { return x > splat(high) ? splat(high) : x; }
#endif

inline f32v clamp(f32v x, float low, float high) { return at_most(high, at_least(low, x)); }

inline f32v vexp(f32v x) {
  x = clamp(x, -104.0f, 89.0f);
  f32v n = vround<0>(x * kLog2e);
  f32v r = fma(n, splat(-kLn2High), x);
  r = fma(n, splat(-kLn2Low), r);
  f32v p = horner(r, 0.49999994f, 0.166665196f, 0.04166824f, 0.00836882368f, 0.00138232135f);
  return scale(fma(p * r, r, r) + 1.0f, n);
}

inline f32v vexp2(f32v x) {
  x = clamp(x, -151.0f, 129.0f);
  f32v n = vround<0>(x);
  f32v f = x - n;
  f32v p = horner(f, 0.693147182f, 0.240226507f, 0.0555040576f, 0.00961807836f, 0.00133372715f,
                  0.00015455985f, 1.44789929e-05f);
  return scale(fma(p, f, splat(1.0f)), n);
}

inline f32v vexpm1(f32v a) {
  f32v x = clamp(a, -20.0f, 89.0f);
  f32v n = vround<0>(x * kLog2e);
  f32v r = fma(n, splat(-kLn2High), x);
  r = fma(n, splat(-kLn2Low), r);
  f32v p = horner(r, 0.5f, 0.166666657f, 0.0416664779f, 0.00833356567f, 0.0013933708f,
                  0.000197442845f);
  p = fma(p * r, r, r);
  // 2^127 * 2 at the top, where 2^n alone is infinite too early.
  f32v top = n > 127.0f ? splat(1.0f) : splat(0.0f);
  f32v s = scale(splat(1.0f), n - top);
  f32v e = fma(p, s, s - scale(splat(1.0f), -top));
  e = top > 0.0f ? e * 2.0f : e;
  // Small arguments are their own result: -0, denormals.
  return vabs(a) < 1e-7f ? a : e;
}

// 1 / x for x in [1, 2], or NaN, within an ulp: a step of Newton's from 14 bits takes half as long as
// a division.
inline f32v near_reciprocal(f32v x) {
#if defined(__AVX512F__)
  f32v y = (f32v)_mm512_rcp14_ps((__m512)x);
  return fma(fma(-x, y, splat(1.0f)), y, y);
#else
  return 1.0f / x;
#endif
}

// With e = exp(-|x|): 1 / (1 + e), or e / (1 + e), written as e - e * (e / (1 + e)) so that the
// rounding of the quotient weighs little.
inline f32v vsigmoid(f32v x) {
  f32v e = vexp(-vabs(x));
  f32v q = near_reciprocal(1.0f + e);
  return x < 0.0f ? fma(-e, e * q, e) : q;
}

inline f32v vtanh(f32v x) {
  f32v s = x * x;
  f32v near = horner(s, -0.333332777f, 0.133313239f, -0.0537295304f, 0.0206048731f,
                     -0.00566571904f);
  near = fma(near * s, x, x);
  f32v t = vabs(x);
  f32v far = copysign(1.0f - 2.0f / (vexp(2.0f * t) + 1.0f), x);
  return t < 0.625f ? near : far;
}

// x = 2^e * (1 + f), 1 + f in [sqrt(1/2), sqrt(2)), for x positive and finite; returns log(1 + f).
inline f32v log_parts(f32v x, f32v& e) {
  i32v small = x < 1.17549435e-38f;
  x = small ? x * 8388608.0f : x;
  i32v bits = (i32v)x - 0x3f3504f3;
  e = to_float((bits >> 23) - (small & 23));
  f32v f = (f32v)((bits & 0x7fffff) + 0x3f3504f3) - 1.0f;
  f32v p = horner(f, 0.333333135f, -0.250000149f, 0.200020805f, -0.166677222f, 0.142199099f,
                  -0.124099739f, 0.118905343f, -0.116534755f, 0.0671542883f);
  f32v square = f * f;
  return fma(square, fma(p, f, splat(-0.5f)), f);
}

// The values of a logarithm outside the finite positive numbers.
inline f32v log_edges(f32v x, f32v result) {
  result = x == splat(INFINITY) ? x : result;
  result = x == 0.0f ? splat(-INFINITY) : result;
  return (x < 0.0f) | (x != x) ? splat(NAN) : result;
}

inline f32v vlog(f32v x) {
  f32v e;
  f32v l = log_parts(x, e);
  l = fma(e, splat(kLn2Low), l);
  return log_edges(x, fma(e, splat(kLn2High), l));
}

inline f32v vlog2(f32v x) {
  f32v e;
  f32v l = log_parts(x, e);
  return log_edges(x, fma(l, splat(kLog2e), e) + l * 1.925963033e-8f);
}

inline f32v vlog10(f32v x) {
  f32v e;
  f32v l = log_parts(x, e);
  f32v low = fma(e, splat(4.605039067e-06f), l * 0.4342944819f);
  return log_edges(x, fma(e, splat(0.3010253906f), low));
}

// log(u) for u = 1 + x rounded, corrected by what the rounding lost.
inline f32v vlog1p(f32v x) {
  f32v u = 1.0f + x;
  f32v e;
  f32v l = log_parts(u, e);
  f32v lost = (x - (u - 1.0f)) / u;
  l = fma(e, splat(kLn2Low), l + lost);
  l = log_edges(u, fma(e, splat(kLn2High), l));
  return vabs(x) < 1e-7f ? x : l;
}

#if defined(__AVX512F__)
// A permutation looks the coefficients of 16 intervals up.
inline f32v verf(f32v x) {
  f32v t = at_most(3.99999f, vabs(x));
  f32v whole = vround<1>(t * 4.0f);
  f32v u = fma(whole, splat(-0.25f), t) - 0.125f;
  __m512i interval = _mm512_cvttps_epi32((__m512)whole);
  auto coefficient = [&](int d) {
    return (f32v)_mm512_permutexvar_ps(interval, _mm512_load_ps(kErf[d]));
  };
  f32v q = fma(coefficient(5), u, coefficient(4));
  q = fma(q, u, coefficient(3));
  q = fma(q, u, coefficient(2));
  q = fma(q, u, coefficient(1));
  q = fma(q, u, coefficient(0));
  return copysign(at_most(1.0f, t * q), x);
}
#else
inline f32v verf(f32v x) {
  f32v t = vabs(x);
  f32v s = x * x;
  f32v near = horner(s, 0.128379166f, -0.376126319f, 0.112836763f, -0.0268585328f, 0.00519914785f,
                     -0.0008123187f, 8.2930128e-05f);
  near = fma(near, x, x);
  f32v u = clamp(t, 0.0f, 4.0f);
  f32v far = horner(u, 0.128648534f, 0.635151148f, 0.106237136f, -0.0237622652f, 0.00364254415f,
                    -0.000322821987f, 1.12328225e-05f);
  far = copysign(1.0f - vexp(-fma(far, u, u)), x);
  return t < 0.925f ? near : (x != x ? x : far);
}
#endif

// sin(x), or cos(x) if `quarter` is 1, for |x| <= kTrigLimit.
constexpr float kTrigLimit = 20000.0f;

inline f32v sine(f32v x, int32_t quarter) {
  f32v n = vround<0>(x * 0.636619772f);
  f32v r = fma(n, splat(-1.570796251f), x);
  r = fma(n, splat(-7.549789416e-08f), r);
  r = fma(n, splat(-5.390302953e-15f), r);
  i32v q = to_int(n) + quarter;
  f32v s = r * r;
  f32v sin_p = horner(s, -0.166666672f, 0.00833337288f, -0.000198502865f, 2.80418317e-06f);
  f32v sin_r = fma(sin_p * s, r, r);
  f32v cos_p = horner(s, 0.0416666679f, -0.00138889754f, 2.48201723e-05f, -2.87015155e-07f);
  f32v cos_r = fma(cos_p * s, s, fma(s, splat(-0.5f), splat(1.0f)));
  f32v value = (q & 1) != 0 ? cos_r : sin_r;
  return (f32v)((i32v)value ^ ((q & 2) << 30));
}

inline f32v vsin(f32v x) {
  if (any(!(vabs(x) <= kTrigLimit))) return each(x, [](float v) { return std::sin(v); });
  return vabs(x) < 1e-4f ? x : sine(x, 0);
}

inline f32v vcos(f32v x) {
  if (any(!(vabs(x) <= kTrigLimit))) return each(x, [](float v) { return std::cos(v); });
  return sine(x, 1);
}

}  // namespace vtc::VTC_ISA
