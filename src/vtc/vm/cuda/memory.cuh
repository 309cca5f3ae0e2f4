// Loads and stores of tiles, and copies ahead of time.
#pragma once

#include "scalars.cuh"

namespace vtc {

struct Access {
  Words words;
  int at;
  int dims;

  __device__ __forceinline__ int field(int shift) const { return words[at] >> shift & 0xff; }
  __device__ __forceinline__ int buffer() const { return words[at] & 0xffff; }
  __device__ __forceinline__ int type() const { return field(16); }
  __device__ __forceinline__ int terms() const { return field(24); }
  __device__ __forceinline__ int masks() const { return field(32); }
  __device__ __forceinline__ int kind() const { return field(40); }
  __device__ __forceinline__ bool vector() const { return field(48); }
  __device__ __forceinline__ int term(int n) const { return at + kAccessFixed + dims + 3 * n; }
  __device__ __forceinline__ int mask(int n) const { return term(terms()) + 3 * n; }
  __device__ __forceinline__ int end() const { return mask(masks()); }
  __device__ __forceinline__ char* pointer() const {
    return reinterpret_cast<char*>(words[kBlockWords + 2 * buffer()]);
  }
  __device__ __forceinline__ int64_t extent() const {
    return static_cast<int64_t>(words[kBlockWords + 2 * buffer() + 1] & kExtentMask);
  }
  // Its number in the program.
  __device__ __forceinline__ Word number() const {
    return words[kBlockWords + 2 * buffer() + 1] >> kExtentBits;
  }
  // May 16 bytes be moved at once? What the lowering knows, and what the address is.
  __device__ __forceinline__ bool vectors() const {
    return vector() && !(words[1] >> (buffer() & 63) & 1);
  }
};

constexpr int kEverything = 0x7fffffff;

// A tile of a buffer: the address of its element (0, 0), in elements, and the part that is there.
struct Place {
  int64_t base, row, column;
  int r0, r1, c0, c1;

