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
