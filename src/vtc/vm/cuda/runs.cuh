// Tiles of 32-bit values that lack elements or alignment: between buffers and shared memory, a group
// at a time.
#pragma once

#include "access.cuh"

namespace vtc {

// Elements as they lie in memory, in the low bits of words.

__device__ __forceinline__ uint32_t load_bits(const char* p, int size) {
  return size == 2   ? *reinterpret_cast<const uint16_t*>(p)
         : size == 4 ? *reinterpret_cast<const uint32_t*>(p)
                     : *reinterpret_cast<const uint8_t*>(p);
}

__device__ __forceinline__ void store_bits(char* p, int size, uint32_t bits) {
  if (size == 2)
    *reinterpret_cast<uint16_t*>(p) = static_cast<uint16_t>(bits);
  else if (size == 4)
    *reinterpret_cast<uint32_t*>(p) = bits;
  else
    *reinterpret_cast<uint8_t*>(p) = static_cast<uint8_t>(bits);
}

template <class F>
__device__ __forceinline__ void each_of_run(uint32_t (&w)[kRun], F f) {
#pragma unroll
  for (int e = 0; e < kRun; ++e) w[e] = f(w[e]);
}

__device__ __forceinline__ void from_memory(int type, uint32_t (&w)[kRun]) {
  switch (type) {
    case T_BF16: return each_of_run(w, [](uint32_t x) { return x << 16; });
    case T_F16: return each_of_run(w, [](uint32_t x) { return __float_as_uint(from_f16(x)); });
    case T_I16:
      return each_of_run(w, [](uint32_t x) -> uint32_t { return static_cast<int16_t>(x); });
    case T_I8:
      return each_of_run(w, [](uint32_t x) -> uint32_t { return static_cast<int8_t>(x); });
    default: return;
  }
}

__device__ __forceinline__ void to_memory(int type, uint32_t (&w)[kRun]) {
  switch (type) {
    case T_BF16:
      return each_of_run(w, [](uint32_t x) { return pack_bf16(__uint_as_float(x), 0.0f); });
    case T_F16:
      return each_of_run(w, [](uint32_t x) { return pack_f16(__uint_as_float(x), 0.0f); });
    case T_BOOL: return each_of_run(w, [](uint32_t x) -> uint32_t { return x != 0; });
    default: return;
  }
}

// A group: where it begins, and which of its elements are there.
struct Group {
  char* at;
  uint32_t there;  // a bit an element
  bool run;        // all of them, side by side and aligned

  __device__ __forceinline__ bool has(int e) const { return there >> e & 1; }
};

__device__ __forceinline__ Group group_of(const Tile& t, int access, const Cursor& p, int g) {
  int i = t.i(g), j = t.j(g), distance = t.distance();
  int64_t address = p.base + i * p.row + j * p.column;
  uint32_t there = 0;
  if (p.has_row(i)) {
#pragma unroll
    for (int e = 0; e < kRun; ++e)
      there |= static_cast<uint32_t>(p.has_column(j + e * distance)) << e;
  }
  if (p.flags() & kTerms && there) {
    Access a = access_of(t, access);
    if (!add_terms(t, a, g * kRun, address)) there = 0;
    int64_t step = distance * p.column;
#pragma unroll 1
    for (int e = 0; e < kRun; ++e)
      if (there >> e & 1 && !inside(t, a, address + e * step)) there &= ~(1u << e);
  }
  return Group{p.address() + (address - p.base) * static_cast<int>(p.size), there,
               there == 0xff && p.flags() & kVectors};
}

__device__ __forceinline__ float4* run_at(const Tile& t, int location, int g) {
  return reinterpret_cast<float4*>(t.shared + (location & 0x3fff) * 16) + 2 * g * kThreads + t.thread;
}

// dst (wide) = the tile of access a; where masked off, dst stays as it is if b, or becomes 0.
VTC_OUT_OF_LINE __device__ void load_runs(const Tile t, Instruction own) {
  Cursor p = cursor_at(t, own.a(), t.steps);
  int type = own.type2(), size = static_cast<int>(p.size);
  int64_t step = t.distance() * p.column * size;
#pragma unroll 1
  for (int g = 0; g < t.groups; ++g) {
    Group group = group_of(t, own.a(), p, g);
    uint32_t w[kRun];
    if (group.run) {
      Vector v = load_vector(group.at);
      if (size == 2) {
        uint32_t both[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int e = 0; e < kRun; ++e) w[e] = e & 1 ? both[e / 2] >> 16 : both[e / 2] & 0xffff;
      } else {
        Vector high = load_vector(group.at + 16);
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
        w[4] = high.x, w[5] = high.y, w[6] = high.z, w[7] = high.w;
      }
    } else {
#pragma unroll
      for (int e = 0; e < kRun; ++e) {
        w[e] = 0;
        if (group.has(e)) w[e] = load_bits(group.at + e * step, size);
      }
    }
    from_memory(type, w);
    float4* to = run_at(t, own.dst(), g);
    if (own.b() && group.there != 0xff) {
      float4 low = to[0], high = to[kThreads];
      float x[kRun] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int e = 0; e < kRun; ++e)
        if (!group.has(e)) w[e] = __float_as_uint(x[e]);
    }
    to[0] = make_float4(__uint_as_float(w[0]), __uint_as_float(w[1]), __uint_as_float(w[2]),
                        __uint_as_float(w[3]));
    to[kThreads] = make_float4(__uint_as_float(w[4]), __uint_as_float(w[5]), __uint_as_float(w[6]),
                               __uint_as_float(w[7]));
  }
}

// The tile of access a = dst (wide).
VTC_OUT_OF_LINE __device__ void store_runs(const Tile t, Instruction own) {
  Cursor p = cursor_at(t, own.a(), t.steps);
  int type = own.type2(), size = static_cast<int>(p.size);
  int64_t step = t.distance() * p.column * size;
#pragma unroll 1
  for (int g = 0; g < t.groups; ++g) {
    Group group = group_of(t, own.a(), p, g);
    const float4* from = run_at(t, own.dst(), g);
    float4 low = from[0], high = from[kThreads];
    uint32_t w[kRun] = {__float_as_uint(low.x),  __float_as_uint(low.y),  __float_as_uint(low.z),
                        __float_as_uint(low.w),  __float_as_uint(high.x), __float_as_uint(high.y),
                        __float_as_uint(high.z), __float_as_uint(high.w)};
    to_memory(type, w);
    if (group.run && size == 2) {
      store_vector(group.at, Vector{w[0] & 0xffff | w[1] << 16, w[2] & 0xffff | w[3] << 16,
                                    w[4] & 0xffff | w[5] << 16, w[6] & 0xffff | w[7] << 16});
    } else if (group.run) {
      store_vector(group.at, Vector{w[0], w[1], w[2], w[3]});
      store_vector(group.at + 16, Vector{w[4], w[5], w[6], w[7]});
    } else {
#pragma unroll
      for (int e = 0; e < kRun; ++e)
        if (group.has(e)) store_bits(group.at + e * step, size, w[e]);
    }
  }
}

}  // namespace vtc