  // Is anything of a row there?
  __device__ __forceinline__ bool has_row(int i) const { return i >= r0 && i < r1 && c0 < c1; }
  __device__ __forceinline__ bool has(int i, int j) const {
    return i >= r0 && i < r1 && j >= c0 && j < c1;
  }
};

__device__ __forceinline__ int clamp_to(int64_t x) {
  return x < 0 ? 0 : x > kEverything ? kEverything : static_cast<int>(x);
}

// The place of an access at the coordinates of a set; r and c are the extents there. What is
// written does not vary along an axis that its kind lacks: there one element stands for all.
__device__ __forceinline__ Place place_of(const Tile& t, const Access& a, int set, int r, int c,
                                          bool writes) {
  const int64_t* at = t.coordinate(set);
  int kind = a.kind(), some = writes ? 1 : kEverything;
  Place p{a.words.number(a.at + 1), a.words.number(a.at + 2), a.words.number(a.at + 3),
          0, kind & 1 ? r : some, 0, kind & 2 ? c : some};
  for (int d = 0; d < t.dims(); ++d) p.base += at[d] * a.words.number(a.at + kAccessFixed + d);
  for (int n = 0; n < a.masks(); ++n) {
    int m = a.mask(n), d = static_cast<int>(a.words[m]);
    int low = clamp_to(a.words.number(m + 1) - at[d]), high = clamp_to(a.words.number(m + 2) - at[d]);
    if (d == t.row() && kind & 1) {
      p.r0 = p.r0 > low ? p.r0 : low;
      p.r1 = p.r1 < high ? p.r1 : high;
    } else if (d == t.column() && kind & 2) {
      p.c0 = p.c0 > low ? p.c0 : low;
      p.c1 = p.c1 < high ? p.c1 : high;
    } else if (low > 0 || high <= 0) {
      p.r1 = 0;
    }
  }
  return p;
}

__device__ __forceinline__ void fail(const Tile& t, const Access& a, int term) {
  Word here = (t.words[2] >> 48) + 1;
  here = here << 32 | a.number() << 8 | static_cast<Word>(term);
  atomicCAS(reinterpret_cast<unsigned long long*>(t.words[0]), 0ull, here);
}

// Adds the runtime terms of element e to an address. False, and a fault, for an index out of range.
__device__ __forceinline__ bool add_terms(const Tile& t, const Access& a, int e, int64_t& address) {
  int terms = a.terms();
  for (int n = 0; n < terms; ++n) {
    int w = a.term(n), location = static_cast<int>(a.words[w] & 0xffff);
    bool wide_type = (a.words[w] >> 16 & 0xff) == T_I64;
    int64_t value = wide_type ? Source<int64_t>{location, 0}.at(t, e)
                              : Source<int32_t>{location, 0}.at(t, e);
    if (a.words[w] >> 24 & 0xff) {
      int64_t size = a.words.number(w + 2);
      if (value < 0) value += size;
      if (value < 0 || value >= size) {
        fail(t, a, n);
        return false;
      }
    }
    address += a.words.number(w + 1) * value;
  }
  return true;
}

// Is an address that terms have produced inside of the buffer? If not, that is a fault.
__device__ __forceinline__ bool inside(const Tile& t, const Access& a, int64_t address) {
  if (!a.terms() || (address >= 0 && address < a.extent())) return true;
  fail(t, a, a.terms() - 1);
  return false;
}

// Is any column of group g there? Elements of a group are `distance` apart.
__device__ __forceinline__ bool has_columns(const Tile& t, const Place& p, int g) {
  for (int e = 0; e < kRun; ++e)
    if (t.column_of(g, e) >= p.c0 && t.column_of(g, e) < p.c1) return true;
  return false;
}

// Element `n` of a buffer of memory type `type`, in its compute type as U.
template <class U>
__device__ __forceinline__ U read_element(const char* p, int type, int64_t n) {
  switch (type) {
    case T_F64: return static_cast<U>(reinterpret_cast<const double*>(p)[n]);
    case T_F32: return static_cast<U>(reinterpret_cast<const float*>(p)[n]);
    case T_BF16: return static_cast<U>(from_bf16(reinterpret_cast<const uint16_t*>(p)[n]));
    case T_F16: return static_cast<U>(from_f16(reinterpret_cast<const uint16_t*>(p)[n]));
    case T_I64: return static_cast<U>(reinterpret_cast<const int64_t*>(p)[n]);
    case T_I32: return static_cast<U>(reinterpret_cast<const int32_t*>(p)[n]);
    case T_I16: return static_cast<U>(reinterpret_cast<const int16_t*>(p)[n]);
    case T_I8: return static_cast<U>(reinterpret_cast<const int8_t*>(p)[n]);
    default: return static_cast<U>(reinterpret_cast<const uint8_t*>(p)[n]);
  }
}

template <class T>
__device__ __forceinline__ void write_element(char* p, int type, int64_t n, T x) {
  switch (type) {
    case T_F64: reinterpret_cast<double*>(p)[n] = static_cast<double>(x); return;
    case T_F32: reinterpret_cast<float*>(p)[n] = static_cast<float>(x); return;
    case T_BF16:
      reinterpret_cast<uint16_t*>(p)[n] =
          static_cast<uint16_t>(pack_bf16(static_cast<float>(x), 0.0f));
      return;
    case T_F16:
      reinterpret_cast<uint16_t*>(p)[n] =
          static_cast<uint16_t>(pack_f16(static_cast<float>(x), 0.0f));
      return;
    case T_I64: reinterpret_cast<int64_t*>(p)[n] = to_i64(x); return;
    case T_I32: reinterpret_cast<int32_t*>(p)[n] = to_i32(x); return;
    case T_I16: reinterpret_cast<int16_t*>(p)[n] = static_cast<int16_t>(to_i32(x)); return;
    case T_I8: reinterpret_cast<int8_t*>(p)[n] = static_cast<int8_t>(to_i32(x)); return;
    case T_U8: reinterpret_cast<uint8_t*>(p)[n] = static_cast<uint8_t>(to_i32(x)); return;
    default: reinterpret_cast<uint8_t*>(p)[n] = x != 0;
  }
}

// Any load, an element at a time, into shared memory.
__device__ __forceinline__ void slow_load(const Tile& t, Instruction own, int& pc) {
  bool has_other = own.b();
  Access a{t.words, pc, t.dims()};
  pc = a.end();
  Place p = place_of(t, a, 0, t.r, t.c, false);
  int to = own.dst(), type = a.type();
  const char* from = a.pointer();
  with_type(own.type(), [&](auto zero) {
    using T = decltype(zero);
    Source<T> other = source<T>(t, own.a(), pc);
#pragma unroll 1
    for (int e = 0; e < t.groups * kRun; e += step_of(to)) {
      int g = e / kRun, j = t.column_of(g, e % kRun);
      T x = has_other ? other.at(t, e) : T();
      if (to & kNarrow) j = 0;
      int64_t address = p.base + t.i(g) * p.row + j * p.column;
      if (p.has(t.i(g), j) && add_terms(t, a, e, address) && inside(t, a, address))
        x = read_element<T>(from, type, address);
      put<T>(t, to, e, x);
    }
  });
}

__device__ __forceinline__ void slow_store(const Tile& t, Instruction own, int& pc) {
  Access a{t.words, pc, t.dims()};
  pc = a.end();
  Place p = place_of(t, a, 0, t.r, t.c, true);
  int type = a.type(), step = a.kind() & 2 ? 1 : kRun;
  char* to = a.pointer();
  with_type(own.type(), [&](auto zero) {
    using T = decltype(zero);
    Source<T> value = source<T>(t, own.a(), pc);
#pragma unroll 1
    for (int e = 0; e < t.groups * kRun; e += step) {
      int g = e / kRun, j = t.column_of(g, e % kRun);
      if (!p.has(t.i(g), j)) continue;
      int64_t address = p.base + t.i(g) * p.row + j * p.column;
      if (add_terms(t, a, e, address) && inside(t, a, address))
        write_element<T>(to, type, address, value.at(t, e));
    }
  });
}

// Values of 32 bits in the thread's own registers. Integers and bools are bits of floats there.
struct Values {
  float x[kElements];
};

template <int kType>
__device__ __forceinline__ float load_element(const char* p, int64_t n) {
  if constexpr (compute_type(kType) == T_F32)
    return read_element<float>(p, kType, n);
  else if constexpr (kType == T_BOOL)
    return __uint_as_float(read_element<uint32_t>(p, kType, n));
  else
    return __int_as_float(read_element<int32_t>(p, kType, n));
}

template <int kType>
__device__ __forceinline__ void unpack(const Vector* v, float* x) {
  const uint32_t w[8] = {v[0].x, v[0].y, v[0].z, v[0].w, v[1].x, v[1].y, v[1].z, v[1].w};
#pragma unroll
  for (int n = 0; n < kRun; ++n) {
    if constexpr (kType == T_BF16)
      x[n] = n & 1 ? __uint_as_float(w[n / 2] & 0xffff0000u) : from_bf16(w[n / 2]);
    else if constexpr (kType == T_F16)
      x[n] = from_f16(n & 1 ? w[n / 2] >> 16 : w[n / 2] & 0xffff);
    else
      x[n] = __uint_as_float(w[n]);
  }
}

// Vectors of kRun elements; 0 for types that are moved an element at a time.
__device__ __forceinline__ constexpr int vectors_of(int type) {
  return type == T_BF16 || type == T_F16 ? 1 : type == T_F32 || type == T_I32 ? 2 : 0;
}

template <int kType>
__device__ __forceinline__ void load_groups(const Tile& t, const Access& a, const Place& p,
                                            bool keeps, Values& v) {
  constexpr int kVectors = vectors_of(kType);
  const char* from = a.pointer();
  bool vectors = kVectors && a.vectors();
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    int64_t address = p.base + t.i(g) * p.row + t.j(g) * p.column;
    bool there = g < t.groups && p.has_row(t.i(g));
    if (a.terms()) there = there && has_columns(t, p, g) && add_terms(t, a, g * kRun, address);
    float* x = v.x + g * kRun;
    if constexpr (kVectors > 0) {
      if (vectors && there && t.j(g) >= p.c0 && t.j(g) + kRun <= p.c1 && inside(t, a, address) &&
          inside(t, a, address + kRun - 1)) {
        Vector parts[2];
#pragma unroll
        for (int n = 0; n < kVectors; ++n)
          parts[n] = load_vector(from + address * itemsize(kType) + 16 * n);
        unpack<kType>(parts, x);
        continue;
      }
    }
#pragma unroll
    for (int e = 0; e < kRun; ++e) {
      int j = t.column_of(g, e);
      int64_t n = address + e * t.distance * p.column;
      if (there && j >= p.c0 && j < p.c1 && inside(t, a, n))
        x[e] = load_element<kType>(from, n);
      else if (!keeps)
        x[e] = 0.0f;
    }
  }
}

