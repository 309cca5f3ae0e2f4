// Folds an element at a time, in shared memory: parts of each thread, then threads that hold parts of
// one result, then parts that tasks have kept.
//
// `mode` says over which axes a fold runs: bit 0 rows, bit 1 columns.
#pragma once

#include "slow_memory.cuh"

namespace vtc {

template <class T>
__device__ __forceinline__ T join(int fold, T a, T b) {
  switch (fold) {
    case FOLD_SUM: return a + b;
    case FOLD_PROD: return a * b;
    case FOLD_MAX: return larger(a, b);
    case FOLD_MIN: return smaller(a, b);
    case FOLD_ANY: return static_cast<T>(a != 0 || b != 0);
    default: return static_cast<T>(a != 0 && b != 0);
  }
}

// Fold and mode, and the kind of what is folded, of the word behind the head.
struct FoldWord {
  Word w;

  __device__ __forceinline__ int fold() const { return w & 0xff; }
  __device__ __forceinline__ int mode() const { return w >> 8 & 3; }
  __device__ __forceinline__ int kind() const { return w >> 16 & 3; }
  __device__ __forceinline__ bool places() const {
    return fold() == FOLD_ARGMAX || fold() == FOLD_ARGMIN;
  }
};

// Does element e of group g of a value of a kind count in a fold?
__device__ __forceinline__ bool counts(const Tile& t, FoldWord f, bool to_narrow, int g, int e) {
  if (f.kind() & 1 && t.i(g) >= t.r) return false;
  if (f.kind() & 2 && t.column_of(g, e) >= t.c) return false;
  // One thread of a row stands for all of them where rows alone are folded.
  return !(to_narrow && f.mode() == 1 && t.j(g) != 0);
}

// Accumulators in shared memory as folds join their parts: of values alone, or with their places.
template <class T>
struct Parts {
  using Element = T;
  int fold, at;

  __device__ __forceinline__ T narrow(const Tile& t, int g) const {
    return *narrow_at<T>(t, at, g);
  }
  __device__ __forceinline__ void put_narrow(const Tile& t, int g, T x) const {
    *narrow_at<T>(t, at, g) = x;
  }
  __device__ __forceinline__ T wide(const Tile& t, int e) const { return *wide_at<T>(t, at, e); }
  __device__ __forceinline__ void put_wide(const Tile& t, int e, T x) const {
    *wide_at<T>(t, at, e) = x;
  }
  __device__ __forceinline__ T operator()(T a, T b) const { return join(fold, a, b); }
};

template <class T>
struct alignas(16) Found {
  T value;
  int64_t place;  // -1: none yet
};

// The one of two that argmax or argmin takes: the first one of equals, and NaN before any number.
template <class T>
__device__ __forceinline__ Found<T> better(int fold, Found<T> a, Found<T> b) {
  if (a.place < 0 || b.place < 0) return a.place < 0 ? b : a;
  bool a_none = a.value != a.value, b_none = b.value != b.value;
  if (a_none != b_none) return a_none ? a : b;
  if (a_none || a.value == b.value) return a.place < b.place ? a : b;
  return (a.value > b.value) == (fold == FOLD_ARGMAX) ? a : b;
}

template <class T>
struct FoundParts {
  using Element = Found<T>;
  int fold, at, places;

