// Vectors of one register of the instruction set that this file is compiled for.
//
// Every source of the interpreter that computes is compiled once an instruction set, with VTC_ISA
// naming its namespace; what a vector operation is written with is GCC's vector extension, and
// intrinsics only where it has no words (rounding, square roots, fused multiply-add, masked tails).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__FMA__) || defined(__aarch64__)
#define VTC_HAS_FMA 1
#else
#define VTC_HAS_FMA 0
#endif

namespace vtc::VTC_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class T, int N>
struct VectorOf {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
};

template <class T>
constexpr int lanes = kVectorBytes / static_cast<int>(sizeof(T));

template <class T>
using Vec = typename VectorOf<T, lanes<T>>::type;

// N elements of a narrow type: what a vector of a wide one is converted from.
template <class T, int N>
using Part = typename VectorOf<T, N>::type;

using f32v = Vec<float>;
using f64v = Vec<double>;
using i32v = Vec<int32_t>;
using i64v = Vec<int64_t>;

template <class V>
using ElementOf = std::remove_cv_t<std::remove_reference_t<decltype(std::declval<V>()[0])>>;

template <class V>
inline V load(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <class V>
inline void store(void* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

template <class T>
inline Vec<T> splat(T x) {
  return x - Vec<T>{};
}

// The first n elements at p, n less than a whole vector; the others 0.
template <class V>
inline V load_tail(const void* p, int64_t n) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64 && sizeof(ElementOf<V>) == 4)
    return (V)_mm512_maskz_loadu_epi32(static_cast<__mmask16>((1u << n) - 1), p);
  if constexpr (sizeof(V) == 64 && sizeof(ElementOf<V>) == 8)
    return (V)_mm512_maskz_loadu_epi64(static_cast<__mmask8>((1u << n) - 1), p);
#endif
  V v{};
  std::memcpy(&v, p, n * sizeof(ElementOf<V>));
  return v;
}

template <class V>
inline void store_tail(void* p, V v, int64_t n) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64 && sizeof(ElementOf<V>) == 4) {
    _mm512_mask_storeu_epi32(p, static_cast<__mmask16>((1u << n) - 1), (__m512i)v);
    return;
  }
  if constexpr (sizeof(V) == 64 && sizeof(ElementOf<V>) == 8) {
    _mm512_mask_storeu_epi64(p, static_cast<__mmask8>((1u << n) - 1), (__m512i)v);
    return;
  }
#endif
  std::memcpy(p, &v, n * sizeof(ElementOf<V>));
}

// a * b + c: rounded once where the processor can.
template <class V>
inline V fma(V a, V b, V c) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<V, f32v>) return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
  if constexpr (std::is_same_v<V, f64v>)
    return (V)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__)
  if constexpr (std::is_same_v<V, f32v>) return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
  if constexpr (std::is_same_v<V, f64v>)
    return (V)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif VTC_HAS_FMA
  V r;
  for (int i = 0; i < lanes<ElementOf<V>>; ++i) r[i] = std::fma(a[i], b[i], c[i]);
  return r;
#endif
  return a * b + c;
}

template <class V, class F>
inline V each(V a, F f) {
  V r;
  for (int i = 0; i < static_cast<int>(sizeof(V) / sizeof(ElementOf<V>)); ++i) r[i] = f(a[i]);
  return r;
}

inline f32v vsqrt(f32v a) {
#if defined(__AVX512F__)
  return (f32v)_mm512_sqrt_ps((__m512)a);
#elif defined(__AVX2__)
  return (f32v)_mm256_sqrt_ps((__m256)a);
#else
  return each(a, [](float x) { return std::sqrt(x); });
#endif
}

inline f64v vsqrt(f64v a) {
#if defined(__AVX512F__)
  return (f64v)_mm512_sqrt_pd((__m512d)a);
#elif defined(__AVX2__)
  return (f64v)_mm256_sqrt_pd((__m256d)a);
#else
  return each(a, [](double x) { return std::sqrt(x); });
#endif
}

// Rounding to an integral value: 0 nearest (ties to even), 1 down, 2 up, 3 to zero.
template <int Mode>
inline f32v vround(f32v a) {
#if defined(__AVX512F__)
  return (f32v)_mm512_roundscale_ps((__m512)a, Mode | 8);
#elif defined(__AVX2__)
  return (f32v)_mm256_round_ps((__m256)a, Mode | 8);
#else
  return each(a, [](float x) {
    return Mode == 0   ? std::nearbyint(x)
           : Mode == 1 ? std::floor(x)
           : Mode == 2 ? std::ceil(x)
                       : std::trunc(x);
  });
#endif
}

