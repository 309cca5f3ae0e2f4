// Folds of rows that threads have together.
#pragma once

#include "folds.cuh"
#include "rows.h"

namespace vtc {

// `width` lanes of a warp, or all of a block.
struct RowTeam {
  int thread, width, warps;
  float* kept;
  int turn = 0;

  // The fold of an element of each thread.
  template <class F>
  __device__ __forceinline__ float fold(float part, F f) {
#pragma unroll
    for (int lane = 16; lane; lane /= 2)
      if (lane < width) part = f(part, __shfl_xor_sync(0xffffffffu, part, lane));
    if (warps == 1) return part;
    float* own = kept + turn * kMostRowWarps;
    turn ^= 1;
    if (thread % 32 == 0) own[thread / 32] = part;
    __syncthreads();
    part = fold_kept(own, warps, f);
    return warps <= 8 ? part : f(part, fold_kept(own + 8, warps - 8, f));
  }

  // Of up to 8 warps.
  template <class F>
  static __device__ __forceinline__ float fold_kept(const float* own, int count, F f) {
    const float4* kept = reinterpret_cast<const float4*>(own);
    float4 low = kept[0], high = kept[1];
    float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int n = 1; n < 8; ++n) x[n] = n < count ? x[n] : F::none();
    return fold_in_thread(x, f);
  }

  template <int kCount, class F>
  static __device__ __forceinline__ float fold_in_thread(const float (&a)[kCount], F f) {
    float x[kCount / 2];
#pragma unroll
    for (int n = 0; n < kCount / 2; ++n) x[n] = f(a[n], a[n + kCount / 2]);
#pragma unroll
    for (int half = kCount / 4; half; half /= 2)
#pragma unroll
      for (int n = 0; n < half; ++n) x[n] = f(x[n], x[n + half]);
    return x[0];
  }

  template <int kCount, class F>
  __device__ __forceinline__ float fold(const ValuesOf<kCount>& a, F f) {
    return fold(fold_in_thread(a.x, f), f);
  }
};

}  // namespace vtc