  __device__ __forceinline__ Found<T> narrow(const Tile& t, int g) const {
    return {*narrow_at<T>(t, at, g), *narrow_at<int64_t>(t, places, g)};
  }
  __device__ __forceinline__ void put_narrow(const Tile& t, int g, Found<T> x) const {
    *narrow_at<T>(t, at, g) = x.value;
    *narrow_at<int64_t>(t, places, g) = x.place;
  }
  __device__ __forceinline__ Found<T> wide(const Tile& t, int e) const {
    return {*wide_at<T>(t, at, e), *wide_at<int64_t>(t, places, e)};
  }
  __device__ __forceinline__ void put_wide(const Tile& t, int e, Found<T> x) const {
    *wide_at<T>(t, at, e) = x.value;
    *wide_at<int64_t>(t, places, e) = x.place;
  }
  __device__ __forceinline__ Found<T> operator()(Found<T> a, Found<T> b) const {
    return better(fold, a, b);
  }
};

// The accumulator that element e belongs to.
template <class P>
__device__ __forceinline__ typename P::Element part(const Tile& t, const P& p, bool narrow, int e) {
  return narrow ? p.narrow(t, e / kRun) : p.wide(t, e);
}
template <class P>
__device__ __forceinline__ void put_part(const Tile& t, const P& p, bool narrow, int e,
                                         typename P::Element x) {
  if (narrow)
    p.put_narrow(t, e / kRun, x);
  else
    p.put_wide(t, e, x);
}

// The parts of a narrow accumulator become the fold of its row's, or of the tile's.
template <class P>
__device__ __forceinline__ void join_narrow(const Tile& t, const P& p, bool all) {
  using E = typename P::Element;
  E* kept = reinterpret_cast<E*>(t.shared + t.scratch());
  int n = all ? t.groups * kThreads : t.slots();
  __syncthreads();
#pragma unroll 1
  for (int g = 0; g < t.groups; ++g) kept[g * kThreads + t.thread] = p.narrow(t, g);
  __syncthreads();
  int half = 1;
  while (half < n) half *= 2;
  for (half /= 2; half; half /= 2) {
#pragma unroll 1
    for (int g = 0; g < t.groups; ++g) {
      int s = g * kThreads + t.thread, q = all ? s : s % t.slots();
      if (q < half && q + half < n && s + half < t.groups * kThreads)
        kept[s] = p(kept[s], kept[s + half]);
    }
    __syncthreads();
  }
#pragma unroll 1
  for (int g = 0; g < t.groups; ++g) {
    int s = g * kThreads + t.thread;
    p.put_narrow(t, g, kept[all ? 0 : s - s % t.slots()]);
  }
  __syncthreads();
}

// The parts of a wide accumulator become the fold over the rows of the tile.
template <class P>
__device__ __forceinline__ void join_rows(const Tile& t, const P& p) {
  using E = typename P::Element;
  E* kept = reinterpret_cast<E*>(t.shared + t.scratch());
  int rows = t.groups * kThreads / t.slots();
#pragma unroll 1
  for (int e = 0; e < kRun; ++e) {
    __syncthreads();
#pragma unroll 1
    for (int g = 0; g < t.groups; ++g) kept[g * kThreads + t.thread] = p.wide(t, g * kRun + e);
    __syncthreads();
#pragma unroll 1
    for (int g = 0; g < t.groups; ++g) {
      int q = (g * kThreads + t.thread) % t.slots();
      E total = kept[q];
      for (int i = 1; i < rows; ++i) total = p(total, kept[i * t.slots() + q]);
      p.put_wide(t, g * kRun + e, total);
    }
  }
  __syncthreads();
}

template <class P>
__device__ __forceinline__ void join_parts(const Tile& t, FoldWord f, bool narrow, const P& p) {
  if (narrow) {
    if (f.mode()) join_narrow(t, p, f.mode() != 2);
  } else if (f.mode() & 1) {
    join_rows(t, p);
  }
}

// Calls f with the parts of an accumulator at `at`.
template <class T, class F>
__device__ __forceinline__ void with_parts(int fold, int at, int places, F f) {
  if (fold == FOLD_ARGMAX || fold == FOLD_ARGMIN)
    f(FoundParts<T>{fold, at, places});
  else
    f(Parts<T>{fold, at});
}

// Argmax and argmin: of each element that counts, with its place, by the strides of places behind.
template <class T>
__device__ __forceinline__ void accumulate_places(const Tile& t, FoldWord f, Instruction own, int& pc,
                                                  Source<T> a) {
  FoundParts<T> p{f.fold(), own.dst(), own.b()};
  bool narrow = own.dst() & kNarrow;
  int64_t first = 0, down = 0, across = 0;
  for (int d = 0; d < t.dims(); ++d) {
    int64_t stride = t.words.number(pc++);
    first += t.start(d) * stride;
    if (d == t.row() && f.kind() & 1) down = stride;
    if (d == t.column() && f.kind() & 2) across = stride;
  }
#pragma unroll 1
  for (int e = 0; e < t.groups * kRun; e += own.a() & kNarrow ? kRun : 1) {
    int g = e / kRun;
    if (!counts(t, f, narrow, g, e % kRun)) continue;
    int64_t place = first + t.i(g) * down + t.column_of(g, e % kRun) * across;
    put_part(t, p, narrow, e, p(part(t, p, narrow, e), Found<T>{a.at(t, e), place}));
  }
}

// dst, an accumulator of `type2`, = fold of dst and a.
__device__ __forceinline__ void slow_accumulate(const Tile& t, Instruction own, int& pc) {
  FoldWord f{t.words[pc++]};
  int to = own.dst();
  with_type(own.type(), [&](auto zero) {
    using T = decltype(zero);
    Source<T> a = source<T>(t, own.a(), pc);
    bool narrow = to & kNarrow, wide_source = !(own.a() & kNarrow);
    if (f.places()) return accumulate_places(t, f, own, pc, a);
#pragma unroll 1
    for (int e = 0; e < t.groups * kRun; e += wide_source ? 1 : kRun) {
      if (!counts(t, f, narrow, e / kRun, e % kRun)) continue;
      T x = a.at(t, e);
      if (own.type2() == T_F64) {
        double* total = narrow ? narrow_at<double>(t, to, e / kRun) : wide_at<double>(t, to, e);
        *total = join(f.fold(), *total, static_cast<double>(x));
      } else {
        T* total = narrow ? narrow_at<T>(t, to, e / kRun) : wide_at<T>(t, to, e);
        *total = join(f.fold(), *total, x);
      }
    }
  });
}

// dst = result of accumulator a of `type2` (places in b) as `type`, or as i64 where it is a place. Only
// joins its parts where dst is nowhere.
__device__ __forceinline__ void finish(const Tile& t, Instruction own, int& pc) {
  FoldWord f{t.words[pc++]};
  int from = own.a(), to = own.dst();
  with_type(own.type2(), [&](auto zero) {
    using T = decltype(zero);
    with_parts<T>(f.fold(), from, own.b(),
                  [&](auto p) { join_parts(t, f, from & kNarrow, p); });
  });
  if (to == kNowhere) return;
  if (f.places()) {
    Source<int64_t> a{own.b(), 0};
#pragma unroll 1
    for (int e = 0; e < t.groups * kRun; e += step_of(to)) {
      int64_t place = a.at(t, e);
      put<int64_t>(t, to, e, place < 0 ? 0 : place);
    }
    return;
  }
  with_type(own.type2(), [&](auto zero) {
    using T = decltype(zero);
    if (own.type() == own.type2()) {
      Source<T> a{from, T()};
#pragma unroll 1
      for (int e = 0; e < t.groups * kRun; e += step_of(to)) put<T>(t, to, e, a.at(t, e));
    } else {  // f64 sums of f32
      Source<double> a{from, 0.0};
#pragma unroll 1
      for (int e = 0; e < t.groups * kRun; e += step_of(to))
        put<float>(t, to, e, static_cast<float>(a.at(t, e)));
    }
  });
}

// Where element e of an accumulator is kept among those of its task; -1 if another thread has it.
__device__ __forceinline__ int64_t kept_at(const Tile& t, int kind, int g, int e) {
  if (kind & 1 ? t.i(g) >= t.r : t.i(g) != 0) return -1;
  int j = t.column_of(g, e);
  if (kind & 2 ? j >= t.c : j != 0) return -1;
  int columns = static_cast<int>(t.words[t.head + 1] >> 48);
  return (kind & 1 ? int64_t(t.i(g)) * (kind & 2 ? columns : 1) : 0) + (kind & 2 ? j : 0);
}

// Where the places are kept that belong to the values at `values`.
template <class T>
__device__ __forceinline__ int64_t* kept_places(const Tile& t, int kind, const char* values) {
  int rows = static_cast<int>(t.words[t.head + 1] >> 32 & 0xffff);
  int columns = static_cast<int>(t.words[t.head + 1] >> 48);
  int64_t n = (kind & 1 ? rows : 1) * int64_t(kind & 2 ? columns : 1);
  return reinterpret_cast<int64_t*>(const_cast<char*>(values) + (n * sizeof(T) + 7) / 8 * 8);
}

// Keeps an accumulator that FINISH has joined, and the places in dst, in the arena.
__device__ __forceinline__ void spill(const Tile& t, Instruction own, int& pc, int64_t task) {
  FoldWord f{t.words[pc]};
  char* to = reinterpret_cast<char*>(t.words[kBlockWords + 2 * own.b()]) + t.words[pc + 1] +
             task * t.words[pc + 2];
  pc += 3;
  with_type(own.type2(), [&](auto zero) {
    using T = decltype(zero);
    Source<T> a{own.a(), T()};
    int64_t* places = f.places() ? kept_places<T>(t, f.kind(), to) : nullptr;
#pragma unroll 1
    for (int e = 0; e < t.groups * kRun; e += step_of(own.a())) {
      int64_t n = kept_at(t, f.kind(), e / kRun, e % kRun);
      if (n < 0) continue;
      reinterpret_cast<T*>(to)[n] = a.at(t, e);
      if (places) places[n] = Source<int64_t>{own.dst(), 0}.at(t, e);
    }
  });
}

// dst, an accumulator that holds the identity (places in a), = fold of what `tasks` tasks in a row kept.
__device__ __forceinline__ void merge(const Tile& t, Instruction own, int& pc, int64_t task) {
  FoldWord f{t.words[pc]};
  int64_t bytes = t.words.number(pc + 2), tasks = t.words.number(pc + 3);
  const char* from = reinterpret_cast<const char*>(t.words[kBlockWords + 2 * own.b()]) +
                     t.words[pc + 1] + task / t.words.number(pc + 4) * tasks * bytes;
  pc += 5;
  with_type(own.type2(), [&](auto zero) {
    using T = decltype(zero);
#pragma unroll 1
    for (int e = 0; e < t.groups * kRun; e += step_of(own.dst())) {
      int64_t n = kept_at(t, f.kind(), e / kRun, e % kRun);
      if (n < 0) continue;
      if (f.places()) {
        Found<T> total{T(), -1};
        for (int64_t k = 0; k < tasks; ++k) {
          const char* own_part = from + k * bytes;
          total = better(f.fold(), total,
                         Found<T>{reinterpret_cast<const T*>(own_part)[n],
                                  kept_places<T>(t, f.kind(), own_part)[n]});
        }
        put<T>(t, own.dst(), e, total.value);
        put<int64_t>(t, own.a(), e, total.place);
        continue;
      }
      T total = reinterpret_cast<const T*>(from)[n];
      for (int64_t k = 1; k < tasks; ++k)
        total = join(f.fold(), total, reinterpret_cast<const T*>(from + k * bytes)[n]);
      put<T>(t, own.dst(), e, total);
    }
  });
}

}  // namespace vtc
