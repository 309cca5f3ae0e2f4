// Conversions between memory types and compute types, and casts between compute types.

#include "halves.h"
#include "lanes.h"
#include "transpose.h"

namespace vtc::VTC_ISA {
namespace {

using u8 = uint8_t;
using u16 = uint16_t;

struct BF16 {
  u16 bits;
};
struct F16 {
  u16 bits;
};
struct Bool {
  u8 value;
};

inline float bits_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline uint32_t float_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

inline float widen(BF16 x) { return bits_float(static_cast<uint32_t>(x.bits) << 16); }

inline float widen(F16 x) {
  uint32_t sign = (x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
  if (rest >= 0x7c00) return bits_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  // Denormals too: the exponent's bias is corrected by a multiplication.
  return bits_float(sign | float_bits(bits_float(rest << 13) * 0x1p112f));
}

inline int32_t widen(int8_t x) { return x; }
inline int32_t widen(u8 x) { return x; }
inline int32_t widen(int16_t x) { return x; }
inline u8 widen(Bool x) { return x.value != 0; }
template <class T>
inline T widen(T x) {
  return x;
}

template <class M>
struct Narrow {
  template <class T>
  static M of(T x) {
    return static_cast<M>(x);
  }
};

template <>
struct Narrow<Bool> {
  static Bool of(u8 x) { return {x}; }
};

template <>
struct Narrow<BF16> {
  static BF16 of(float x) {
    uint32_t bits = float_bits(x);
    if (x != x) return {0x7fc0};
    return {static_cast<u16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
  }
};

template <>
struct Narrow<F16> {
  static F16 of(float x) {
    uint32_t bits = float_bits(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return {static_cast<u16>(sign | 0x7e00)};
    if (rest >= 0x477ff000) return {static_cast<u16>(sign | 0x7c00)};
    if (rest < 0x38800000) {
      // Denormal halves: adding 0.5 leaves the rounded fraction in the low bits.
      uint32_t sum = float_bits(bits_float(rest) + 0.5f);
      return {static_cast<u16>(sign | (sum - 0x3f000000))};
    }
    rest += 0xc8000fff + (rest >> 13 & 1);
    return {static_cast<u16>(sign | rest >> 13)};
  }
};

// A vector of floats rounded to halves.
inline void narrow_lanes(BF16* p, f32v x) {
  using U = Part<uint32_t, lanes<float>>;
  U bits = (U)x;
  U rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  rounded = x != x ? U{} + 0x7fc0 : rounded;
  store(p, __builtin_convertvector(rounded, Part<u16, lanes<float>>));
}

inline void narrow_lanes(F16* p, f32v x) {
#if defined(__AVX512F__)
  store(p, _mm512_cvtps_ph((__m512)x, 0));
#elif defined(__F16C__)
  store(p, _mm256_cvtps_ph((__m256)x, 0));
#else
  for (int i = 0; i < lanes<float>; ++i) p[i] = Narrow<F16>::of(x[i]);
#endif
}

template <class M>
constexpr int half_type = std::is_same_v<M, BF16> ? T_BF16 : T_F16;

template <class M>
inline f32v widen_lanes(const M* p) {
  return load_floats<half_type<M>>(reinterpret_cast<const char*>(p));
}

template <class M>
constexpr bool is_half = std::is_same_v<M, BF16> || std::is_same_v<M, F16>;

template <class M>
using Computed = decltype(widen(std::declval<M>()));

// Every second of n floats; gives how many of them were read.
inline int64_t read_every_second(float* d, const float* s, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512F__)
  __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  for (; i + 16 < n; i += 16)  // the last vector may end behind the last element
    _mm512_storeu_ps(d + i, _mm512_permutex2var_ps(_mm512_loadu_ps(s + 2 * i), even,
                                                   _mm512_loadu_ps(s + 2 * i + 16)));
#endif
  return i;
}

template <class M>
void read(void* dv, int64_t dstep, const void* sv, int64_t sstep, int64_t n) {
  using T = Computed<M>;
  T* d = static_cast<T*>(dv);
  const M* s = static_cast<const M*>(sv);
  int64_t i = 0;
  if (dstep == 1 && sstep == 1) {
    if constexpr (std::is_same_v<M, T>) {
      std::memmove(d, s, n * sizeof(T));
      return;
    } else if constexpr (is_half<M>) {
      for (; i + lanes<T> <= n; i += lanes<T>) store(d + i, widen_lanes(s + i));
    } else if constexpr (!std::is_same_v<M, Bool>) {
      for (; i + lanes<T> <= n; i += lanes<T>)
        store(d + i, __builtin_convertvector(load<Part<M, lanes<T>>>(s + i), Vec<T>));
    }
  }
  if constexpr (std::is_same_v<M, float>)
    if (dstep == 1 && sstep == 2) i = read_every_second(d, s, n);
  for (; i < n; ++i) d[i * dstep] = widen(s[i * sstep]);
}

template <class M>
void write(void* dv, int64_t dstep, const void* sv, int64_t sstep, int64_t n) {
  using T = Computed<M>;
  M* d = static_cast<M*>(dv);
  const T* s = static_cast<const T*>(sv);
  int64_t i = 0;
  if (dstep == 1 && sstep == 1) {
    if constexpr (std::is_same_v<M, T> || std::is_same_v<M, Bool>) {
      std::memmove(d, s, n * sizeof(T));
      return;
    } else if constexpr (is_half<M>) {
      for (; i + lanes<T> <= n; i += lanes<T>) narrow_lanes(d + i, load<Vec<T>>(s + i));
    } else {
      for (; i + lanes<T> <= n; i += lanes<T>)
        store(d + i, __builtin_convertvector(load<Vec<T>>(s + i), Part<M, lanes<T>>));
    }
  }
  for (; i < n; ++i) d[i * dstep] = Narrow<M>::of(s[i * sstep]);
}

// One element of a compute type as memory type M, held in M's compute type.
template <class T, class M>
inline Computed<M> cast_one(T x) {
  if constexpr (std::is_same_v<M, Bool>) {
    return x != 0;
  } else if constexpr (is_half<M>) {
    return widen(Narrow<M>::of(static_cast<float>(x)));
  } else if constexpr (sizeof(M) < 4 && std::is_floating_point_v<T>) {
    return widen(static_cast<M>(static_cast<int32_t>(x)));
  } else {
    return widen(static_cast<M>(x));
  }
}

template <class T, class M>
void cast(void* dv, const void* sv, const void*, const void*, int64_t n, unsigned) {
  using R = Computed<M>;
  R* d = static_cast<R*>(dv);
  const T* s = static_cast<const T*>(sv);
  constexpr int w = kVectorBytes / (sizeof(T) > sizeof(R) ? sizeof(T) : sizeof(R));
  using S = Part<T, w>;
  using D = Part<R, w>;
  int64_t i = 0;
  if constexpr (std::is_same_v<T, float> && is_half<M>) {
    M held[w];
    for (; i + w <= n; i += w) {
      narrow_lanes(held, load<f32v>(s + i));
      store(d + i, widen_lanes(held));
    }
  } else if constexpr (std::is_same_v<M, Bool>) {
    if constexpr (!std::is_same_v<T, u8>)
      for (; i + w <= n; i += w) {
        auto set = load<Part<T, kVectorBytes / sizeof(T)>>(s + i) != 0;
        store(d + i, __builtin_convertvector(-set, Part<u8, kVectorBytes / sizeof(T)>));
        static_assert(kVectorBytes / sizeof(T) == w);
      }
  } else if constexpr (!is_half<M>) {
    for (; i + w <= n; i += w) {
      S x = load<S>(s + i);
      if constexpr (sizeof(M) < 4 && std::is_floating_point_v<T>) {
        auto whole = __builtin_convertvector(x, Part<int32_t, w>);
        store(d + i, __builtin_convertvector(__builtin_convertvector(whole, Part<M, w>), D));
      } else {
        store(d + i, __builtin_convertvector(__builtin_convertvector(x, Part<M, w>), D));
      }
    }
  }
  for (; i < n; ++i) d[i] = cast_one<T, M>(s[i]);
}

template <class T>
void fill_casts(Map* row) {
  row[T_F64] = cast<T, double>;
  row[T_F32] = cast<T, float>;
  row[T_BF16] = cast<T, BF16>;
  row[T_F16] = cast<T, F16>;
  row[T_I64] = cast<T, int64_t>;
  row[T_I32] = cast<T, int32_t>;
  row[T_I16] = cast<T, int16_t>;
  row[T_I8] = cast<T, int8_t>;
  row[T_U8] = cast<T, u8>;
  row[T_BOOL] = cast<T, Bool>;
}

template <class M>
void fill_copies(Table& t, int type) {
  t.read[type] = read<M>;
  t.write[type] = write<M>;
}

void stream(void* dv, const void* sv, int64_t bytes) {
#if defined(__x86_64__)
  char* d = static_cast<char*>(dv);
  const char* s = static_cast<const char*>(sv);
  int64_t head = -reinterpret_cast<intptr_t>(d) & 63;
  if (head > bytes) head = bytes;
  std::memmove(d, s, head);
  d += head, s += head, bytes -= head;
  for (; bytes >= 64; d += 64, s += 64, bytes -= 64) {
#if defined(__AVX512F__)
    _mm512_stream_si512((__m512i*)d, _mm512_loadu_si512(s));
#else
    for (int i = 0; i < 64; i += 16)
      _mm_stream_si128((__m128i*)(d + i), _mm_loadu_si128((const __m128i*)(s + i)));
#endif
  }
  std::memmove(d, s, bytes);
  _mm_sfence();  // streamed lines are in no order with later stores, such as a barrier's
#else
  std::memmove(dv, sv, bytes);
#endif
}

void copy_rows(void* dv, int64_t dstep, const void* sv, int64_t sstep, int64_t m, int64_t n) {
  constexpr int w = lanes<float>;
  float* d = static_cast<float*>(dv);
  const float* s = static_cast<const float*>(sv);
  for (int64_t i = 0; i < m; ++i, d += dstep, s += sstep) {
    int64_t j = 0;
    for (; j + w <= n; j += w) store(d + j, load<f32v>(s + j));
    if (j < n) store_tail(d + j, load_tail<f32v>(s + j, n - j), n - j);
  }
}

// Three lines of m elements, sstep apart, to m triples one behind the other (the channels of a pixel);
// gives how many are done.
inline int64_t interleave_three(float* d, const float* s, int64_t sstep, int64_t m) {
  int64_t i = 0;
#if defined(__AVX512F__)
  // Element e of the 48 of a step is element e / 3 of line e % 3.
  struct Places {
    alignas(64) int32_t first[3][16] = {}, third[3][16] = {};
    __mmask16 of_third[3] = {};
    constexpr Places() {
      for (int e = 0; e < 48; ++e) {
        first[e / 16][e % 16] = e / 3 + (e % 3 == 1 ? 16 : 0);
        third[e / 16][e % 16] = e / 3;
        if (e % 3 == 2) of_third[e / 16] |= static_cast<__mmask16>(1u << e % 16);
      }
    }
  };
  static constexpr Places kPlaces;
  for (; i + 16 <= m; i += 16) {
    __m512 a = _mm512_loadu_ps(s + i), b = _mm512_loadu_ps(s + sstep + i);
    __m512 c = _mm512_loadu_ps(s + 2 * sstep + i);
    for (int k = 0; k < 3; ++k) {
      __m512 ab = _mm512_permutex2var_ps(a, _mm512_load_si512(kPlaces.first[k]), b);
      __m512i third = _mm512_load_si512(kPlaces.third[k]);
      _mm512_storeu_ps(d + 3 * i + 16 * k,
                       _mm512_mask_permutexvar_ps(ab, kPlaces.of_third[k], third, c));
    }
  }
#endif
  return i;
}

void turn(void* dv, int64_t dstep, const void* sv, int64_t sstep, int64_t m, int64_t n) {
  constexpr int w = lanes<float>;
  float* d = static_cast<float*>(dv);
  const float* s = static_cast<const float*>(sv);
  int64_t i = n == 3 && dstep == 3 ? interleave_three(d, s, sstep, m) : 0;
  for (; i + w <= m; i += w) {
    int64_t j = 0;
    for (; j + w <= n; j += w) {
      f32v v[w];
      for (int k = 0; k < w; ++k) v[k] = load<f32v>(s + (j + k) * sstep + i);
      transpose(v);
      for (int k = 0; k < w; ++k) store(d + (i + k) * dstep + j, v[k]);
    }
    for (; j < n; ++j)
      for (int k = 0; k < w; ++k) d[(i + k) * dstep + j] = s[j * sstep + i + k];
  }
  for (; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) d[i * dstep + j] = s[j * sstep + i];
}

}  // namespace

void fill_convert(Table& t) {
  fill_casts<double>(t.cast[T_F64]);
  fill_casts<float>(t.cast[T_F32]);
  fill_casts<int64_t>(t.cast[T_I64]);
  fill_casts<int32_t>(t.cast[T_I32]);
  fill_casts<u8>(t.cast[T_BOOL]);
  fill_copies<double>(t, T_F64);
  fill_copies<float>(t, T_F32);
  fill_copies<BF16>(t, T_BF16);
  fill_copies<F16>(t, T_F16);
  fill_copies<int64_t>(t, T_I64);
  fill_copies<int32_t>(t, T_I32);
  fill_copies<int16_t>(t, T_I16);
  fill_copies<int8_t>(t, T_I8);
  fill_copies<u8>(t, T_U8);
  fill_copies<Bool>(t, T_BOOL);
  t.stream = stream;
  t.turn = turn;
  t.copy_rows = copy_rows;
}

}  // namespace vtc::VTC_ISA
