// The device form of a kernel: what native/device_lower.cpp writes and interpreter.cu reads.
//
// It is the kernel's bytecode with the registers placed: a thread holds `kGroups` groups of `kRun`
// elements of each value. The value at hand is in W, a few others are in R0, R1, .. (registers of
// the processor, addressed by the instruction, never by an index), and the rest in shared memory,
// where each thread reads and writes its own elements. A value that does not vary along the columns
// is *narrow*: one element a group, the same in all groups of a row. All others are *wide*.
//
// A block of words, as it is launched:
//
//   | word | contents |
//   |---|---|
//   | 0 | address of the fault word: kernel + 1 (32 bits), buffer (24), term (8) of a bad index |
//   | 1 | bit b: the address of buffer b is no multiple of 16 |
//   | 2 | buffers (16 bits), word of the head (16), params (16), number of the kernel (16) |
//   | 3.. | an address a buffer, then its extent (48 bits) and its number in the program (16); then
//   |     | the params (f64 bits) |
//   | head | dimensions (8), row (8), column (8), prefetches (8), stages (8), groups (8) |
//   | +1 | slots a row (16), distance of an element's columns in a group (16), rows (16), columns (16)|
//   | +2 | tasks |
//   | +3 | word of the prologue (32), of the body (32), from the start of the block |
//   | +4 | byte of the stages in shared memory (32), of the scratch (32) |
//   | +5.. | size, span, tasks of each dimension; a stage's bytes and an access for each prefetch |
//
// Group number s of a tile (thread + 256 * g) is slot s % slots of row s / slots. Element e of slot q
// is at column q * kRun + e, or where the distance is not 1 at q + e * distance.
//
// An access: [buffer 16 | type 8 | terms 8 | masks 8 | wide 8 | vector 8] [offset] [stride of rows]
// [stride of columns] [a stride a dimension] [3 words a term: location 16, type 8, checked 8;
// stride; size] [3 words a mask: dimension; low; high].
//
// An instruction: [op 8 | type 4 | type2 4 | dst 16 | a 16 | b 16], then what the operator adds, then
// the immediates of a, b, c in this order. Operators are those of isa.h; with kFast they work on W.
#pragma once

#include "../native/isa.h"

namespace vtc {

constexpr int kThreads = 256;
constexpr int kGroups = 2;
constexpr int kRun = 8;
constexpr int kElements = kGroups * kRun;
constexpr int kSlots = kThreads * kGroups;
constexpr int kFiles = 2;  // R0, R1

constexpr int kFast = 128;
enum DeviceOp : int {
  D_FETCH = 26,  // W = a
  D_KEEP = 27,   // dst = W
};

// Locations.
constexpr int kInW = 0;
constexpr int kInFile = 1;       // R0
constexpr int kImmediate = 8;
constexpr int kNowhere = 9;
constexpr int kShared = 0x8000;  // byte offset / 16 in the low 14 bits
constexpr int kNarrow = 0x4000;

constexpr int kExtentBits = 48;
constexpr uint64_t kExtentMask = (uint64_t{1} << kExtentBits) - 1;
constexpr int kBlockWords = 3;
constexpr int kHeadFixed = 5;
constexpr int kAccessFixed = 4;

// Words of a block that come with a launch; a longer one, of up to kMostWords, lies in memory.
constexpr int kLaunchWords = 480;
constexpr int kMostWords = 8192;

// Shared memory starts with the block; bytes in it are counted from behind it.
constexpr int block_bytes(int words) { return (words * 8 + 15) / 16 * 16; }

// Bytes of shared memory of a value: elements of 4 or 8 bytes.
constexpr int wide_bytes(int groups, int size) { return groups * kRun * kThreads * size; }
constexpr int narrow_bytes(int size) { return kGroups * kThreads * size; }

// Scratch of folds: an element a slot, or two buffers of floats in turn. Behind it come the
// coordinates of each warp.
constexpr int kScratchBytes = kSlots * 8;
constexpr int kCoordinateBytes = kThreads / 32 * 2 * kMaxDims * 8;

}  // namespace vtc
