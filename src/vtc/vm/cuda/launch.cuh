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
__device__ __forceinline__ bool meet(unsigned* place, Word head, Word fault) {
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
      Word here = (head >> 48) + 1;
      atomicCAS(reinterpret_cast<unsigned long long*>(fault), 0ull, here << 32 | kGaveUp);
    }
  }
  return !__syncthreads_or(alone);
}

// Do the `count` conditions at word `at` hold?
__device__ __forceinline__ bool holds(const Word* words, int at, int count) {
  for (int n = 0; n < count; ++n) {
    Word own = words[at + n];
    Word address = own & ~(Word{1} << kUnlessShift);
    bool found = *reinterpret_cast<const volatile uint8_t*>(address) != 0;
    if (found == static_cast<bool>(own >> kUnlessShift)) return false;
  }
  return true;
}

// Runs the kernels in `words`, up to word `end` or an empty one, in this block of threads.
__device__ __forceinline__ void run_words(const Word* words, int end, unsigned* place,
                                          unsigned char* shared) {
  for (int at = 0; at < end && words[at];) {
    int count = static_cast<int>(words[at] & 0xffffffff);
    int conditions = static_cast<int>(words[at] >> 32);
    Word range = words[at + 1];
    int block = at + kPrefixWords + conditions;
    if (range >> kWaitShift && !meet(place, words[block + 2], words[block])) return;
    Word blocks = range >> kBlocksShift & kBlocksMask;
    if (!blocks) blocks = gridDim.x;
    Word own = blockIdx.x - (range & kBlocksMask);
    if (own < blocks && holds(words, at + kPrefixWords, conditions)) {
      if (range >> kDecisionShift & 1) {
        if (own == 0 && threadIdx.x == 0)
          *reinterpret_cast<uint8_t*>(words[block + 3]) =
              *reinterpret_cast<const uint8_t*>(words[block + 1]);
      } else {
        Word* to = reinterpret_cast<Word*>(shared);
        for (int n = threadIdx.x; n < count; n += kThreads)
          to[n] = n == kBlockWords - 1 ? own | blocks << 32 : words[block + n];
        __syncthreads();
        interpret(shared, count);
        __syncthreads();
      }
    }
    at = block + count;
  }
}

// Runs what a launch has. Words that come with it are read as arguments of the kernel, which are
// nearer than memory.
__device__ __forceinline__ void run_launch(const Launch& launch, unsigned char* shared) {
  if (launch.elsewhere)
    run_words(launch.elsewhere, 1, launch.place, shared);
  else
    run_words(launch.words, static_cast<int>(launch.count), launch.place, shared);
}

}  // namespace vtc
