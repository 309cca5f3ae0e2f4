// How operations on rows are launched.
#include <algorithm>

#include "../cuda/layout.h"
#include "device_rows.h"

namespace vtc {
namespace {

constexpr int64_t kManyBlocks = 264;  // two a processor of a large device

}  // namespace

void choose_blocks(Rows& own) {
  int64_t slots = (own.columns + kRowElements - 1) / kRowElements;
  int64_t all = slots * own.rows;
  int threads = 64;
  while (threads < kMostRowThreads && all >= 2 * threads * kManyBlocks) threads *= 2;
  own.parts = 1;
  bool together = own.kind == ROWS_NORM || own.kind == ROWS_SOFTMAX;
  if (own.kind == ROWS_ROTARY) {
    own.lanes = own.columns / (2 * kRun);
  } else if (together) {
    own.lanes = slots <= 32 ? 32 : static_cast<int>((slots + 31) / 32 * 32);
    if (own.lanes > 32) threads = own.lanes;
  } else if (own.rows == 1) {
    own.lanes = threads;
  } else if (slots > kMostRowThreads) {
    own.lanes = threads = kMostRowThreads;
  } else {
    own.lanes = static_cast<int>(slots);
    threads = std::max(threads, (own.lanes + 31) / 32 * 32);
  }
  own.threads = threads;
  if (!together && own.kind != ROWS_ROTARY)
    own.parts = static_cast<int>((slots + own.lanes - 1) / own.lanes);
}

RowsLaunch launch_of(const RowsKernel& kernel, std::span<const uintptr_t> pointers, int processors) {
  RowsLaunch own{kernel.form, 0, 0};
  Rows& r = own.rows;
  RowOperand* all[] = {&r.x, &r.y, &r.scale, &r.shift, &r.out, &r.sum};
  bool aligned = true, halves = true, map = r.kind == ROWS_MAP || r.kind == ROWS_CHOOSE;
  for (int n = 0; n < kRowOperands; ++n) {
    const RowsKernel::Operand& o = kernel.operands[n];
    if (o.buffer < 0) continue;
    all[n]->address = pointers[o.buffer] + o.offset;
    if (n == ROW_SUM && r.kind == ROWS_ROTARY) continue;  // an element a row
    aligned &= all[n]->address % 16 == 0;
    for (int64_t pitch : all[n]->pitch) aligned &= pitch % 16 == 0;
    halves &= all[n]->size == 2;
  }
  if (!map) aligned &= r.columns % 8 == 0;
  halves &= aligned;
  r.aligned = aligned;
  int64_t teams = r.threads / r.lanes;
  own.blocks = r.parts > 1 ? int64_t{r.rows} * r.parts : (r.rows + teams - 1) / teams;
  if (r.kind == ROWS_ROTARY) {
    own.function = ROWS_FUNCTION_ROTARY;
    if (!aligned) own.blocks = 0;
    return own;
  }
  if (map) {
    bool alone = r.kind == ROWS_MAP && r.second == kNoOperator && r.columns % 8 == 0;
    own.function = ROWS_FUNCTION_MAP + (alone && halves);
    return own;
  }
  bool norm = r.kind == ROWS_NORM;
  own.function = (norm ? ROWS_FUNCTION_NORM : ROWS_FUNCTION_SOFTMAX) + halves;
  // A block for each row, whose loads are on their way while others compute; but where the mean is to be
  // known before the squares, blocks that load their next row while they wait.
  if (r.centered) {
    int full = halves ? 3 : 2;  // blocks of kMostRowThreads, by registers
    int resident = std::clamp(full * kMostRowThreads / r.threads, 1, 32);
    own.blocks = std::min(own.blocks, int64_t{processors} * resident);
  }
  return own;
}

}  // namespace vtc
