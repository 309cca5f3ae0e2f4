// What needs instructions of the device: conversions, asynchronous copies, memory accesses with a
// cache hint. tests/vm/cuda_on_cpu has the same functions in plain C++.
#pragma once

#include <cstdint>

namespace vtc {

#define VTC_OUT_OF_LINE __noinline__

struct alignas(16) Vector {
  uint32_t x, y, z, w;
};

__device__ __forceinline__ float from_bf16(uint32_t low_half) {
  return __uint_as_float(low_half << 16);
}

__device__ __forceinline__ float from_f16(uint32_t low_half) {
  float f;
  asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }"
      : "=f"(f)
      : "r"(low_half));
  return f;
}

__device__ __forceinline__ float from_f16_high(uint32_t both) {
  float f;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }" : "=f"(f) : "r"(both));
  return f;
}

// Two floats as halves: `low` in the low 16 bits.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  uint32_t d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

// The block's shared memory.
__device__ __forceinline__ unsigned char* shared_memory() {
  extern __shared__ __align__(16) unsigned char shared[];
  return shared;
}

// This thread's number, through the warp: the assembler would read the special register again, slowly,
// at every use. All threads of a warp come here.
__device__ __forceinline__ int own_thread() {
  int n;
  asm volatile(
      "{.reg .u32 own, lane;\n"
      "mov.u32 own, %%tid.x;\n"
      "mov.u32 lane, %%laneid;\n"
      "shfl.sync.idx.b32 %0, own, lane, 31, 0xffffffff; }"
      : "=r"(n));
  return n;
}

// No value in particular, and in a register of its own.
__device__ __forceinline__ float undefined_float() {
  float y;
  asm volatile("" : "=f"(y));
  return y;
}

// The same value in another register.
__device__ __forceinline__ float copied(float x) {
  float y;
  asm volatile("mov.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The compiler takes X for changed: what follows from it is computed anew, not kept in registers.
__device__ __forceinline__ void renew(uint32_t& x) { asm volatile("" : "+r"(x)); }

// 2 to the power of x.
__device__ __forceinline__ float approximate_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float approximate_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float approximate_rsqrt(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// NaN if either is.
__device__ __forceinline__ float smaller_or_nan(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

__device__ __forceinline__ float larger_or_nan(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

__device__ __forceinline__ Vector load_vector(const void* p) {
  Vector v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

// The same, cached, or zeros.
__device__ __forceinline__ Vector load_vector_if(const void* p, bool there) {
  Vector v;
  asm volatile(
      "{.reg .pred there;\n"
      "setp.ne.u32 there, %5, 0;\n"
      "mov.u32 %0, 0;\nmov.u32 %1, 0;\nmov.u32 %2, 0;\nmov.u32 %3, 0;\n"
      "@there ld.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(p), "r"(static_cast<uint32_t>(there))
      : "memory");
  return v;
}

// The same of what other threads read too.
__device__ __forceinline__ Vector load_cached_vector(const void* p) {
  Vector v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

// Bits from `shift` (at most 31) on of two words.
__device__ __forceinline__ uint32_t shifted(uint32_t low, uint32_t high, uint32_t shift) {
  return __funnelshift_r(low, high, shift);
}

__device__ __forceinline__ void store_vector(void* p, Vector v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

__device__ __forceinline__ unsigned load_acquire(const unsigned* p) {
  unsigned x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
  return x;
}

__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)::"memory");
  return t;
}

// 16 bytes from global to shared memory.
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
  uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `pending` groups of this thread's copies are under way.
__device__ __forceinline__ void wait_copies(int pending) {
  switch (pending) {
    case 0: asm volatile("cp.async.wait_group 0;" ::: "memory"); break;
    case 1: asm volatile("cp.async.wait_group 1;" ::: "memory"); break;
    case 2: asm volatile("cp.async.wait_group 2;" ::: "memory"); break;
    case 3: asm volatile("cp.async.wait_group 3;" ::: "memory"); break;
    case 4: asm volatile("cp.async.wait_group 4;" ::: "memory"); break;
    default: asm volatile("cp.async.wait_group 5;" ::: "memory"); break;
  }
}

}  // namespace vtc
