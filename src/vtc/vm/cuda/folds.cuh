// Folds: elements of a thread first, then threads that hold parts of one result.
//
// An accumulator holds a part in each thread until FINISH joins them. `mode` says over which axes a
// fold runs: bit 0 rows, bit 1 columns.
#pragma once

#include "memory.cuh"

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

__device__ __forceinline__ float fold_identity(int fold) {
  return fold == FOLD_SUM    ? 0.0f
         : fold == FOLD_PROD ? 1.0f
         : fold == FOLD_MAX  ? __uint_as_float(0xff800000u)
                             : __uint_as_float(0x7f800000u);
}

// The fold of a group's elements that are alive.
template <class F>
__device__ __forceinline__ float fold_group(const Tile& t, const float* x, int g, float none, F f) {
  float part[kRun];
#pragma unroll
  for (int e = 0; e < kRun; ++e) part[e] = t.alive(g, e) ? x[e] : none;
#pragma unroll
  for (int half = kRun / 2; half; half /= 2)
#pragma unroll
    for (int e = 0; e < half; ++e) part[e] = f(part[e], part[e + half]);
  return part[0];
}

// Of each group its row's fold, or the tile's. Every thread of the block takes part.
template <class F>
__device__ __forceinline__ void fold_threads(Tile& t, float (&part)[kGroups], bool all, float none,
                                             F f) {
  int slots = all ? kSlots : t.slots();
  if (slots >= t.groups * kThreads) {
    part[0] = f(part[0], part[1]);
    part[1] = none;
  }
  int width = slots < 32 ? slots : 32;
  for (int lane = width / 2; lane; lane /= 2)
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
      part[g] = f(part[g], __shfl_xor_sync(0xffffffffu, part[g], lane));
  if (slots <= 32) return;
  float* kept = reinterpret_cast<float*>(t.shared + t.scratch()) + t.turn * kSlots;
  t.turn ^= 1;
  constexpr int kWarps = kThreads / 32;
  if (t.thread % 32 == 0)
#pragma unroll
    for (int g = 0; g < kGroups; ++g) kept[g * kWarps + t.thread / 32] = part[g];
  __syncthreads();
  int count = slots < t.groups * kThreads ? slots / 32 : kWarps;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (g && slots >= t.groups * kThreads) {
      part[g] = part[0];
      break;
    }
    int first = slots < t.groups * kThreads ? t.i(g) * count : 0;
    float total = kept[first];
    for (int n = 1; n < count; ++n) total = f(total, kept[first + n]);
    part[g] = total;
  }
}

template <class F>
__device__ __forceinline__ void reduce_with(Tile& t, Instruction own, int fold, bool all,
                                            const Values& w, F f) {
  float none = fold_identity(fold), part[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) part[g] = fold_group(t, w.x + g * kRun, g, none, f);
  fold_threads(t, part, all, none, f);
#pragma unroll
  for (int g = 0; g < kGroups; ++g) *narrow_at<float>(t, own.dst(), g) = part[g];
}

// dst (narrow) = the fold of W over columns (mode 2) or the tile (mode 3).
__device__ __forceinline__ void fast_reduce(Tile& t, Instruction own, int& pc, const Values& w) {
  int fold = static_cast<int>(t.words[pc] & 0xff);
  bool all = (t.words[pc++] >> 8 & 3) == 3;
  switch (fold) {
    case FOLD_SUM: return reduce_with(t, own, fold, all, w, [](float a, float b) { return a + b; });
    case FOLD_PROD: return reduce_with(t, own, fold, all, w, [](float a, float b) { return a * b; });
    case FOLD_MAX:
      return reduce_with(t, own, fold, all, w, [](float a, float b) { return larger(a, b); });
    default:
      return reduce_with(t, own, fold, all, w, [](float a, float b) { return smaller(a, b); });
  }
}

template <class A, class F>
__device__ __forceinline__ void accumulate_with(const Tile& t, Instruction own, int fold,
                                                const Values& w, F f) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    A* total = narrow_at<A>(t, own.dst(), g);
    float part = fold_group(t, w.x + g * kRun, g, fold_identity(fold), f);
    *total = f(*total, static_cast<A>(part));
  }
}

// dst (a narrow accumulator) = fold of dst and W.
__device__ __forceinline__ void fast_accumulate(const Tile& t, Instruction own, int& pc,
                                                const Values& w) {
  int fold = static_cast<int>(t.words[pc++] & 0xff);
  switch (fold) {
    case FOLD_SUM:
      return accumulate_with<double>(t, own, fold, w, [](auto a, auto b) { return a + b; });
    case FOLD_PROD:
      return accumulate_with<double>(t, own, fold, w, [](auto a, auto b) { return a * b; });
    case FOLD_MAX:
      return accumulate_with<float>(t, own, fold, w, [](auto a, auto b) { return larger(a, b); });
    default:
      return accumulate_with<float>(t, own, fold, w, [](auto a, auto b) { return smaller(a, b); });
  }
}

// Fold and mode, and the kind of what is folded, of the word behind the head.
struct FoldWord {
  Word w;