template <int kType>
__device__ __forceinline__ void store_groups(const Tile& t, const Access& a, const Place& p,
                                             const Values& v) {
  constexpr int kVectors = vectors_of(kType);
  char* to = a.pointer();
  bool vectors = kVectors && a.vectors();
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (g >= t.groups || !p.has_row(t.i(g))) continue;
    int64_t address = p.base + t.i(g) * p.row + t.j(g) * p.column;
    if (a.terms() && !(has_columns(t, p, g) && add_terms(t, a, g * kRun, address))) continue;
    const float* x = v.x + g * kRun;
    if constexpr (kVectors > 0) {
      if (vectors && t.j(g) >= p.c0 && t.j(g) + kRun <= p.c1 && inside(t, a, address) &&
          inside(t, a, address + kRun - 1)) {
        uint32_t w[8];
#pragma unroll
        for (int n = 0; n < 4 * kVectors; ++n) {
          if constexpr (kType == T_BF16)
            w[n] = pack_bf16(x[2 * n], x[2 * n + 1]);
          else if constexpr (kType == T_F16)
            w[n] = pack_f16(x[2 * n], x[2 * n + 1]);
          else
            w[n] = __float_as_uint(x[n]);
        }
#pragma unroll
        for (int n = 0; n < kVectors; ++n)
          store_vector(to + address * itemsize(kType) + 16 * n,
                       Vector{w[4 * n], w[4 * n + 1], w[4 * n + 2], w[4 * n + 3]});
        continue;
      }
    }
#pragma unroll
    for (int e = 0; e < kRun; ++e) {
      int j = t.column_of(g, e);
      int64_t n = address + e * t.distance * p.column;
      if (j < p.c0 || j >= p.c1 || !inside(t, a, n)) continue;
      if constexpr (compute_type(kType) == T_F32)
        write_element<float>(to, kType, n, x[e]);
      else if constexpr (kType == T_BOOL)
        write_element<uint32_t>(to, kType, n, __float_as_uint(x[e]));
      else
        write_element<int32_t>(to, kType, n, __float_as_int(x[e]));
    }
  }
}