template <int Mode>
inline f64v vround(f64v a) {
#if defined(__AVX512F__)
  return (f64v)_mm512_roundscale_pd((__m512d)a, Mode | 8);
#elif defined(__AVX2__)
  return (f64v)_mm256_round_pd((__m256d)a, Mode | 8);
#else
  return each(a, [](double x) {
    return Mode == 0   ? std::nearbyint(x)
           : Mode == 1 ? std::floor(x)
           : Mode == 2 ? std::ceil(x)
                       : std::trunc(x);
  });
#endif
}

template <class V>
inline V vabs(V a) {
  using I = std::conditional_t<sizeof(ElementOf<V>) == 4, i32v, i64v>;
  using E = ElementOf<I>;
  constexpr E kMagnitude = sizeof(E) == 4 ? static_cast<E>(INT32_MAX) : static_cast<E>(INT64_MAX);
  return (V)((I)a & splat<E>(kMagnitude));
}

// a with the sign of s.
template <class V>
inline V copysign(V a, V s) {
  using I = std::conditional_t<sizeof(ElementOf<V>) == 4, i32v, i64v>;
  using E = ElementOf<I>;
  constexpr E kMagnitude = sizeof(E) == 4 ? static_cast<E>(INT32_MAX) : static_cast<E>(INT64_MAX);
  return (V)(((I)a & splat<E>(kMagnitude)) | ((I)s & splat<E>(~kMagnitude)));
}

// True if a lane of a mask (lanes 0 or -1) is set.
template <class M>
inline bool any(M m) {
#if defined(__AVX512F__)
  if constexpr (sizeof(M) == 64) return _mm512_test_epi32_mask((__m512i)m, (__m512i)m) != 0;
#elif defined(__AVX2__)
  if constexpr (sizeof(M) == 32) return !_mm256_testz_si256((__m256i)m, (__m256i)m);
#endif
  for (int i = 0; i < static_cast<int>(sizeof(M) / sizeof(ElementOf<M>)); ++i)
    if (m[i]) return true;
  return false;
}

template <class V, int... I>
inline auto half_of(V v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, I...);
}

template <class V, int... I>
inline auto upper_half_of(V v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (I + static_cast<int>(sizeof...(I)))...);
}

// The fold of all lanes, halves first.
template <class V, class F>
inline auto fold_vector(V v, F f) {
  constexpr int n = sizeof(V) / sizeof(ElementOf<V>);
  if constexpr (n > 2) {
    using Half = std::make_integer_sequence<int, n / 2>;
    return fold_vector(f(half_of(v, Half{}), upper_half_of(v, Half{})), f);
  } else {
    return f(static_cast<ElementOf<V>>(v[0]), static_cast<ElementOf<V>>(v[1]));
  }
}

#if defined(__AVX512F__)
// NaN if either is; the processor's gives the second operand then, and where both are zeros.
inline f32v vmax(f32v a, f32v b) {
  __m512 x = (__m512)a;
  return (f32v)_mm512_mask_mov_ps(_mm512_max_ps(x, (__m512)b), _mm512_cmp_ps_mask(x, x, 3), x);
}

inline f32v vmin(f32v a, f32v b) {
  __m512 x = (__m512)a;
  return (f32v)_mm512_mask_mov_ps(_mm512_min_ps(x, (__m512)b), _mm512_cmp_ps_mask(x, x, 3), x);
}
#endif

template <class V>
inline V vmax(V a, V b) {  // NaN if either is
  return (a > b) | (a != a) ? a : b;
}

template <class V>
inline V vmin(V a, V b) {
  return (a < b) | (a != a) ? a : b;
}

// As many bools as a vector has floats.
#if defined(__AVX512F__)
using FloatMask = __mmask16;

inline FloatMask load_mask(const uint8_t* m) {
  __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(m));
  return _mm_test_epi8_mask(bytes, bytes);
}

inline FloatMask load_mask_tail(const uint8_t* m, int64_t n) {
  FloatMask mask = 0;
  for (int64_t i = 0; i < n; ++i) mask |= static_cast<FloatMask>((m[i] != 0) << i);
  return mask;
}

inline f32v blend(FloatMask mask, f32v set, f32v other) {
  return (f32v)_mm512_mask_blend_ps(mask, (__m512)other, (__m512)set);
}
#else
using FloatMask = i32v;

inline FloatMask load_mask(const uint8_t* m) {
  return __builtin_convertvector(load<Part<uint8_t, lanes<float>>>(m), i32v) != 0;
}

inline FloatMask load_mask_tail(const uint8_t* m, int64_t n) {
  return __builtin_convertvector(load_tail<Part<uint8_t, lanes<float>>>(m, n), i32v) != 0;
}

inline f32v blend(FloatMask mask, f32v set, f32v other) { return mask ? set : other; }
#endif

}  // namespace vtc::VTC_ISA
