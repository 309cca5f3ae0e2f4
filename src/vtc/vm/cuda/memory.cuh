// Loads and stores of registers, and copies ahead of time.
//
// A tile that is all there and aligned moves in vectors of 16 bytes without a check; see shifted.cuh
// for others whose groups lie side by side. Any other one goes through shared memory: see runs.cuh.
#pragma once

#include "shifted.cuh"
#include "slow.cuh"

namespace vtc {

// The element (row of group g, its first column).
__device__ __forceinline__ char* group_at(const Spots& s, const Cursor& p, int g, int size) {
  return p.address() + (s.i(g) * p.row + s.j(g) * p.column) * size;
}

// The same in a whole tile, whose columns lie side by side.
template <int kSize>
__device__ __forceinline__ char* group_of_whole(const Spots& s, const Place& p, int g) {
  return p.address + (s.i(g) * p.pitch() + s.j(g) * kSize);
}

template <int kType>
__device__ __forceinline__ void load_whole(const Tile& t, const Spots& s, const Place& p,
                                           Values& v) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const char* from = group_of_whole<itemsize(kType)>(s, p, g);
    if (g >= t.groups) from = p.address;  // what is there counts for nothing
    Vector parts[2];
#pragma unroll
    for (int n = 0; n < vectors_of(kType); ++n) parts[n] = load_vector(from + 16 * n);
    unpack<kType>(parts, v.x + g * kRun);
  }
}

template <int kType>
__device__ __forceinline__ void store_whole(const Tile& t, const Spots& s, const Place& p,
                                            const Values& v) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (g >= t.groups) break;
    char* to = group_of_whole<itemsize(kType)>(s, p, g);
    Vector parts[2];
    pack<kType>(v.x + g * kRun, parts);
#pragma unroll
    for (int n = 0; n < vectors_of(kType); ++n) store_vector(to + 16 * n, parts[n]);
  }
}

__device__ __forceinline__ bool in_memory(int location) {
  return location != kImmediate && !(location & kNarrow);
}

__device__ __forceinline__ float argument(Word w) {
  return __uint_as_float(static_cast<uint32_t>(w));
}

// Group g of a value in shared memory, or of a scalar.
__device__ __forceinline__ void group_in(const Tile& t, int location, Word number, int g, float* x) {
  if (!in_memory(location)) {
    float y = location == kImmediate ? argument(number) : *narrow_at<float>(t, location, g);
#pragma unroll
    for (int e = 0; e < kRun; ++e) x[e] = y;
    return;
  }
  // A group that the kernel does not have counts for nothing.
  const float4* from = run_at(t, location, g < t.groups ? g : 0);
  float4 low = from[0], high = from[kThreads];
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
  x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

__device__ __forceinline__ void fetch(const Tile& t, int location, Word number, Values& v) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) group_in(t, location, number, g, v.x + g * kRun);
}

__device__ __forceinline__ void keep(const Tile& t, int location, const Values& v) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (g >= t.groups) break;
    const float* x = v.x + g * kRun;
    float4* to = run_at(t, location, g);
    to[0] = make_float4(x[0], x[1], x[2], x[3]);
    to[kThreads] = make_float4(x[4], x[5], x[6], x[7]);
  }
}

// Copies ahead: into a stage, vector n of group g of each thread side by side.

__device__ __forceinline__ int staged_at(const Tile& t, int g, int vectors, int n) {
  return ((g * vectors + n) * kThreads + t.thread) * 16;
}

template <int kType>
__device__ __forceinline__ void load_staged_as(const Tile& t, const unsigned char* from, Values& v) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    int own = g < t.groups ? g : 0;
    Vector parts[2];
#pragma unroll
    for (int n = 0; n < vectors_of(kType); ++n)
      parts[n] = *reinterpret_cast<const Vector*>(from + staged_at(t, own, vectors_of(kType), n));
    unpack<kType>(parts, v.x + g * kRun);
  }
}

