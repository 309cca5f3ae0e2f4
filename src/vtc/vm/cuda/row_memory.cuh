// How rows move between memory and registers: see rows.h.
#pragma once

#include "folds.cuh"
#include "group_memory.cuh"
#include "rows.h"

namespace vtc {

static_assert(kElements == kRowElements);

// Elements as they lie in memory: where all are halves that are moved in groups, two a word.
template <bool kHalves>
struct Raw {
  static constexpr int kEach = kHalves ? 4 : 8;  // words a group
  uint32_t w[kGroups * kEach];
};

// Which elements of a row a thread has.
struct RowSpot {
  int slot, lanes, columns, first;  // first: column of the part of a row
  bool aligned;
  int apart;  // columns from one group to the next

  __device__ __forceinline__ RowSpot(int own_slot, const Rows& d, bool in_groups)
      : slot(own_slot), lanes(d.lanes), columns(d.columns), first(0), aligned(in_groups),
        apart(d.lanes * kRun) {}
  __device__ __forceinline__ int group(int g) const { return first + g * apart + slot * kRun; }
  __device__ __forceinline__ int column(int g, int e) const {
    return aligned ? group(g) + e : first + (g * kRun + e) * lanes + slot;
  }
  __device__ __forceinline__ bool has_group(int g) const { return group(g) + kRun <= columns; }
  __device__ __forceinline__ bool cut(int g) const {
    return group(g) < columns && group(g) + kRun > columns;
  }
  // A bit an element that is there; no group is cut.
  __device__ __forceinline__ uint32_t live() const {
    uint32_t bits = 0;
    if (aligned) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) bits |= has_group(g) ? 0xffu << g * kRun : 0;
      return bits;
    }
#pragma unroll
    for (int n = 0; n < kElements; ++n)
      bits |= static_cast<uint32_t>(column(n / kRun, n % kRun) < columns) << n;
    return bits;
  }
};

__device__ __forceinline__ uint32_t element_bits(const char* at, int size) {
  return size == 2 ? *reinterpret_cast<const uint16_t*>(at) : *reinterpret_cast<const uint32_t*>(at);
}

__device__ __forceinline__ void store_element(const RowOperand& to, char* at, float x) {
  if (to.size == 4)
    *reinterpret_cast<float*>(at) = x;
  else
    *reinterpret_cast<uint16_t*>(at) =
        static_cast<uint16_t>(to.type == T_BF16 ? pack_bf16(x, 0.0f) : pack_f16(x, 0.0f));
}

__device__ __forceinline__ char* row_of(const Rows& d, const RowOperand& own, int row) {
  int64_t offset = 0;
  unsigned rest = static_cast<unsigned>(row);
  if (d.axes > 1) {
#pragma unroll
    for (int n = kRowAxes - 1; n > 0; --n) {
      unsigned size = static_cast<unsigned>(d.sizes[n]), whole = rest / size;
      offset += static_cast<int64_t>(rest - whole * size) * own.pitch[n];
      rest = whole;
    }
    offset += static_cast<int64_t>(rest) * own.pitch[0];
  } else {
    offset = static_cast<int64_t>(rest) * own.pitch[kRowAxes - 1];
  }
  return reinterpret_cast<char*>(own.address) + offset;
}

// Starts the loads of a row; what is beyond its end becomes 0.
template <bool kHalves>
__device__ __forceinline__ void issue(const Rows& d, const RowSpot& s, const RowOperand& own, int row,
                                      Raw<kHalves>& to) {
  const char* from = row_of(d, own, row);
  constexpr int kEach = Raw<kHalves>::kEach;
  if (kHalves || s.aligned) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const char* at = from + static_cast<int64_t>(s.group(g)) * own.size;
#pragma unroll
      for (int k = 0; k < kEach / 4; ++k) {
        bool there = s.has_group(g) && (k == 0 || own.size == 4);
        Vector v = load_vector_if(at + 16 * k, there);
        uint32_t* w = to.w + g * kEach + 4 * k;
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
      }
    }
    return;
  }
  if constexpr (!kHalves) {
    if (own.size == 2) {
#pragma unroll
      for (int n = 0; n < kElements; ++n) {
        int c = s.column(n / kRun, n % kRun);
        to.w[n] = c < s.columns ? element_bits(from + static_cast<int64_t>(c) * 2, 2) : 0;
      }
    } else {
#pragma unroll
      for (int n = 0; n < kElements; ++n) {
        int c = s.column(n / kRun, n % kRun);
        to.w[n] = c < s.columns ? element_bits(from + static_cast<int64_t>(c) * 4, 4) : 0;
      }
    }
  }
}

// What `issue` has brought, as numbers.
template <bool kHalves>
__device__ __forceinline__ void take(const RowSpot& s, int type, const Raw<kHalves>& from, Values& v) {
  constexpr int kEach = Raw<kHalves>::kEach;
  if (kHalves || s.aligned) {
    auto unpack_as = [&](auto constant) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        Vector parts[2];
#pragma unroll
        for (int k = 0; k < kEach / 4; ++k) {
          const uint32_t* w = from.w + g * kEach + 4 * k;
          parts[k] = Vector{w[0], w[1], w[2], w[3]};
        }
        unpack<decltype(constant)::value>(parts, v.x + g * kRun);
      }
    };
    if (type == T_BF16) return unpack_as(MemoryType<T_BF16>());
    if (kHalves || type == T_F16) return unpack_as(MemoryType<T_F16>());
    if constexpr (!kHalves) unpack_as(MemoryType<T_F32>());
    return;
  }
  if constexpr (!kHalves) {
#pragma unroll
    for (int n = 0; n < kElements; ++n) v.x[n] = element_of(type, from.w[n]);
  }
}

// The group that the end of a row cuts, if a thread has it.
__device__ __forceinline__ void take_cut(const Rows& d, const RowSpot& s, const RowOperand& own,
                                         int row, Values& v) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (!s.cut(g)) continue;
    const char* at = row_of(d, own, row) + static_cast<int64_t>(s.group(g)) * own.size;
#pragma unroll
    for (int e = 0; e < kRun; ++e)
      v.x[g * kRun + e] = s.group(g) + e < s.columns
                              ? element_of(own.type, element_bits(at + e * own.size, own.size))
                              : 0.0f;
  }
}

// kCut: the end of a row may cut a group.
template <bool kCut>
__device__ __forceinline__ void put_row(const Rows& d, const RowSpot& s, const RowOperand& own,
                                        int row, const Values& v) {
  char* to = row_of(d, own, row);
  if (s.aligned) {
    with_vector_type(own.type, [&](auto constant) {
      constexpr int kType = decltype(constant)::value;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        if (!s.has_group(g)) continue;
        char* at = to + static_cast<int64_t>(s.group(g)) * itemsize(kType);
        Vector parts[2];
        pack<kType>(v.x + g * kRun, parts);
#pragma unroll
        for (int k = 0; k < vectors_of(kType); ++k) store_vector(at + 16 * k, parts[k]);
      }
    });
    if constexpr (kCut) {
      if (s.columns % kRun == 0) return;
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
        if (s.cut(g))
#pragma unroll
          for (int e = 0; e < kRun; ++e)
            if (s.group(g) + e < s.columns)
              store_element(own, to + static_cast<int64_t>(s.group(g) + e) * own.size,
                            v.x[g * kRun + e]);
    }
    return;
  }
#pragma unroll
  for (int n = 0; n < kElements; ++n) {
    int c = s.column(n / kRun, n % kRun);
    if (c < s.columns) store_element(own, to + static_cast<int64_t>(c) * own.size, v.x[n]);
  }
}

}  // namespace vtc
