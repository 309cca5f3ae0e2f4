// Programs in the form that the device's interpreter reads (see cuda/layout.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device_rows.h"
#include "words.h"

namespace vtc {

// A kernel runs if a decision, a byte at an offset of the arena, is so.
struct DeviceCondition {
  int64_t offset;
  bool wanted;
};

// One kernel: its words, where addresses and params are still to be filled in. Or a decision: the
// predicate in the first of its buffers is copied to `decision` in the arena.
struct DeviceKernel {
  std::vector<Word> block;
  std::vector<int> buffers;  // of the program, one an address; -1: the arena
  std::vector<DeviceCondition> conditions;
  int64_t tasks = 0;
  int shared_bytes = 0;
  int64_t arena_offset = 0;  // of its words, where they are too many to come with a launch
  int64_t decision = -1;
  bool waits = false;  // for what is before it
  RowsKernel rows;     // if it is an operation on rows, in place of the words

  // Has the device a kernel of its own for it?
  bool direct() const { return rows.found && conditions.empty(); }

  // With what stands in front.
  size_t words() const;
};

// The words of a kernel with what stands in front, with addresses and params filled in. pointers: an
// address a buffer of the program; fault: address of the word where a bad index is told.
void fill_kernel(const DeviceKernel& kernel, std::span<const uintptr_t> pointers,
                 std::span<const double> params, uintptr_t arena, uintptr_t fault, Word* to);

// Which blocks of threads run which of the kernels that lie in `words`, of at most `most`: those that
// need not wait for each other run side by side. The number of blocks.
int64_t share_blocks(std::span<const DeviceKernel> kernels, int64_t most, Word* words);

// Groups of elements in a row of a tile. Where columns are folded, threads of a warp share a row, or
// whole warps do.
int64_t device_slots(int64_t columns, bool folded);

// The launches of a program that was encoded with tiles for a device; the program's arena may grow.
// Throws EncodeError for what the device has no instruction for.
std::vector<DeviceKernel> lower_device(std::vector<Word>& program);

}  // namespace vtc
