// What a launch runs: kernels one behind another, or side by side, in the form of layout.h.
#pragma once

#include "interpreter.cuh"

namespace vtc {

// The argument of the entry point. elsewhere: null, or the address of a block in memory, alone. place:
// where blocks of threads meet: how many are there, and how often all were.
struct Launch {
  const Word* elsewhere;
  unsigned* place;
  Word count;
  Word words[kLaunchWords];
};

// All blocks of a launch, which are all resident, wait for each other. False, and a fault, if some do
// not come for a long time.
__device__ __forceinline__ bool meet(unsigned* place, const Word* block) {
  bool alone = false;
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned round = load_acquire(place + 1);
    __threadfence();
    if (atomicAdd(place, 1u) == gridDim.x - 1) {
      *place = 0;
      __threadfence();
      atomicAdd(place + 1, 1u);
    } else {
      uint64_t start = nanoseconds();
      while (load_acquire(place + 1) == round) {
        if (nanoseconds() - start > kPatience) {
          alone = true;
          break;
        }
      }
    }
    __threadfence();
    if (alone) {
      Word here = (block[2] >> 48) + 1;
      atomicCAS(reinterpret_cast<unsigned long long*>(block[0]), 0ull, here << 32 | kGaveUp);
    }
  }
  return !__syncthreads_or(alone);
}

// Do all conditions behind `prefix` hold?
__device__ __forceinline__ bool holds(const Word* prefix) {
  int count = static_cast<int>(prefix[0] >> 32);
  for (int n = 0; n < count; ++n) {
    Word own = prefix[kPrefixWords + n];
    Word address = own & ~(Word{1} << kUnlessShift);
    bool found = *reinterpret_cast<const volatile uint8_t*>(address) != 0;
    if (found == static_cast<bool>(own >> kUnlessShift)) return false;
  }
  return true;
}

// Runs what a launch has, in this block of threads.
__device__ __forceinline__ void run_launch(const Launch& launch, unsigned char* shared) {
  const Word* prefix = launch.elsewhere ? launch.elsewhere : launch.words;
  const Word* end = launch.elsewhere ? prefix + 1 : prefix + launch.count;
  while (prefix < end && prefix[0]) {
    int count = static_cast<int>(prefix[0] & 0xffffffff);
    Word range = prefix[1];
    const Word* block = prefix + kPrefixWords + (prefix[0] >> 32);
    if (range >> kWaitShift && !meet(launch.place, block)) return;
    Word blocks = range >> kBlocksShift & kBlocksMask;
    if (!blocks) blocks = gridDim.x;
    Word own = blockIdx.x - (range & kBlocksMask);
    if (own < blocks && holds(prefix)) {
      if (range >> kDecisionShift & 1) {
        if (own == 0 && threadIdx.x == 0)
          *reinterpret_cast<uint8_t*>(block[3]) = *reinterpret_cast<const uint8_t*>(block[1]);
      } else {
        Word* to = reinterpret_cast<Word*>(shared);
        for (int n = threadIdx.x; n < count; n += kThreads)
          to[n] = n == kBlockWords - 1 ? own | blocks << 32 : block[n];
        __syncthreads();
        interpret(shared, count);
        __syncthreads();
      }
    }
    prefix = block + count;
  }
}

}  // namespace vtc
