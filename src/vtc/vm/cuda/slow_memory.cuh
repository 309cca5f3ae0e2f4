// Loads and stores an element at a time, between buffers and shared memory.
#pragma once

#include "access.cuh"

namespace vtc {

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

// dst = a tile of access a; where masked off: the operand of the arguments, if b says so, or 0.
__device__ __forceinline__ void slow_load(const Tile& t, Instruction own, int& pc) {
  Access a = access_of(t, own.a());
  Cursor p = cursor_at(t, own.a(), t.steps);
  int to = own.dst(), type = a.type();
  bool has_other = own.b();
  const char* from = a.pointer();
  with_type(own.type(), [&](auto zero) {
    using T = decltype(zero);
    Source<T> other{kImmediate, T()};
    if (has_other) {
      int location = static_cast<int>(t.words[pc++]);
      other = source<T>(t, location, pc);
    }
#pragma unroll 1
    for (int e = 0; e < t.groups * kRun; e += step_of(to)) {
      int g = e / kRun, j = t.column_of(g, e % kRun);
      T x = other.at(t, e);
      if (to & kNarrow) j = 0;
      int64_t address = p.base + t.i(g) * p.row + j * p.column;
      if (p.has(t.i(g), j) && add_terms(t, a, e, address) && inside(t, a, address))
        x = read_element<T>(from, type, address);
      put<T>(t, to, e, x);
    }
  });
}

// Access a = the operand of the arguments.
__device__ __forceinline__ void slow_store(const Tile& t, Instruction own, int& pc) {
  Access a = access_of(t, own.a());
  Cursor p = cursor_at(t, own.a(), t.steps);
  int type = a.type(), step = a.kind() & 2 ? 1 : kRun;
  char* to = a.pointer();
  with_type(own.type(), [&](auto zero) {
    using T = decltype(zero);
    Source<T> value = source<T>(t, own.dst(), pc);
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

}  // namespace vtc
