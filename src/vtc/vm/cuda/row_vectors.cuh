// Rows that a team of threads has in registers, for the folds of rows.cuh: elements of one type in groups
// (RowGroups), or of any types, anywhere (RowElements).
//
// Both have: Row, a thread's part of a row as it lies in memory; Shared, the same of a vector that is
// the same for all rows; and functions between these, memory and values.
#pragma once

#include "group_memory.cuh"
#include "row_memory.cuh"

namespace vtc {

// Elements beyond the end of a row are `none`.
template <int kCount>
__device__ __forceinline__ void leave(uint32_t live, float none, ValuesOf<kCount>& a) {
  if (live == (1u << kCount) - 1) return;
#pragma unroll
  for (int n = 0; n < kCount; ++n) a.x[n] = live >> n & 1 ? a.x[n] : none;
}

// A thread has kGroupsOf groups of a row, `lanes` groups apart. kRagged: rows begin at any element; then
// groups lie where they are aligned, and those at both ends may be cut. All operands that have rows begin
// alike.
template <int kType, int kGroupsOf, bool kRagged>
struct RowGroups {
  static constexpr int kCount = kGroupsOf * kRun, kSize = itemsize(kType);
  static constexpr bool kSharedByRow = kRagged;  // Shared is another for each row
  struct Row {
    PackedGroup g[kGroupsOf];
  };
  // kRagged: the vectors that cover a group, and the bytes of them ahead of it.
  struct Shared {
    PackedGroup g[kGroupsOf];
    uint32_t skipped[kGroupsOf];
    uint32_t cut;  // a bit a group that is still to be completed
  };

  const Rows& d;
  int slot;

  __device__ __forceinline__ RowGroups(const Rows& own, int own_slot) : d(own), slot(own_slot) {}

  // Elements of a row's first vector that are not its own.
  __device__ __forceinline__ int lead(int row) const {
    if constexpr (!kRagged)
      return 0;
    else
      return static_cast<int>(reinterpret_cast<uint64_t>(row_of(d, d.x, row)) & 15) / kSize;
  }
  __device__ __forceinline__ int first(int g, int lead) const {
    return (g * d.lanes + slot) * kRun - lead;
  }
  __device__ __forceinline__ GroupPart part(int g, int lead) const {
    return {first(g, lead), d.columns};
  }
  // Is there anything of a group?
  __device__ __forceinline__ bool has(int g, int lead) const { return first(g, lead) < d.columns; }
  __device__ __forceinline__ uint32_t live(int lead) const {
    uint32_t bits = 0;
#pragma unroll
    for (int g = 0; g < kGroupsOf; ++g)
      bits |= (kRagged ? part(g, lead).bits() : has(g, lead) ? 0xffu : 0u) << g * kRun;
    return bits;
  }

  // Is the vector of a group that begins at `at` to be read, and may it be?
  static __device__ __forceinline__ bool fits(const RowOperand& own, const char* at) {
    return reinterpret_cast<uint64_t>(at) + 16 <= own.end;
  }

