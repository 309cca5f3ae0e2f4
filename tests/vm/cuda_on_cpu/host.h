// CUDA C++ as plain C++: the threads of a block are fibers of one thread, which change at barriers
// and shuffles. Has the functions of vm/cuda/ptx.cuh, and those that NVRTC has built in.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __device__
#define __forceinline__ inline __attribute__((always_inline))

struct Dim {
  unsigned x;
};

// kThreads of layout.h.
#ifndef VTC_GROUPS
#define VTC_GROUPS 2
#endif
constexpr int kBlock = 512 / VTC_GROUPS;
constexpr int kMostThreads = 512;  // kMostTeamThreads of rows.h

// The block that runs, and which of its threads is at hand.
struct Block {
  ucontext_t scheduler, fiber[kMostThreads];
  bool over[kMostThreads];
  int threads = kBlock;
  int current = 0;
  int arrived = 0, phase = 0;
  int warp_arrived[kMostThreads / 32] = {}, warp_phase[kMostThreads / 32] = {};
  uint32_t exchanged[kMostThreads];
  int any = 0;
  std::function<void()> work;
  unsigned char* shared = nullptr;

  static Block*& running() {
    static Block* block = nullptr;
    return block;
  }
  static void enter() {
    Block& b = *running();
    b.work();
    b.over[b.current] = true;
    swapcontext(&b.fiber[b.current], &b.scheduler);
  }
  void yield() {
    int own = current;
    swapcontext(&fiber[own], &scheduler);
  }
  void wait(int& arrivals, int& phases, int of) {
    int before = phases;
    if (++arrivals == of) {
      arrivals = 0;
      ++phases;
      return;
    }
    while (phases == before) yield();
  }
  void start() {
    constexpr size_t kStack = 64 << 10;
    stacks.reset(new char[kStack * threads]);
    for (int n = 0; n < threads; ++n) {
      over[n] = false;
      getcontext(&fiber[n]);
      fiber[n].uc_stack.ss_sp = stacks.get() + n * kStack;
      fiber[n].uc_stack.ss_size = kStack;
      fiber[n].uc_link = nullptr;
      makecontext(&fiber[n], enter, 0);
    }
  }
  // Lets each thread run up to where it waits. False if all are over.
  bool step() {
    running() = this;
    int left = 0;
    for (current = 0; current < threads; ++current) {
      if (over[current]) continue;
      swapcontext(&scheduler, &fiber[current]);
      left += !over[current];
    }
    return left;
  }

 private:
  std::unique_ptr<char[]> stacks;
};

inline Dim block_index, grid_size;
#define threadIdx (Dim{static_cast<unsigned>(Block::running()->current)})
#define blockIdx block_index
#define gridDim grid_size

inline void __syncthreads() {
  Block& b = *Block::running();
  b.wait(b.arrived, b.phase, b.threads);
}
inline int __syncthreads_or(int x) {
  Block& b = *Block::running();
  __syncthreads();
  if (b.current == 0) b.any = 0;
  __syncthreads();
  b.any |= x;
  __syncthreads();
  return b.any;
}
inline void __threadfence() {}
inline unsigned atomicAdd(unsigned* p, unsigned x) {
  unsigned before = *p;
  *p += x;
  return before;
}
inline void __syncwarp() {
  Block& b = *Block::running();
  int warp = b.current / 32;
  b.wait(b.warp_arrived[warp], b.warp_phase[warp], 32);
}

template <class To, class From>
To bits(From x) {
  To y;
  static_assert(sizeof x == sizeof y);
  std::memcpy(&y, &x, sizeof y);
  return y;
}
inline float __uint_as_float(uint32_t x) { return bits<float>(x); }
inline uint32_t __float_as_uint(float x) { return bits<uint32_t>(x); }
inline float __int_as_float(int32_t x) { return bits<float>(x); }
inline int32_t __float_as_int(float x) { return bits<int32_t>(x); }
inline double __longlong_as_double(long long x) { return bits<double>(x); }

