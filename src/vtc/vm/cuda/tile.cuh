// What a thread knows of the tile at hand, and where its values lie. Stands behind ptx.cuh.
#pragma once

#include "layout.h"

namespace vtc {

using Word = uint64_t;

struct Instruction {
  Word w;

  __device__ __forceinline__ int op() const { return w & 0xff; }
  __device__ __forceinline__ int type() const { return w >> 8 & 0xf; }
  __device__ __forceinline__ int type2() const { return w >> 12 & 0xf; }
  __device__ __forceinline__ int dst() const { return w >> 16 & 0xffff; }
  __device__ __forceinline__ int a() const { return w >> 32 & 0xffff; }
  __device__ __forceinline__ int b() const { return w >> 48 & 0xffff; }
};

// Words of a launch; p[i] is uniform over the block.
struct Words {
  const Word* p;

  __device__ __forceinline__ Word operator[](int i) const { return p[i]; }
  __device__ __forceinline__ int64_t number(int i) const { return static_cast<int64_t>(p[i]); }
};

__device__ __forceinline__ constexpr int itemsize(int type) {
  return type == T_F64 || type == T_I64                     ? 8
         : type == T_F32 || type == T_I32                   ? 4
         : type == T_BF16 || type == T_F16 || type == T_I16 ? 2
                                                            : 1;
}

struct Tile {
  Words words;
  unsigned char* shared;
  int thread;
  int head;      // word of the kernel's head
  int groups, distance;
  int row0, row1, column0, column1;  // row and first column of each group
  int r, c;       // extents of the tile
  uint32_t live;  // elements inside of them, a bit each
  int turn;       // which of the scratch's two buffers is next

  // Of the head, read when they are wanted: registers are for values.
  __device__ __forceinline__ int dims() const { return words[head] & 0xff; }
  __device__ __forceinline__ int row() const { return words[head] >> 8 & 0xff; }
  __device__ __forceinline__ int column() const { return words[head] >> 16 & 0xff; }
  __device__ __forceinline__ int slots() const { return words[head + 1] & 0xffff; }
  // Bytes of the scratch in shared memory, and of this warp's two sets of coordinates.
  __device__ __forceinline__ int scratch() const { return words[head + 4] >> 32; }
  __device__ __forceinline__ int coordinates() const {
    return scratch() + kScratchBytes + thread / 32 * (2 * kMaxDims * 8);
  }

  __device__ __forceinline__ int64_t* coordinate(int set) const {
    return reinterpret_cast<int64_t*>(shared + coordinates()) + set * kMaxDims;
  }
  __device__ __forceinline__ int dimension(int d) const { return head + kHeadFixed + 3 * d; }
  __device__ __forceinline__ int64_t size(int d) const { return words.number(dimension(d)); }
  __device__ __forceinline__ int64_t span(int d) const { return words.number(dimension(d) + 1); }

  // Elements of the task along a dimension.
  __device__ __forceinline__ int64_t extent(int d, int64_t start) const {
    int64_t left = size(d) - start, whole = span(d);
    return left < whole ? left : whole;
  }
  // No arrays: what is indexed would lie in memory.
  __device__ __forceinline__ int i(int g) const { return g ? row1 : row0; }
  __device__ __forceinline__ int j(int g) const { return g ? column1 : column0; }
  __device__ __forceinline__ int column_of(int g, int e) const { return j(g) + e * distance; }
  __device__ __forceinline__ bool alive(int g, int e) const { return live >> (g * kRun + e) & 1; }
  // Does this group stand for its row, or for all of the tile?
  __device__ __forceinline__ bool first_of_row(int g) const { return j(g) == 0 && i(g) < r; }

  __device__ __forceinline__ void set_live() {
    uint32_t bits = 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
#pragma unroll
      for (int e = 0; e < kRun; ++e)
        bits |= static_cast<uint32_t>(g < groups && i(g) < r && column_of(g, e) < c)
                << (g * kRun + e);
    live = bits;
  }