  // Starts the loads of a row. What is not its own of a group, of other rows, is to be left out.
  __device__ __forceinline__ void issue(const RowOperand& own, int row, int lead, Row& to) const {
    const char* from = row_of(d, own, row);
#pragma unroll
    for (int g = 0; g < kGroupsOf; ++g) {
      const char* at = from + static_cast<int64_t>(first(g, lead)) * kSize;
      bool there = has(g, lead) && (!kRagged || fits(own, at));
#pragma unroll
      for (int n = 0; n < vectors_of(kType); ++n)
        to.g[g].v[n] = load_vector_if(at + 16 * n, there);
    }
  }
  // The groups of it that reach beyond the end of the buffer.
  __device__ __forceinline__ void complete(const RowOperand& own, int row, int lead, Row& to) const {
    if constexpr (!kRagged) return;
    const char* from = row_of(d, own, row);
#pragma unroll
    for (int g = 0; g < kGroupsOf; ++g) {
      const char* at = from + static_cast<int64_t>(first(g, lead)) * kSize;
      if (__builtin_expect(has(g, lead) && !fits(own, at), 0)) load_part<kType>(at, part(g, lead), to.g[g]);
    }
  }
  __device__ __forceinline__ const char* shared_at(const RowOperand& own, int g, int lead) const {
    return reinterpret_cast<const char*>(own.address) + static_cast<int64_t>(first(g, lead)) * kSize;
  }
  __device__ __forceinline__ void issue_shared(const RowOperand& own, int lead, Shared& to) const {
    to.cut = 0;
    const char* end = reinterpret_cast<const char*>(own.address) + int64_t{d.columns} * kSize;
#pragma unroll
    for (int g = 0; g < kGroupsOf; ++g) {
      const char* at = shared_at(own, g, lead);
      if constexpr (kRagged) {
        GroupPart p = part(g, lead);
        to.skipped[g] = static_cast<uint32_t>(reinterpret_cast<uint64_t>(at) & 15);
        bool done = load_covering(at, p.all(), end, to.g[g].v);
        to.cut |= static_cast<uint32_t>(!p.none() && !(p.all() && done)) << g;
      } else {
#pragma unroll
        for (int n = 0; n < vectors_of(kType); ++n)
          to.g[g].v[n] = load_vector_if(at + 16 * n, has(g, lead));
      }
    }
  }
  __device__ __forceinline__ void complete_shared(const RowOperand& own, int lead, Shared& to) const {
#pragma unroll
    for (int g = 0; g < kGroupsOf; ++g) {
      if (!(to.cut >> g & 1)) continue;
      load_part<kType>(shared_at(own, g, lead), part(g, lead), to.g[g]);
      to.skipped[g] = 0;
    }
  }
  __device__ __forceinline__ void take(const RowOperand&, const Row& from,
                                       ValuesOf<kCount>& a) const {
#pragma unroll
    for (int g = 0; g < kGroupsOf; ++g) unpack<kType>(from.g[g].v, a.x + g * kRun);
  }
  __device__ __forceinline__ void take_shared(const RowOperand&, const Shared& from,
                                              ValuesOf<kCount>& a) const {
#pragma unroll
    for (int g = 0; g < kGroupsOf; ++g) {
      if constexpr (kRagged) {
        Vector own[2] = {shifted_vector(from.g[g].v, from.skipped[g]), {0, 0, 0, 0}};
        unpack<kType>(own, a.x + g * kRun);
      } else {
        unpack<kType>(from.g[g].v, a.x + g * kRun);
      }
    }
  }
  __device__ __forceinline__ void renew_shared(Shared& own) const {
    if constexpr (kRagged) return;
#pragma unroll
    for (int g = 0; g < kGroupsOf; ++g)
#pragma unroll
      for (int n = 0; n < vectors_of(kType); ++n) {
        Vector& v = own.g[g].v[n];
        renew(v.x), renew(v.y), renew(v.z), renew(v.w);
      }
  }
  __device__ __forceinline__ void put(const RowOperand& own, int row, int lead,
                                      const ValuesOf<kCount>& a) const {
    char* to = row_of(d, own, row);
#pragma unroll
    for (int g = 0; g < kGroupsOf; ++g) {
      if (!has(g, lead)) continue;
      char* at = to + static_cast<int64_t>(first(g, lead)) * kSize;
      store_part<kType>(at, kRagged ? part(g, lead) : GroupPart(0, kRun), a.x + g * kRun);
    }
  }
};

// A thread has elements `lanes` apart, or groups where all operands have them.
struct RowElements {
  static constexpr int kCount = kElements;
  static constexpr bool kSharedByRow = false;
  using Row = Raw<false>;
  using Shared = Row;

  const Rows& d;
  RowSpot spot;

  __device__ __forceinline__ RowElements(const Rows& own, int slot)
      : d(own), spot(slot, own, own.aligned != 0) {}
  __device__ __forceinline__ int lead(int) const { return 0; }
  __device__ __forceinline__ uint32_t live(int) const { return spot.live(); }
  __device__ __forceinline__ void issue(const RowOperand& own, int row, int, Row& to) const {
    vtc::issue(d, spot, own, row, to);
  }
  __device__ __forceinline__ void complete(const RowOperand&, int, int, Row&) const {}
  __device__ __forceinline__ void issue_shared(const RowOperand& own, int, Shared& to) const {
    vtc::issue(d, spot, own, 0, to);
  }
  __device__ __forceinline__ void complete_shared(const RowOperand&, int, Shared&) const {}
  __device__ __forceinline__ void take(const RowOperand& own, const Row& from, Values& a) const {
    vtc::take(spot, own.type, from, a);
  }
  __device__ __forceinline__ void take_shared(const RowOperand& own, const Shared& from,
                                              Values& a) const {
    vtc::take(spot, own.type, from, a);
  }
  __device__ __forceinline__ void renew_shared(Shared& own) const {
#pragma unroll
    for (uint32_t& w : own.w) renew(w);
  }
  __device__ __forceinline__ void put(const RowOperand& own, int row, int, const Values& a) const {
    put_row<false>(d, spot, own, row, a);
  }
};

}  // namespace vtc
