// Copies between rows of any length and aligned ones: see padded.h. A thread writes 8 elements side by side.
#pragma once

#include "group_memory.cuh"
#include "padded.h"

namespace vtc {

// Of a row of `columns` elements those from `column` on, and zeros behind them; nothing is read beyond
// the `end` of all rows.
__device__ __forceinline__ Vector load_of_row(const char* row, int column, int columns,
                                              const char* end) {
  const char* at = row + 2 * static_cast<int64_t>(column);
  GroupPart part(column, columns);
  PackedGroup own;
  if (load_covering(at, part.all(), end, own.v) && part.all())
    return shifted_vector(own.v, static_cast<uint32_t>(reinterpret_cast<uint64_t>(at) & 15));
  load_part<T_F16>(at, part, own);
  return own.v[0];
}

__device__ __forceinline__ const char* end_of_rows(const Padded& d) {
  int64_t elements = static_cast<int64_t>(d.rows - 1) * d.pitch + d.columns;
  return reinterpret_cast<const char*>(d.from) + 2 * elements;
}

__device__ __forceinline__ void pad_rows(const Padding& all, unsigned block) {
  int which = 0;
  while (which + 1 < all.count && block >= static_cast<unsigned>(all.own[which + 1].first_block))
    ++which;
  const Padded& d = all.own[which];
  unsigned group = (block - static_cast<unsigned>(d.first_block)) * kPadThreads + threadIdx.x;
  unsigned of_row = static_cast<unsigned>(d.to_columns) / kRun, row = group / of_row;
  int column = static_cast<int>(group - row * of_row) * kRun;
  if (row >= static_cast<unsigned>(d.to_rows)) return;
  Vector v{0, 0, 0, 0};
  if (row < static_cast<unsigned>(d.rows) && column < d.columns)
    v = load_of_row(reinterpret_cast<const char*>(d.from) + 2 * static_cast<int64_t>(row) * d.pitch,
                    column, d.columns, end_of_rows(d));
  store_vector(reinterpret_cast<char*>(d.to) + 16 * static_cast<int64_t>(group), v);
}

__device__ __forceinline__ void unpad_rows(const Padding& all, unsigned block) {
  const Padded& d = all.own[0];
  unsigned group = block * kPadThreads + threadIdx.x, columns = static_cast<unsigned>(d.columns);
  unsigned first = group * kRun, count = columns * static_cast<unsigned>(d.rows);
  if (first >= count) return;
  unsigned row = first / columns, column = first - row * columns;
  const char* from = reinterpret_cast<const char*>(d.from) + 2 * static_cast<int64_t>(row) * d.pitch;
  PackedGroup own;
  if (column + kRun <= columns) {
    own.v[0] = load_of_row(from, static_cast<int>(column), d.columns, end_of_rows(d));
  } else {
    own = {};
#pragma unroll
    for (int e = 0; e < kRun; ++e) {
      if (first + e >= count) continue;
      set_element<T_F16>(own, e, element_at<T_F16>(from + 2 * column));
      if (++column == columns) column = 0, from += 2 * static_cast<int64_t>(d.pitch);
    }
  }
  char* to = reinterpret_cast<char*>(d.to) + 2 * static_cast<int64_t>(first);
  if (first + kRun <= count) return store_vector(to, own.v[0]);
  uint32_t w[4] = {own.v[0].x, own.v[0].y, own.v[0].z, own.v[0].w};
#pragma unroll
  for (int e = 0; e < kRun; ++e)
    if (first + e < count)
      *reinterpret_cast<uint16_t*>(to + 2 * e) = static_cast<uint16_t>(w[e / 2] >> (e % 2 * 16));
}

}  // namespace vtc