  __device__ __forceinline__ void set_extent(int d, int64_t extent) {
    if (d == row()) r = static_cast<int>(extent);
    if (d == column()) c = static_cast<int>(extent);
  }

  // The coordinates where a task starts, into a set of this warp's.
  __device__ __forceinline__ void locate(int64_t task, int set) const {
    int64_t* at = coordinate(set);
    uint32_t rest = static_cast<uint32_t>(task);
    for (int d = dims() - 1; d >= 0; --d) {
      uint32_t n = static_cast<uint32_t>(words[dimension(d) + 2]);
      uint32_t q = n > 1 ? rest / n : rest;
      at[d] = static_cast<int64_t>(n > 1 ? rest - q * n : 0) * span(d);
      rest = q;
    }
    __syncwarp();
  }

  // The task's part of the tile's axes, at the coordinates of set 0.
  __device__ __forceinline__ void set_task(int64_t task) {
    __syncwarp();
    locate(task, 0);
    int before_r = r, before_c = c;
    r = c = 1;
    int64_t* at = coordinate(0);
    int down = row(), across = column();
    if (down != kNoDim) r = static_cast<int>(extent(down, at[down]));
    if (across != kNoDim) c = static_cast<int>(extent(across, at[across]));
    if (r < 0) r = 0;
    if (c < 0) c = 0;
    if (r != before_r || c != before_c) set_live();
  }
};

// Elements in shared memory.

template <class T>
__device__ __forceinline__ T* narrow_at(const Tile& t, int location, int g) {
  return reinterpret_cast<T*>(t.shared + (location & 0x3fff) * 16 +
                              (t.thread * kGroups + g) * sizeof(T));
}

template <class T>
__device__ __forceinline__ T* wide_at(const Tile& t, int location, int e) {
  constexpr int kEach = 16 / sizeof(T);
  return reinterpret_cast<T*>(t.shared + (location & 0x3fff) * 16 +
                              (e / kEach * kThreads + t.thread) * 16) + e % kEach;
}

// Element e of a value in shared memory (narrow or wide), or an immediate.
template <class T>
struct Source {
  int location;
  T value;

  __device__ __forceinline__ T at(const Tile& t, int e) const {
    if (location == kImmediate) return value;
    return location & kNarrow ? *narrow_at<T>(t, location, e / kRun) : *wide_at<T>(t, location, e);
  }
};

__device__ __forceinline__ double as_double(Word w) {
  return __longlong_as_double(static_cast<long long>(w));
}

// An immediate: f64 bits for floats, else an integer.
template <class T>
__device__ __forceinline__ T immediate(Word w) {
  return static_cast<T>(static_cast<int64_t>(w));
}
template <>
__device__ __forceinline__ float immediate<float>(Word w) {
  return static_cast<float>(as_double(w));
}
template <>
__device__ __forceinline__ double immediate<double>(Word w) {
  return as_double(w);
}

// The operand at `location`, whose immediate, if it is one, is the word at `pc`.
template <class T>
__device__ __forceinline__ Source<T> source(const Tile& t, int location, int& pc) {
  Source<T> s{location, T()};
  if (location == kImmediate) s.value = immediate<T>(t.words[pc++]);
  return s;
}

template <class T>
__device__ __forceinline__ void put(const Tile& t, int location, int e, T value) {
  if (location & kNarrow)
    *narrow_at<T>(t, location, e / kRun) = value;
  else
    *wide_at<T>(t, location, e) = value;
}

// Elements of a value at `location` that this thread computes, and the step between them.
__device__ __forceinline__ int count_of(const Tile& t, int location) {
  return t.groups * kRun;
}
__device__ __forceinline__ int step_of(int location) { return location & kNarrow ? kRun : 1; }

// Calls f.template operator()<T>() with the C++ type of a compute type; bools are 32 bits wide.
template <class F>
__device__ __forceinline__ void with_type(int type, F f) {
  switch (type) {
    case T_F32: return f(float());
    case T_F64: return f(double());
    case T_I64: return f(int64_t());
    case T_I32: return f(int32_t());
    default: return f(uint32_t());
  }
}

}  // namespace vtc
