// Kernels that are one operation on rows: see rows.h.
//
// A warp has a row, or all warps of a block do, and takes rows in turn; what is next of them is
// loaded while one is computed. Where elements are moved in groups a thread has two groups of a row, else
// elements `lanes` apart, so that threads side by side read side by side.
#pragma once

#include "folds.cuh"
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
constexpr uint32_t kAllLive = (1u << kElements) - 1;

__device__ __forceinline__ uint32_t element_bits(const char* at, int size) {
  return size == 2 ? *reinterpret_cast<const uint16_t*>(at) : *reinterpret_cast<const uint32_t*>(at);
}

__device__ __forceinline__ float element_of(int type, uint32_t bits) {
  return type == T_BF16 ? from_bf16(bits) : type == T_F16 ? from_f16(bits) : __uint_as_float(bits);
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

// A = op(A).
__device__ __forceinline__ void apply(int op, Values& a) {
  switch (op) {
#define VTC_CASE(OP, RESULT) \
  case OP: return each(a, [](float x) { return RESULT; });
    VTC_UNARY(VTC_CASE)
#undef VTC_CASE
    case D_BF16: return round_bf16(a);
    case D_F16: return round_f16(a);
    default: return;
  }
}

// A = op(A, B).
__device__ __forceinline__ void apply(int op, Values& a, const Values& b) {
  switch (op) {
#define VTC_CASE(OP, RESULT) \
  case OP: return each(a, b, [](float x, float y) { return RESULT; });
    VTC_BINARY(VTC_CASE)
#undef VTC_CASE
    default: return;
  }
}

// A = op(A, B), of those that a choice is between.
__device__ __forceinline__ void apply_simple(int op, Values& a, const Values& b) {
  switch (op) {
    case D_ADD: return each(a, b, [](float x, float y) { return x + y; });
    case D_SUB: return each(a, b, [](float x, float y) { return x - y; });
    case D_RSUB: return each(a, b, [](float x, float y) { return y - x; });
    case D_MUL: return each(a, b, [](float x, float y) { return x * y; });
    case D_MINIMUM: return each(a, b, [](float x, float y) { return smaller(x, y); });
    case D_MAXIMUM: return each(a, b, [](float x, float y) { return larger(x, y); });
    case D_B_TO_A: return each(a, b, [](float, float y) { return y; });
    default: return;
  }
}

__device__ __forceinline__ bool compare(int op, float x, float y) {
  switch (op) {
    case D_EQ: return x == y;
    case D_NE: return x != y;
    case D_LT: return x < y;
    case D_LE: return x <= y;
    case D_GT: return x > y;
    default: return x >= y;
  }
}

// The row and the elements that a thread has of one part of a row, or of several rows. False if it has
// none.
__device__ __forceinline__ bool find_part(const Rows& d, unsigned block, RowSpot& s, int& own) {
  unsigned thread = static_cast<unsigned>(s.slot), lanes = static_cast<unsigned>(d.lanes), row = block;
  if (d.parts > 1) {
    unsigned parts = static_cast<unsigned>(d.parts);
    row = block / parts;
    s.first = static_cast<int>(block - row * parts) * d.lanes * kElements;
  } else if (lanes < static_cast<unsigned>(d.threads)) {
    unsigned teams = static_cast<unsigned>(d.threads) / lanes, team = thread / lanes;
    if (team >= teams) return false;
    s.slot = static_cast<int>(thread - team * lanes);
    row = block * teams + team;
  }
  own = static_cast<int>(row);
  return row < static_cast<unsigned>(d.rows);
}

// Of a ROWS_MAP of one operand of halves, in groups that no row's end cuts.
__device__ __forceinline__ void map_halves(const Rows& d, unsigned block) {
  RowSpot s(own_thread(), d, true);
  int own = 0;
  if (!find_part(d, block, s, own)) return;
  Raw<true> x;
  issue(d, s, d.x, own, x);
  Values a;
  take(s, d.x.type, x, a);
  apply(d.first, a);
  apply(d.last, a);
  put_row<false>(d, s, d.out, own, a);
}

// The block of threads `block` of a ROWS_MAP or ROWS_CHOOSE.
__device__ __forceinline__ void map_rows(const Rows& d, unsigned block) {
  RowSpot s(own_thread(), d, d.aligned != 0);
  int own = 0;
  if (!find_part(d, block, s, own)) return;
  Raw<false> x, y;
  issue(d, s, d.x, own, x);
  if (d.y.address) issue(d, s, d.y, own, y);
  Values a, b;
  take(s, d.x.type, x, a);
  if (d.y.address) take(s, d.y.type, y, b);
  if (d.aligned && d.columns % kRun) {
    take_cut(d, s, d.x, own, a);
    if (d.y.address) take_cut(d, s, d.y, own, b);
  }
  if (d.kind == ROWS_CHOOSE) {
    uint32_t chosen = 0;
#pragma unroll
    for (int n = 0; n < kElements; ++n)
      chosen |= static_cast<uint32_t>(compare(d.compare, a.x[n], d.number)) << n;
    Values other = a;
    apply_simple(d.second, a, b);
    apply_simple(d.third, other, b);
#pragma unroll
    for (int n = 0; n < kElements; ++n) a.x[n] = chosen >> n & 1 ? a.x[n] : other.x[n];
    return put_row<true>(d, s, d.out, own, a);
  }
  apply(d.first, a);
  if (d.second != kNoOperator) {
    if (!d.y.address)
#pragma unroll
      for (int n = 0; n < kElements; ++n) b.x[n] = d.number;
    apply(d.second, a, b);
  }
  apply(d.last, a);
  put_row<true>(d, s, d.out, own, a);
}

// The block of threads `block` of a ROWS_ROTARY: a thread has a group of each half of a row.
__device__ __forceinline__ void rotary_rows(const Rows& d, unsigned block) {
  RowSpot s(own_thread(), d, true);
  int own = 0;
  if (!find_part(d, block, s, own)) return;
  Raw<false> x, y, shift, scale;
  issue(d, s, d.x, own, x);
  issue(d, s, d.y, own, y);
  issue(d, s, d.shift, own, shift);
  Values a, b, c;
  if (d.scale.address) {
    issue(d, s, d.scale, own, scale);
    float factor = element_of(d.sum.type, element_bits(row_of(d, d.sum, own), d.sum.size));
    take(s, d.x.type, x, a);
    each(a, [=](float p) { return p * factor; });
    if (d.first == D_BF16) round_bf16(a);
    if (d.first == D_F16) round_f16(a);
    take(s, d.scale.type, scale, b);
    each(a, b, [](float p, float q) { return p * q; });
  } else {
    take(s, d.x.type, x, a);
  }
  take(s, d.y.type, y, b);
  take(s, d.shift.type, shift, c);
  static_assert(kGroups == 2);
#pragma unroll
  for (int e = 0; e < kRun; ++e) {
    b.x[e] = a.x[e] * b.x[e] + -a.x[kRun + e] * c.x[e];
    b.x[kRun + e] = a.x[kRun + e] * b.x[kRun + e] + a.x[e] * c.x[kRun + e];
  }
  put_row<false>(d, s, d.out, own, b);
}

// A warp, or all of a block, that has rows together.
struct RowTeam {
  int thread, warps;
  float* kept;
  int turn = 0;

  // The fold of an element of each thread.
  template <class F>
  __device__ __forceinline__ float fold(float part, F f) {
#pragma unroll
    for (int lane = 16; lane; lane /= 2) part = f(part, __shfl_xor_sync(0xffffffffu, part, lane));
    if (warps == 1) return part;
    float* own = kept + turn * kMostRowWarps;
    turn ^= 1;
    if (thread % 32 == 0) own[thread / 32] = part;
    __syncthreads();
    part = fold_kept(own, warps, f);
    return warps <= 8 ? part : f(part, fold_kept(own + 8, warps - 8, f));
  }

  // Of up to 8 warps.
  template <class F>
  static __device__ __forceinline__ float fold_kept(const float* own, int count, F f) {
    const float4* kept = reinterpret_cast<const float4*>(own);
    float4 low = kept[0], high = kept[1];
    float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int n = 1; n < 8; ++n) x[n] = n < count ? x[n] : F::none();
#pragma unroll
    for (int half = 4; half; half /= 2)
#pragma unroll
      for (int n = 0; n < half; ++n) x[n] = f(x[n], x[n + half]);
    return x[0];
  }

  template <class F>
  __device__ __forceinline__ float fold(const Values& a, F f) {
    float x[kElements / 2];
#pragma unroll
    for (int n = 0; n < kElements / 2; ++n) x[n] = f(a.x[n], a.x[n + kElements / 2]);
#pragma unroll
    for (int half = kElements / 4; half; half /= 2)
#pragma unroll
      for (int n = 0; n < half; ++n) x[n] = f(x[n], x[n + half]);
    return fold(x[0], f);
  }
};