  __device__ __forceinline__ int fold() const { return w & 0xff; }
  __device__ __forceinline__ int mode() const { return w >> 8 & 3; }
  __device__ __forceinline__ int kind() const { return w >> 16 & 3; }
};

// Does element e of group g of a value of a kind count in a fold?
__device__ __forceinline__ bool counts(const Tile& t, FoldWord f, bool to_narrow, int g, int e) {
  if (f.kind() & 1 && t.i(g) >= t.r) return false;
  if (f.kind() & 2 && t.column_of(g, e) >= t.c) return false;
  // One thread of a row stands for all of them where rows alone are folded.
  return !(to_narrow && f.mode() == 1 && t.j(g) != 0);
}

// dst, an accumulator of `type2`, = fold of dst and a.
__device__ __forceinline__ void slow_accumulate(const Tile& t, Instruction own, int& pc) {
  FoldWord f{t.words[pc++]};
  int to = own.dst();
  with_type(own.type(), [&](auto zero) {
    using T = decltype(zero);
    Source<T> a = source<T>(t, own.a(), pc);
    bool narrow = to & kNarrow, wide_source = !(own.a() & kNarrow);
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

// The parts of a narrow accumulator become the fold of its row's, or of the tile's.
template <class T>
__device__ __forceinline__ void join_narrow(const Tile& t, int fold, bool all, int at) {
  T* kept = reinterpret_cast<T*>(t.shared + t.scratch());
  int n = all ? t.groups * kThreads : t.slots();
  __syncthreads();
#pragma unroll 1
  for (int g = 0; g < t.groups; ++g) kept[g * kThreads + t.thread] = *narrow_at<T>(t, at, g);
  __syncthreads();
  int half = 1;
  while (half < n) half *= 2;
  for (half /= 2; half; half /= 2) {
#pragma unroll 1
    for (int g = 0; g < t.groups; ++g) {
      int s = g * kThreads + t.thread, q = all ? s : s % t.slots();
      if (q < half && q + half < n && s + half < t.groups * kThreads)
        kept[s] = join(fold, kept[s], kept[s + half]);
    }
    __syncthreads();
  }
#pragma unroll 1
  for (int g = 0; g < t.groups; ++g) {
    int s = g * kThreads + t.thread;
    *narrow_at<T>(t, at, g) = kept[all ? 0 : s - s % t.slots()];
  }
  __syncthreads();
}

// The parts of a wide accumulator become the fold over the rows of the tile.
template <class T>
__device__ __forceinline__ void join_rows(const Tile& t, int fold, int at) {
  T* kept = reinterpret_cast<T*>(t.shared + t.scratch());
  int rows = t.groups * kThreads / t.slots();
#pragma unroll 1
  for (int e = 0; e < kRun; ++e) {
    __syncthreads();
#pragma unroll 1
    for (int g = 0; g < t.groups; ++g)
      kept[g * kThreads + t.thread] = *wide_at<T>(t, at, g * kRun + e);
    __syncthreads();
#pragma unroll 1
    for (int g = 0; g < t.groups; ++g) {
      int q = (g * kThreads + t.thread) % t.slots();
      T total = kept[q];
      for (int i = 1; i < rows; ++i) total = join(fold, total, kept[i * t.slots() + q]);
      *wide_at<T>(t, at, g * kRun + e) = total;
    }
  }
  __syncthreads();
}

// dst = result of accumulator a of `type2`, as `type`.
__device__ __forceinline__ void finish(const Tile& t, Instruction own, int& pc) {
  FoldWord f{t.words[pc++]};
  int from = own.a(), to = own.dst();
  with_type(own.type2(), [&](auto zero) {
    using T = decltype(zero);
    if (from & kNarrow) {
      if (f.mode()) join_narrow<T>(t, f.fold(), f.mode() != 2, from);
    } else if (f.mode() & 1) {
      join_rows<T>(t, f.fold(), from);
    }
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

// Keeps an accumulator that FINISH has joined in the arena.
__device__ __forceinline__ void spill(const Tile& t, Instruction own, int& pc, int64_t task) {
  FoldWord f{t.words[pc]};
  char* to = reinterpret_cast<char*>(t.words[kBlockWords + 2 * own.b()]) + t.words[pc + 1] +
             task * t.words[pc + 2];
  pc += 3;
  with_type(own.type2(), [&](auto zero) {
    using T = decltype(zero);
    Source<T> a{own.a(), T()};
#pragma unroll 1
    for (int e = 0; e < t.groups * kRun; e += step_of(own.a())) {
      int64_t n = kept_at(t, f.kind(), e / kRun, e % kRun);
      if (n >= 0) reinterpret_cast<T*>(to)[n] = a.at(t, e);
    }
  });
}

// dst, an accumulator that holds the identity, = fold of what `tasks` tasks in a row kept.
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
      T total = reinterpret_cast<const T*>(from)[n];
      for (int64_t k = 1; k < tasks; ++k)
        total = join(f.fold(), total, reinterpret_cast<const T*>(from + k * bytes)[n]);
      put<T>(t, own.dst(), e, total);
    }
  });
}

}  // namespace vtc