inline int __ffs(int x) { return __builtin_ffs(x); }

inline float __shfl_xor_sync(uint32_t, float x, int lane) {
  Block& b = *Block::running();
  int own = b.current;
  b.exchanged[own] = bits<uint32_t>(x);
  __syncwarp();
  float y = bits<float>(b.exchanged[own ^ lane]);
  __syncwarp();
  return y;
}

inline unsigned long long atomicCAS(unsigned long long* p, unsigned long long old,
                                    unsigned long long now) {
  unsigned long long found = *p;
  if (found == old) *p = now;
  return found;
}

struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct alignas(8) float2 {
  float x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }

namespace vtc {

using std::abs, std::acos, std::acosh, std::asin, std::asinh, std::atan, std::atan2, std::atanh,
    std::ceil, std::copysign, std::cos, std::cosh, std::erf, std::erfc, std::exp, std::exp2,
    std::expm1, std::fabs, std::floor, std::fma, std::fmod, std::log, std::log10, std::log1p,
    std::log2, std::pow, std::rint, std::sin, std::sinh, std::sqrt, std::tan, std::tanh, std::trunc;
inline float rsqrt(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float rsqrtf(float x) { return rsqrt(x); }
inline unsigned char* shared_memory() { return Block::running()->shared; }
inline float undefined_float() { return bits<float>(0x7fc0dead); }
inline float copied(float x) { return x; }
inline int own_thread() { return Block::running()->current; }
inline float smaller_or_nan(float x, float y) { return x != x || x < y ? x : y; }
inline float larger_or_nan(float x, float y) { return x != x || x > y ? x : y; }
inline float approximate_exp2(float x) { return std::exp2(x); }
inline float approximate_reciprocal(float x) { return 1.0f / x; }
inline float approximate_rsqrt(float x) { return rsqrt(x); }

#define VTC_OUT_OF_LINE __attribute__((noinline))

struct alignas(16) Vector {
  uint32_t x, y, z, w;
};

inline float from_bf16(uint32_t half) { return bits<float>(half << 16); }
inline float from_f16(uint32_t half) {
  return static_cast<float>(bits<_Float16>(static_cast<uint16_t>(half)));
}
inline float from_f16_high(uint32_t both) { return from_f16(both >> 16); }
inline uint32_t to_bf16(float x) {
  uint32_t u = bits<uint32_t>(x);
  if (x != x) return 0x7fff;
  return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
inline uint32_t pack_bf16(float low, float high) { return to_bf16(low) | to_bf16(high) << 16; }
inline uint32_t pack_f16(float low, float high) {
  return bits<uint16_t>(static_cast<_Float16>(low)) |
         static_cast<uint32_t>(bits<uint16_t>(static_cast<_Float16>(high))) << 16;
}

// Vectors are aligned, as the device wants them.
inline void expect_aligned(const void* p) {
  if (reinterpret_cast<uintptr_t>(p) % 16) __builtin_trap();
}
inline Vector load_vector(const void* p) {
  expect_aligned(p);
  return *static_cast<const Vector*>(p);
}
inline Vector load_vector_if(const void* p, bool there) {
  return there ? load_vector(p) : Vector{0, 0, 0, 0};
}
inline void renew(uint32_t&) {}
inline Vector load_cached_vector(const void* p) { return load_vector(p); }
inline uint32_t shifted(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> shift);
}
inline void store_vector(void* p, Vector v) {
  expect_aligned(p);
  *static_cast<Vector*>(p) = v;
}
inline void copy_async(void* shared, const void* global) {
  expect_aligned(shared);
  expect_aligned(global);
  std::memcpy(shared, global, 16);
}
// A look at the clock, as at what others write, lets them go on.
inline unsigned load_acquire(const unsigned* p) {
  Block::running()->yield();
  return *p;
}
inline uint64_t nanoseconds() {
  static uint64_t now = 0;
  return now += 1'000'000;
}
inline void commit_copies() {}
inline void wait_copies(int) {}

}  // namespace vtc