// V = the tile of an access; where masked off, V stays as it is if b, or becomes 0.
__device__ __forceinline__ void load(const Tile& t, const Spots& s, Instruction own, Values& v) {
  Place p = place_at(t, own.a(), t.steps);
  if (p.flags() & kWhole) {
    with_vector_type(own.type2(), [&](auto constant) {
      load_whole<decltype(constant)::value>(t, s, p, v);
    });
    return;
  }
  if (p.flags() & kRuns && !own.b()) {
    Cursor c = cursor_at(t, own.a(), t.steps);
    const char* end = end_of(t, own.a());
    with_vector_type(own.type2(), [&](auto constant) {
      load_shifted<decltype(constant)::value>(t, s, c, end, v);
    });
    return;
  }
  if (own.b()) keep(t, own.dst(), v);
  load_runs(t, own);
  fetch(t, own.dst(), 0, v);
}

// The tile of an access = V.
__device__ __forceinline__ void store(const Tile& t, const Spots& s, Instruction own,
                                      const Values& v) {
  Place p = place_at(t, own.a(), t.steps);
  if (p.flags() & kWhole) {
    with_vector_type(own.type2(), [&](auto constant) {
      store_whole<decltype(constant)::value>(t, s, p, v);
    });
    return;
  }
  if (p.flags() & kRuns) {
    Cursor c = cursor_at(t, own.a(), t.steps);
    with_vector_type(own.type2(), [&](auto constant) {
      store_shifted<decltype(constant)::value>(t, s, c, v);
    });
    return;
  }
  keep(t, own.dst(), v);
  store_runs(t, own);
}

// V = what the copies have brought, or where they could not, the tile as it lies.
__device__ __forceinline__ void load_staged(const Tile& t, const Spots& s, Instruction own, int stage,
                                            Word at, Values& v) {
  if (!(cursor_of_first(t, own.a()).flags() & kVectors)) {
    load_runs(t, own);
    return fetch(t, own.dst(), 0, v);
  }
  const unsigned char* from = t.shared + stage + static_cast<int>(at);
  with_vector_type(own.type2(), [&](auto constant) {
    load_staged_as<decltype(constant)::value>(t, from, v);
  });
}

template <int kSize>
__device__ __forceinline__ void copy_whole(const Tile& t, const Spots& s, const Place& p,
                                           unsigned char* to) {
  constexpr int kEach = kSize * kRun / 16;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (g >= t.groups) break;
    const char* from = group_of_whole<kSize>(s, p, g);
#pragma unroll
    for (int n = 0; n < kEach; ++n) copy_async(to + staged_at(t, g, kEach, n), from + 16 * n);
  }
}

// Starts the copies for which `take_task` has left cursors, or of `steps` tasks on.
VTC_OUT_OF_LINE __device__ void copy_ahead(const Tile t, const Spots s, int stage, int steps) {
  int own = t.accesses(), end = own + t.copies();
#pragma unroll 1
  for (int n = own; n < end; ++n) {
    Place whole = place_at(t, n, steps);
    if (!(whole.flags() & kVectors)) continue;
    const Cursor& first = cursor_of_first(t, n);
    unsigned char* to = t.shared + stage + static_cast<int>(first.stage);
    int size = static_cast<int>(first.size), each = size == 2 ? 1 : 2;
    if (whole.flags() & kWhole) {
      if (size == 2)
        copy_whole<2>(t, s, whole, to);
      else
        copy_whole<4>(t, s, whole, to);
      continue;
    }
    Cursor p = cursor_at(t, n, steps);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (g >= t.groups) break;
      int there = p.has_row(s.i(g)) ? static_cast<int>(p.columns >> 16) - s.j(g) : 0;
      int bytes = there <= 0 ? 0 : there >= kRun ? kRun * size : there * size;
      const char* from = group_at(s, p, g, size);
      for (int n = 0; n < each; ++n) {
        unsigned char* part = to + staged_at(t, g, each, n);
        if (bytes >= 16 * n + 16)
          copy_async(part, from + 16 * n);
        else
          *reinterpret_cast<Vector*>(part) = load_up_to(from + 16 * n, from + bytes);
      }
    }
  }
}

}  // namespace vtc
