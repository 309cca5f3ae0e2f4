// Reductions and scans of dense tiles.
//
// Float sums and products run in lanes over blocks of at most 1024 elements (64 rows, down), and
// blocks are added in f64: the error stays that of a short sum however long the row.

#include "lanes.h"

namespace vtc::VTC_ISA {
namespace {

using u8 = uint8_t;

template <int F>
struct Fold;

template <>
struct Fold<FOLD_SUM> {
  template <class V>
  static V f(V a, V b) {
    return a + b;
  }
  template <class T>
  static T identity() {
    return 0;
  }
};

template <>
struct Fold<FOLD_PROD> {
  template <class V>
  static V f(V a, V b) {
    return a * b;
  }
  template <class T>
  static T identity() {
    return 1;
  }
};

template <class T>
constexpr T lowest() {
  if constexpr (std::is_floating_point_v<T>) return -INFINITY;
  return sizeof(T) == 8 ? static_cast<T>(INT64_MIN) : static_cast<T>(INT32_MIN);
}

template <class T>
constexpr T highest() {
  if constexpr (std::is_floating_point_v<T>) return INFINITY;
  return sizeof(T) == 8 ? static_cast<T>(INT64_MAX) : static_cast<T>(INT32_MAX);
}

template <>
struct Fold<FOLD_MAX> {
  template <class V>
  static V f(V a, V b) {
    return vmax(a, b);
  }
  template <class T>
  static T identity() {
    return lowest<T>();
  }
};

template <>
struct Fold<FOLD_MIN> {
  template <class V>
  static V f(V a, V b) {
    return vmin(a, b);
  }
  template <class T>
  static T identity() {
    return highest<T>();
  }
};

template <>
struct Fold<FOLD_ANY> {
  template <class V>
  static V f(V a, V b) {
    return a | b;
  }
  template <class T>
  static T identity() {
    return 0;
  }
};

template <>
struct Fold<FOLD_ALL> {
  template <class V>
  static V f(V a, V b) {
    return a & b;
  }
  template <class T>
  static T identity() {
    return 1;
  }
};

template <class O, class V>
inline auto fold_lanes(V v) {
  return fold_vector(v, [](auto a, auto b) { return O::f(a, b); });
}

#if defined(__AVX512F__)
// The extreme of n contiguous floats, found without a look at NaN in each step; false if one is NaN.
template <class O>
inline bool extreme_run(const float* p, int64_t n, float& result) {
  constexpr int w = lanes<float>;
  auto better = [](__m512 a, __m512 b) {
    return std::is_same_v<O, Fold<FOLD_MAX>> ? _mm512_max_ps(a, b) : _mm512_min_ps(a, b);
  };
  const __m512 none = _mm512_set1_ps(O::template identity<float>());
  __m512 a = none, b = none, c = none, d = none;
  __mmask16 nan = 0;
  int64_t i = 0;
  for (; i + 4 * w <= n; i += 4 * w) {
    __m512 x = _mm512_loadu_ps(p + i), y = _mm512_loadu_ps(p + i + w);
    __m512 z = _mm512_loadu_ps(p + i + 2 * w), u = _mm512_loadu_ps(p + i + 3 * w);
    nan |= _mm512_cmp_ps_mask(x, y, 3) | _mm512_cmp_ps_mask(z, u, 3);
    a = better(a, x), b = better(b, y), c = better(c, z), d = better(d, u);
  }
  for (; i + w <= n; i += w) {
    __m512 x = _mm512_loadu_ps(p + i);
    nan |= _mm512_cmp_ps_mask(x, x, 3);
    a = better(a, x);
  }
  float rest = O::template identity<float>();
  for (; i < n; ++i) rest = O::f(rest, p[i]);
  f32v all = (f32v)better(better(a, b), better(c, d));
  result = O::f(rest, fold_lanes<O>(all));
  return nan == 0;
}
#endif

// The fold of n contiguous elements.
template <class O, class T>
inline T fold_run(const T* p, int64_t n) {
#if defined(__AVX512F__)
  constexpr bool extreme = std::is_same_v<O, Fold<FOLD_MAX>> || std::is_same_v<O, Fold<FOLD_MIN>>;
  if constexpr (extreme && std::is_same_v<T, float>) {
    float found;
    if (extreme_run<O>(p, n, found)) return found;
  }
#endif
  constexpr int w = lanes<T>;
  Vec<T> none = splat(O::template identity<T>());
  int64_t i = 0;
  T rest = O::template identity<T>();
  if (n >= w) {
    Vec<T> a = none, b = none, c = none, d = none;
    for (; i + 4 * w <= n; i += 4 * w) {
      a = O::f(a, load<Vec<T>>(p + i));
      b = O::f(b, load<Vec<T>>(p + i + w));
      c = O::f(c, load<Vec<T>>(p + i + 2 * w));
      d = O::f(d, load<Vec<T>>(p + i + 3 * w));
    }
    for (; i + w <= n; i += w) a = O::f(a, load<Vec<T>>(p + i));
    rest = fold_lanes<O>(O::f(O::f(a, b), O::f(c, d)));
  }
  for (; i < n; ++i) rest = O::f(rest, p[i]);
  return rest;
}

template <class O, class T, class A>
inline void fold_line(A* acc, const T* p, int64_t n) {
  for (int64_t i = 0; i < n; i += 1024)
    *acc = O::f(*acc, static_cast<A>(fold_run<O>(p + i, n - i < 1024 ? n - i : 1024)));
}

template <class O, class T, class A>
void across(void* acc, const void* a, int64_t r, int64_t c) {
  for (int64_t i = 0; i < r; ++i)
    fold_line<O>(static_cast<A*>(acc) + i, static_cast<const T*>(a) + i * c, c);
}

template <class O, class T, class A>
void whole(void* acc, const void* a, int64_t r, int64_t c) {
  fold_line<O>(static_cast<A*>(acc), static_cast<const T*>(a), r * c);
}

template <class O, class T, class A>
void down(void* accv, const void* av, int64_t r, int64_t c) {
  A* acc = static_cast<A*>(accv);
  constexpr int w = lanes<T>;
  for (int64_t first = 0; first < r; first += 64) {
    int64_t rows = r - first < 64 ? r - first : 64;
    const T* a = static_cast<const T*>(av) + first * c;
    int64_t j = 0;
    for (; j + w <= c; j += w) {
      Vec<T> v = load<Vec<T>>(a + j), u = splat(O::template identity<T>());
      int64_t i = 1;
      for (; i + 2 <= rows; i += 2) {
        v = O::f(v, load<Vec<T>>(a + i * c + j));
        u = O::f(u, load<Vec<T>>(a + (i + 1) * c + j));
      }
      if (i < rows) v = O::f(v, load<Vec<T>>(a + i * c + j));
      v = O::f(v, u);
      using W = Part<A, w>;
      store(acc + j, O::f(load<W>(acc + j), __builtin_convertvector(v, W)));
    }
    for (; j < c; ++j) {
      T v = a[j];
      for (int64_t i = 1; i < rows; ++i) v = O::f(v, a[i * c + j]);
      acc[j] = O::f(acc[j], static_cast<A>(v));
    }
  }
}

template <class O, class T, class A>
void each_one(void* accv, const void* av, int64_t r, int64_t c) {
  A* acc = static_cast<A*>(accv);
  const T* a = static_cast<const T*>(av);
  for (int64_t i = 0; i < r * c; ++i) acc[i] = O::f(acc[i], static_cast<A>(a[i]));
}

// Does x at place i win over the best so far? NaN wins, and of equals the first place.
template <bool Max, class T>
inline bool wins(T x, int64_t i, T best, int64_t at) {
  if (at < 0) return true;
  bool nan = x != x, best_nan = best != best;
  if (nan | best_nan) return nan & (!best_nan | (i < at));
  return (Max ? x > best : x < best) || (x == best && i < at);
}

template <bool Max, class T, FoldShape Shape>
void arg(void* accv, int64_t* place, const void* av, int64_t r, int64_t c, Places at) {
  T* acc = static_cast<T*>(accv);
  const T* a = static_cast<const T*>(av);
  for (int64_t i = 0; i < r; ++i)
    for (int64_t j = 0; j < c; ++j) {
      int64_t k = Shape == kAcross ? i : Shape == kDown ? j : Shape == kWhole ? 0 : i * c + j;
      int64_t here = at.first + i * at.row + j * at.column;
      if (wins<Max>(a[i * c + j], here, acc[k], place[k])) acc[k] = a[i * c + j], place[k] = here;
    }
}

template <class O, class T, class A>
void scan(void* dv, void* carryv, const void* av, int64_t r, int64_t c, int axis) {
  T* d = static_cast<T*>(dv);
  A* carry = static_cast<A*>(carryv);
  const T* a = static_cast<const T*>(av);
  for (int64_t i = 0; i < r; ++i)
    for (int64_t j = 0; j < c; ++j) {
      A& sum = carry[axis == 1 ? i : axis == 0 ? j : i * c + j];
      sum = O::f(sum, static_cast<A>(a[i * c + j]));
      d[i * c + j] = static_cast<T>(sum);
    }
}

template <int F, class T, class A = T>
void fill_one(Table& t, int type) {
  using O = Fold<F>;
  t.fold[F][type][kAcross] = across<O, T, A>;
  t.fold[F][type][kDown] = down<O, T, A>;
  t.fold[F][type][kWhole] = whole<O, T, A>;
  t.fold[F][type][kEach] = each_one<O, T, A>;
  t.merge[F][type] = each_one<O, A, A>;
  t.scan[F][type] = scan<O, T, A>;
}

template <bool Max, class T>
void fill_arg(Table& t, int type) {
  ArgTile* row = t.arg[Max ? 0 : 1][type];
  row[kAcross] = arg<Max, T, kAcross>;
  row[kDown] = arg<Max, T, kDown>;
  row[kWhole] = arg<Max, T, kWhole>;
  row[kEach] = arg<Max, T, kEach>;
}

template <int F, class Float>
void fill_numbers(Table& t) {
  fill_one<F, double>(t, T_F64);
  fill_one<F, float, Float>(t, T_F32);
  fill_one<F, int64_t>(t, T_I64);
  fill_one<F, int32_t>(t, T_I32);
}

}  // namespace

void fill_fold(Table& t) {
  fill_numbers<FOLD_SUM, double>(t);
  fill_numbers<FOLD_PROD, double>(t);
  fill_numbers<FOLD_MAX, float>(t);
  fill_numbers<FOLD_MIN, float>(t);
  fill_one<FOLD_ANY, u8>(t, T_BOOL);
  fill_one<FOLD_ALL, u8>(t, T_BOOL);
  fill_arg<true, double>(t, T_F64);
  fill_arg<true, float>(t, T_F32);
  fill_arg<true, int64_t>(t, T_I64);
  fill_arg<true, int32_t>(t, T_I32);
  fill_arg<false, double>(t, T_F64);
  fill_arg<false, float>(t, T_F32);
  fill_arg<false, int64_t>(t, T_I64);
  fill_arg<false, int32_t>(t, T_I32);
}

}  // namespace vtc::VTC_ISA
