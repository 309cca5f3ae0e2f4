// Tiles for a GPU: what the threads of a block hold at once, in groups of elements along columns.

#include <algorithm>

#include "../cuda/layout.h"
#include "../cuda/rows.h"
#include "device.h"
#include "table.h"
#include "tiling.h"

namespace vtc {
namespace {

// Tasks that fill a large device twice; fewer than that leave parts of it idle.
constexpr int64_t kManyTasks = 264;
constexpr int64_t kLeastPoints = 256;
constexpr int64_t kValueBytes = 72 << 10;  // of live values, so that two blocks fit
constexpr int64_t kFoldColumns = 256;      // of a tile that is folded down its columns
constexpr int64_t kTurnedColumns = 64;
constexpr Sharing kSharing{.few_tasks = 132, .tasks = kManyTasks, .points = 1 << 16,
                           .points_a_task = 8192};

void require_instructions(const IrKernel& kernel) {
  if (kernel.anchor >= 0) throw EncodeError("the device has no products of its own");
  for (const IrInstr& i : kernel.body)
    if (i.op == OP_SCAN) throw EncodeError("the device has no running folds");
}

int64_t round_up(int64_t n, int64_t to) { return divide_up(n, to) * to; }

}  // namespace

int64_t device_slots(int64_t columns, bool folded) {
  int64_t slots = divide_up(std::max<int64_t>(columns, 1), kRun);
  if (!folded) return slots;
  if (slots > 32) return round_up(slots, 32);
  int64_t power = 1;
  while (power < slots) power *= 2;
  return power;
}

void choose_device_tiles(const IrKernel& kernel, Shape& s, Tiling& t) {
  require_instructions(kernel);
  choose_axes(s, t);
  if (t.column >= 0) {
    int64_t n = std::max<int64_t>(s.size[t.column], 1);
    int64_t m = t.row < 0 ? 1 : std::max<int64_t>(s.size[t.row], 1);
    bool column_reduced = s.is_reduced(t.column), row_reduced = t.row >= 0 && s.is_reduced(t.row);
    int64_t all = 1, outer = 1;
    for (int d = 0; d < s.dims; ++d) {
      all *= std::max<int64_t>(s.size[d], 1);
      if (d != t.row && d != t.column && !s.is_reduced(d)) outer *= std::max<int64_t>(s.size[d], 1);
    }
    int64_t slots = kernel.live_bytes * kSlots * kRun > kValueBytes ? kThreads : kSlots;
    if (column_reduced) {
      t.columns = std::min(n, slots * kRun);
    } else if (row_reduced) {
      t.columns = std::min(n, kFoldColumns);
    } else if (t.row >= 0 && m > 1 && any_contiguous(s, t.row)) {
      t.columns = std::min(n, kTurnedColumns);
    } else {
      // Few points are spread over many blocks.
      int64_t share = round_up(divide_up(all, kManyTasks), kLeastPoints);
      slots = std::min(slots, share / kRun);
      t.columns = n <= slots * kRun ? n : round_up(divide_up(n, divide_up(n, slots * kRun)), 64);
    }
    int64_t a_row = device_slots(t.columns, column_reduced);
    t.rows = std::clamp<int64_t>(slots / a_row, 1, m);
    if (column_reduced && !row_reduced && t.columns == n)
      t.rows = std::clamp<int64_t>(divide_up(m * outer, kManyTasks), 1, t.rows);
  }
  Sharing sharing = kSharing;
  // Rows that a block has as a whole (rows.h) are not shared by several.
  if (t.column >= 0 && s.is_reduced(t.column) && s.size[t.column] <= kMostTeamThreads * kRowElements)
    sharing.few_tasks = 0;
  divide_tasks(kernel, s, t, sharing);
  if (t.rows * device_slots(t.columns, t.column >= 0 && s.is_reduced(t.column)) > kSlots)
    throw EncodeError("a tile of this kernel does not fit the device");
}

}  // namespace vtc