template <int kType>
__device__ __forceinline__ void load_staged(const Tile& t, int stage, Values& v) {
  constexpr int kVectors = vectors_of(kType);
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (g >= t.groups) break;
    Vector parts[2];
#pragma unroll
    for (int n = 0; n < kVectors; ++n)
      parts[n] = *reinterpret_cast<const Vector*>(
          t.shared + stage + ((g * kVectors + n) * kThreads + t.thread) * 16);
    unpack<kType>(parts, v.x + g * kRun);
  }
}

// Calls f with an integral constant of the memory type, of those that are computed in 32 bits.
template <int kType>
struct MemoryType {
  static constexpr int value = kType;
};

template <class F>
__device__ __forceinline__ void with_memory_type(int type, F f) {
  switch (type) {
    case T_F32: return f(MemoryType<T_F32>());
    case T_BF16: return f(MemoryType<T_BF16>());
    case T_F16: return f(MemoryType<T_F16>());
    case T_I32: return f(MemoryType<T_I32>());
    case T_I16: return f(MemoryType<T_I16>());
    case T_I8: return f(MemoryType<T_I8>());
    case T_U8: return f(MemoryType<T_U8>());
    default: return f(MemoryType<T_BOOL>());
  }
}

// W = the tile, or what the copies ahead of time have brought of it.
__device__ __forceinline__ void fast_load(const Tile& t, Instruction own, int& pc, int stage,
                                          Values& w) {
  int staged = static_cast<int>(t.words[pc++]);
  Access a{t.words, pc, t.dims()};
  pc = a.end();
  if (staged && a.vectors()) {
    switch (a.type()) {
      case T_BF16: return load_staged<T_BF16>(t, stage + staged - 1, w);
      case T_F16: return load_staged<T_F16>(t, stage + staged - 1, w);
      default: return load_staged<T_F32>(t, stage + staged - 1, w);
    }
  }
  Place p = place_of(t, a, 0, t.r, t.c, false);
  bool keeps = own.b();  // where masked off, W stays as it is
  with_memory_type(a.type(), [&](auto type) {
    load_groups<decltype(type)::value>(t, a, p, keeps, w);
  });
}

__device__ __forceinline__ void fast_store(const Tile& t, Instruction own, int& pc,
                                           const Values& w) {
  Access a{t.words, pc, t.dims()};
  pc = a.end();
  Place p = place_of(t, a, 0, t.r, t.c, true);
  with_memory_type(a.type(), [&](auto type) {
    store_groups<decltype(type)::value>(t, a, p, w);
  });
}

// Starts the copies of a task's loads into a stage. The task's coordinates become set 1.
__device__ __forceinline__ void copy_ahead(const Tile& t, int64_t task, int stage, int prefetches) {
  __syncwarp();
  t.locate(task, 1);
  const int64_t* at = t.coordinate(1);
  int r = t.row() == kNoDim ? 1 : static_cast<int>(t.extent(t.row(), at[t.row()]));
  int c = t.column() == kNoDim ? 1 : static_cast<int>(t.extent(t.column(), at[t.column()]));
  int w = t.dimension(t.dims());
  for (int n = 0; n < prefetches; ++n) {
    unsigned char* to = t.shared + stage + static_cast<int>(t.words[w]);
    Access a{t.words, w + 1, t.dims()};
    w = a.end();
    if (!a.vectors()) continue;
    Place p = place_of(t, a, 1, r, c, false);
    int size = itemsize(a.type()), each = size == 2 ? 1 : 2;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (g >= t.groups) break;
      int there = p.has_row(t.i(g)) ? p.c1 - t.j(g) : 0;
      int bytes = there < 0 ? 0 : there > kRun ? kRun * size : there * size;
      const char* from = a.pointer() + (p.base + t.i(g) * p.row + t.j(g)) * size;
      for (int v = 0; v < each; ++v) {
        int part = bytes < 16 ? bytes : 16;
        copy_async(to + ((g * each + v) * kThreads + t.thread) * 16,
                   part ? from + 16 * v : a.pointer(), part);
        bytes -= part;
      }
    }
  }
}

}  // namespace vtc
