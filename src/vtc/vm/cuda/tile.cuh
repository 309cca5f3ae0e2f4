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

// An instruction of the device.
struct alignas(16) Pair {
  Word head, argument;
};

// Words of a launch, in shared memory.
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
  int head;    // word of the kernel's head
  int groups;  // of a thread that have elements
  int r, c;    // extents of the tile
  int steps;   // tasks of this block since the one that coordinates and cursors are of
  unsigned char* own;  // this warp's own area

  __device__ __forceinline__ int dims() const { return words[head] & 0xff; }
  __device__ __forceinline__ int row() const { return words[head] >> 8 & 0xff; }
  __device__ __forceinline__ int column() const { return words[head] >> 16 & 0xff; }
  __device__ __forceinline__ int copies() const { return words[head] >> 24 & 0xff; }
  __device__ __forceinline__ int stages() const { return words[head] >> 32 & 0xff; }
  __device__ __forceinline__ int accesses() const { return words[head] >> 40 & 0xff; }
  // The one dimension that tasks are along, or -1: there are several, or masks, or loops.
  __device__ __forceinline__ int steady() const {
    return static_cast<int>(words[head] >> 48 & 0xff) - 1;
  }
  // Are all instructions of the body among those of `run_even`?
  __device__ __forceinline__ bool plain() const { return words[head] >> 56 & 1; }
  __device__ __forceinline__ int slots() const { return words[head + 1] & 0xffff; }
  __device__ __forceinline__ int distance() const { return words[head + 1] >> 16 & 0xffff; }
  __device__ __forceinline__ int tasks() const { return static_cast<int>(words[head + 2]); }
  __device__ __forceinline__ int scratch() const { return words[head + 4] >> 32; }
  // Of values that the body computes: the first one's location, without its bits, and the bytes from
  // there to where they lie of the next task, if two are run at once; else 0.
  __device__ __forceinline__ int own_from() const { return words[head + 6] & 0xffffffff; }
  __device__ __forceinline__ int own_bytes() const { return words[head + 6] >> 32; }

  // Of the blocks of threads that run the kernel: this one's number, and how many there are.
  __device__ __forceinline__ int first() const { return words[kBlockWords - 1] & 0xffffffff; }
  __device__ __forceinline__ int blocks() const { return words[kBlockWords - 1] >> 32; }

  __device__ __forceinline__ void find_own() {
    int first = static_cast<int>(words[head + 5] & 0xffffffff);
    own = shared + first + thread / 32 * warp_bytes(accesses() + copies());
  }
  __device__ __forceinline__ int64_t* coordinate(int set) const {
    return reinterpret_cast<int64_t*>(own) + set * kMaxDims;
  }
  // Where the tile starts along a dimension.
  __device__ __forceinline__ int64_t start(int d) const {
    return coordinate(0)[d] + (d == steady() ? steps * blocks() * span(d) : 0);
  }
  __device__ __forceinline__ int dimension(int d) const { return head + kHeadFixed + 3 * d; }
  __device__ __forceinline__ int64_t size(int d) const { return words.number(dimension(d)); }
  __device__ __forceinline__ int64_t span(int d) const { return words.number(dimension(d) + 1); }

  // Elements of the task along a dimension.
  __device__ __forceinline__ int64_t extent(int d, int64_t start) const {
    int64_t left = size(d) - start, whole = span(d);
    return left < whole ? left : whole;
  }

  // Row and first column of group g.
  __device__ __forceinline__ int i(int g) const {
    return static_cast<unsigned>(thread + g * kThreads) / static_cast<unsigned>(slots());
  }
  __device__ __forceinline__ int j(int g) const {
    int q = static_cast<unsigned>(thread + g * kThreads) % static_cast<unsigned>(slots());
    return distance() == 1 ? q * kRun : q;
  }
  __device__ __forceinline__ int column_of(int g, int e) const { return j(g) + e * distance(); }

  __device__ __forceinline__ void set_extent(int d, int64_t extent) {
    int n = extent < 0 ? 0 : static_cast<int>(extent);
    if (d == row()) r = n;
    if (d == column()) c = n;
  }

  // The coordinates where a task starts.
  __device__ __forceinline__ void locate(int task, int64_t* at) const {
    uint32_t rest = static_cast<uint32_t>(task);
    for (int d = dims() - 1; d >= 0; --d) {
      uint32_t n = static_cast<uint32_t>(words[dimension(d) + 2]), q = 0, own = rest;
      if (n == 1) {
        q = rest, own = 0;
      } else if (d) {
        q = rest / n, own = rest - q * n;
      }
      at[d] = static_cast<int64_t>(own) * span(d);
      rest = q;
    }
  }
};

// The tile of a block of `count` words at the start of shared memory, before its first task.
__device__ __forceinline__ void start(Tile& t, unsigned char* shared, int count) {
  const Word* words = reinterpret_cast<const Word*>(shared);
  t.words = Words{words};
  t.shared = shared + block_bytes(count);
  t.thread = own_thread();
  t.head = static_cast<int>(words[2] >> 16 & 0xffff);
  int rows = static_cast<int>(words[t.head + 1] >> 32 & 0xffff);
  t.groups = (rows * t.slots() + kThreads - 1) / kThreads;
  t.r = t.c = -1;
  t.steps = 0;
  t.find_own();
}

// Where the groups of a thread stand, for code that has unrolled its loops: rows in the high halves,
// first columns in the low ones. Bit `g * kRun + e` of `live`: the element is inside of the tile.
struct Spots {
  uint32_t at[kGroups];
  uint32_t live;
  int distance;

  __device__ __forceinline__ int i(int g) const { return static_cast<int>(at[g] >> 16); }
  __device__ __forceinline__ int j(int g) const { return static_cast<int>(at[g] & 0xffff); }
  __device__ __forceinline__ bool alive(int g, int e) const { return live >> (g * kRun + e) & 1; }

  __device__ __forceinline__ void set_live(const Tile& t) {
    uint32_t bits = 0;
    if (t.r * t.slots() == kGroups * kThreads && t.c == t.slots() * kRun) {
      live = kElements == 32 ? 0xffffffffu : (1u << kElements % 32) - 1;
      return;
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      bool row = g < t.groups && i(g) < t.r;
#pragma unroll
      for (int e = 0; e < kRun; ++e)
        bits |= static_cast<uint32_t>(row && j(g) + e * distance < t.c) << (g * kRun + e);
    }
    live = bits;
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

// The step between elements of a value at `location` that this thread computes.
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