// Elements beyond the end of a row are `none`.
__device__ __forceinline__ void leave(uint32_t live, float none, Values& a) {
  if (live == kAllLive) return;
#pragma unroll
  for (int n = 0; n < kElements; ++n) a.x[n] = live >> n & 1 ? a.x[n] : none;
}

// Which rows a thread's team has: from `row` on, `step` apart.
struct RowTurns {
  RowTeam team;
  RowSpot spot;
  int row, step;

  static __device__ __forceinline__ bool alone(const Rows& d) {
    return d.lanes == 32 || d.threads > d.lanes;
  }

  __device__ __forceinline__ RowTurns(const Rows& d, bool aligned, unsigned block, unsigned blocks,
                                      float* kept)
      : team{own_thread(), alone(d) ? 1 : d.lanes / 32, kept},
        spot(alone(d) ? team.thread % 32 : team.thread, d, aligned) {
    int teams = d.threads / d.lanes;
    row = static_cast<int>(block) * teams + (alone(d) ? team.thread / 32 : 0);
    step = static_cast<int>(blocks) * teams;
  }
};

template <bool kHalves>
__device__ __forceinline__ void norm_rows(const Rows& d, unsigned block, unsigned blocks, float* kept) {
  RowTurns t(d, kHalves || d.aligned, block, blocks, kept);
  const RowSpot& s = t.spot;
  uint32_t live = s.live();
  Raw<kHalves> x, y, scale, shift;
  if (t.row < d.rows) {
    issue(d, s, d.x, t.row, x);
    if (d.y.address) issue(d, s, d.y, t.row, y);
  }
  if (d.scale.address) issue(d, s, d.scale, 0, scale);
  if (d.shift.address) issue(d, s, d.shift, 0, shift);
#pragma unroll 1
  for (int row = t.row; row < d.rows; row += t.step) {
    Values a, b;
    take(s, d.x.type, x, a);
    if (d.y.address) {
      take(s, d.y.type, y, b);
      each(a, b, [](float p, float q) { return p + q; });
    }
    int next = row + t.step;
    if (next < d.rows) {
      issue(d, s, d.x, next, x);
      if (d.y.address) issue(d, s, d.y, next, y);
    }
    if (d.sum.address) put_row<false>(d, s, d.sum, row, a);
    if (d.centered) {
      float mean = quotient(t.team.fold(a, Sum()), d.count);
      each(a, [=](float p) { return p - mean; });
      leave(live, 0.0f, a);
    }
    b = a;
    each(b, [](float p) { return p * p; });
    float root = rsqrtf(quotient(t.team.fold(b, Sum()), d.count) + d.number);
    each(a, [=](float p) { return p * root; });
    if (d.first == D_BF16) round_bf16(a);
    if (d.first == D_F16) round_f16(a);
    // Unpacked for each row: there are no registers to keep them in.
#pragma unroll
    for (uint32_t& w : scale.w) renew(w);
#pragma unroll
    for (uint32_t& w : shift.w) renew(w);
    if (d.scale.address) {
      take(s, d.scale.type, scale, b);
      each(a, b, [](float p, float q) { return p * q; });
    }
    if (d.shift.address) {
      take(s, d.shift.type, shift, b);
      each(a, b, [](float p, float q) { return p + q; });
    }
    put_row<false>(d, s, d.out, row, a);
  }
}

template <bool kHalves>
__device__ __forceinline__ void softmax_rows(const Rows& d, unsigned block, unsigned blocks,
                                             float* kept) {
  RowTurns t(d, kHalves || d.aligned, block, blocks, kept);
  const RowSpot& s = t.spot;
  uint32_t live = s.live();
  Raw<kHalves> x;
  if (t.row < d.rows) issue(d, s, d.x, t.row, x);
#pragma unroll 1
  for (int row = t.row; row < d.rows; row += t.step) {
    Values a;
    take(s, d.x.type, x, a);
    if (row + t.step < d.rows) issue(d, s, d.x, row + t.step, x);
    leave(live, Most::none(), a);
    float most = t.team.fold(a, Most());
    each(a, [=](float p) { return expf(p - most); });
    leave(live, 0.0f, a);
    float part = quotient(1.0f, t.team.fold(a, Sum()));
    each(a, [=](float p) { return p * part; });
    put_row<false>(d, s, d.out, row, a);
  }
}

}  // namespace vtc
