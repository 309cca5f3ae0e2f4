// Kernels that are one operation on rows: see rows.h.
//
// Some lanes of a warp have a row, or a warp, or all warps of a block; they take rows in turn, and what
// is next of them is loaded while one is computed. Where elements are moved in groups a thread has one or
// two groups of a row, else elements `lanes` apart, so that threads side by side read side by side.
#pragma once

#include "row_operators.cuh"
#include "row_team.cuh"
#include "row_vectors.cuh"

namespace vtc {

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
    choose(d.compare, d.number, d.second, d.third, a, b);
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

// Which rows a thread's team has: row `ahead` behind `first`, then `step` further on. `first` is the same
// for all threads that meet in folds; a team that is beyond the last row computes that one once more,
// and stores nothing.
struct RowTurns {
  RowTeam team;
  int slot, first, ahead, step;

  __device__ __forceinline__ RowTurns(const Rows& d, unsigned block, unsigned blocks, float* kept)
      : team{own_thread(), 32, 1, kept} {
    if (d.lanes <= 32) {
      // Powers of two.
      int shift = __ffs(d.lanes) - 1, own = team.thread >> shift, teams = d.threads >> shift;
      team.width = d.lanes;
      ahead = (team.thread & 31) >> shift;
      slot = team.thread & (d.lanes - 1);
      first = static_cast<int>(block) * teams + own - ahead;
      step = static_cast<int>(blocks) * teams;
    } else {
      team.warps = d.lanes >> 5;
      ahead = 0, slot = team.thread;
      first = static_cast<int>(block), step = static_cast<int>(blocks);
    }
  }
  __device__ __forceinline__ bool has(int at, const Rows& d) const { return at + ahead < d.rows; }
  __device__ __forceinline__ int row(int at, const Rows& d) const {
    return has(at, d) ? at + ahead : d.rows - 1;
  }
};

template <class Memory>
__device__ __forceinline__ void norm_rows(const Rows& d, unsigned block, unsigned blocks, float* kept) {
  RowTurns t(d, block, blocks, kept);
  Memory m(d, t.slot);
  typename Memory::Row x, y;
  typename Memory::Shared scale, shift;
  int lead = 0;
  // All loads of a row are under way before one is waited for.
  auto load = [&](int at) {
    int row = t.row(at, d);
    lead = m.lead(row);
    m.issue(d.x, row, lead, x);
    if (d.y.address) m.issue(d.y, row, lead, y);
  };
  auto load_shared = [&] {
    if (d.scale.address) m.issue_shared(d.scale, lead, scale);
    if (d.shift.address) m.issue_shared(d.shift, lead, shift);
    if (!Memory::kSharedByRow) return;
    if (d.scale.address) m.complete_shared(d.scale, lead, scale);
    if (d.shift.address) m.complete_shared(d.shift, lead, shift);
  };
  if (t.first < d.rows) load(t.first);
  if (!Memory::kSharedByRow) load_shared();
#pragma unroll 1
  for (int at = t.first; at < d.rows; at += t.step) {
    if (Memory::kSharedByRow) load_shared();
    int row = t.row(at, d), own_lead = lead;
    bool has = t.has(at, d);
    uint32_t live = m.live(own_lead);
    ValuesOf<Memory::kCount> a, b;
    m.complete(d.x, row, own_lead, x);
    m.take(d.x, x, a);
    if (d.y.address) {
      m.complete(d.y, row, own_lead, y);
      m.take(d.y, y, b);
      each(a, b, [](float p, float q) { return p + q; });
    }
    if (Memory::kSharedByRow) leave(live, 0.0f, a);  // what is of other rows
    if (at + t.step < d.rows) load(at + t.step);
    if (d.sum.address && has) m.put(d.sum, row, own_lead, a);
    if (d.centered) {
      float mean = t.team.fold(a, Sum()) * d.share;
      each(a, [=](float p) { return p - mean; });
      leave(live, 0.0f, a);
    }
    b = a;
    each(b, [](float p) { return p * p; });
    float root = rsqrtf(t.team.fold(b, Sum()) * d.share + d.number);
    each(a, [=](float p) { return p * root; });
    if (d.first == D_BF16) round_bf16(a);
    if (d.first == D_F16) round_f16(a);
    // Unpacked for each row: there are no registers to keep them in.
    m.renew_shared(scale);
    m.renew_shared(shift);
    if (d.scale.address) {
      m.take_shared(d.scale, scale, b);
      each(a, b, [](float p, float q) { return p * q; });
    }
    if (d.shift.address) {
      m.take_shared(d.shift, shift, b);
      each(a, b, [](float p, float q) { return p + q; });
    }
    if (has) m.put(d.out, row, own_lead, a);
  }
}

template <class Memory>
__device__ __forceinline__ void softmax_rows(const Rows& d, unsigned block, unsigned blocks,
                                             float* kept) {
  RowTurns t(d, block, blocks, kept);
  Memory m(d, t.slot);
  typename Memory::Row x;
  int lead = 0;
  auto load = [&](int at) {
    int row = t.row(at, d);
    lead = m.lead(row);
    m.issue(d.x, row, lead, x);
  };
  if (t.first < d.rows) load(t.first);
#pragma unroll 1
  for (int at = t.first; at < d.rows; at += t.step) {
    int row = t.row(at, d), own_lead = lead;
    uint32_t live = m.live(own_lead);
    ValuesOf<Memory::kCount> a;
    m.complete(d.x, row, own_lead, x);
    m.take(d.x, x, a);
    if (at + t.step < d.rows) load(at + t.step);
    leave(live, Most::none(), a);
    float most = t.team.fold(a, Most());
    each(a, [=](float p) { return expf(p - most); });
    leave(live, 0.0f, a);
    float part = approximate_reciprocal(t.team.fold(a, Sum()));
    each(a, [=](float p) { return p * part; });
    if (t.has(at, d)) m.put(d.out, row, own_lead, a);
  }
}

}  // namespace vtc
