// Folds of A over the columns of a row, or over the tile. A stays as it is.
#pragma once

#include "registers.cuh"

namespace vtc {

// The scratch has two buffers, used in turn, so that one barrier a fold is enough.
struct Scratch {
  int turn = 0;

  __device__ __forceinline__ float* next(const Tile& t) {
    turn ^= 1;
    return reinterpret_cast<float*>(t.shared + t.scratch()) + turn * kSlots;
  }
};

struct Sum {
  __device__ static __forceinline__ float none() { return 0.0f; }
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};
struct Product {
  __device__ static __forceinline__ float none() { return 1.0f; }
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const { return a * b; }
};
struct Most {
  __device__ static __forceinline__ float none() { return __uint_as_float(0xff800000u); }
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const { return larger(a, b); }
};
struct Least {
  __device__ static __forceinline__ float none() { return __uint_as_float(0x7f800000u); }
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const { return smaller(a, b); }
};

template <class F>
__device__ __forceinline__ void with_fold(int fold, F f) {
  switch (fold) {
    case FOLD_SUM: return f(Sum());
    case FOLD_PROD: return f(Product());
    case FOLD_MAX: return f(Most());
    default: return f(Least());
  }
}

// Of each group the fold of its elements that are alive.
template <class F>
__device__ __forceinline__ void fold_elements(const Spots& s, const Values& a, F f,
                                              float (&part)[kGroups]) {
  bool full = s.live == (kElements == 32 ? 0xffffffffu : (1u << kElements % 32) - 1);
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    float x[kRun];
#pragma unroll
    for (int e = 0; e < kRun; ++e) x[e] = a.x[g * kRun + e];
    if (!full) {
#pragma unroll
      for (int e = 0; e < kRun; ++e)
        if (!s.alive(g, e)) x[e] = F::none();
    }
#pragma unroll
    for (int half = kRun / 2; half; half /= 2)
#pragma unroll
      for (int e = 0; e < half; ++e) x[e] = f(x[e], x[e + half]);
    part[g] = x[0];
  }
}

template <class F>
__device__ __forceinline__ float fold_lanes(float part, int width, F f) {
  for (int lane = width / 2; lane; lane /= 2)
    part = f(part, __shfl_xor_sync(0xffffffffu, part, lane));
  return part;
}

// Of each group its row's fold, or the tile's. Every thread of the block takes part.
template <class F>
__device__ __forceinline__ void fold_threads(const Tile& t, const Spots& s, Scratch& scratch,
                                             float (&part)[kGroups], bool all, F f) {
  int slots = t.slots();
  if (all || slots >= t.groups * kThreads) {
    float total = part[0];
#pragma unroll
    for (int g = 1; g < kGroups; ++g) total = f(total, part[g]);
    total = fold_lanes(total, 32, f);
    float* kept = scratch.next(t);
    if (t.thread % 32 == 0) kept[t.thread / 32] = total;
    __syncthreads();
    total = kept[0];
#pragma unroll
    for (int n = 1; n < kWarps; ++n) total = f(total, kept[n]);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) part[g] = total;
    return;
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) part[g] = fold_lanes(part[g], slots < 32 ? slots : 32, f);
  if (slots <= 32) return;
  float* kept = scratch.next(t);
  if (t.thread % 32 == 0)
#pragma unroll
    for (int g = 0; g < kGroups; ++g) kept[g * kWarps + t.thread / 32] = part[g];
  __syncthreads();
  int count = slots / 32;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    int first = s.i(g) * count;
    float total = kept[first];
    for (int n = 1; n < count; ++n) total = f(total, kept[first + n]);
    part[g] = total;
  }
}

// dst (narrow) = the fold of A, or of its squares, over columns (mode 2) or the tile (mode 3), times the
// number in the argument's high half.
__device__ __forceinline__ void reduce(const Tile& t, const Spots& s, Scratch& scratch,
                                       Instruction own, Word argument, const Values& a) {
  int fold = static_cast<int>(argument & 0xff);
  float scale = __uint_as_float(static_cast<uint32_t>(argument >> 32));
  bool squares = fold == kFoldSquares;
  with_fold(squares ? FOLD_SUM : fold, [&](auto f) {
    float part[kGroups];
    Values x = a;
    if (squares) each(x, [](float y) { return y * y; });
    fold_elements(s, x, f, part);
    fold_threads(t, s, scratch, part, own.type2() == 3, f);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) *narrow_at<float>(t, own.dst(), g) = part[g] * scale;
  });
}

// dst (a narrow accumulator: f64 for sums and products) = fold of dst and A.
__device__ __forceinline__ void accumulate(const Tile& t, const Spots& s, Instruction own, int fold,
                                           const Values& a) {
  with_fold(fold, [&](auto f) {
    float part[kGroups];
    fold_elements(s, a, f, part);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (fold <= FOLD_PROD) {
        double* total = narrow_at<double>(t, own.dst(), g);
        *total = f(*total, static_cast<double>(part[g]));
      } else {
        float* total = narrow_at<float>(t, own.dst(), g);
        *total = f(*total, part[g]);
      }
    }
  });
}

}  // namespace vtc
