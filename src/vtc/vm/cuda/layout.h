// The device form of a kernel: what native/device_write.cpp writes and interpreter.cu reads.
//
// It is the kernel's bytecode for a machine with two registers, A and B. Each holds a tile's values
// in the processor's registers: a thread has `kGroups` groups of `kRun` elements of 32 bits. Scalar
// operators work in place, A = op(A, B) or A = op(A, scalar). All other values lie in shared memory,
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
//   | 3 | number of this block of threads among those that run the kernel (32), how many (32); written
//   |   | by the device |
//   | 4.. | an address a buffer, then its extent (48 bits) and its number in the program (16); then
//   |     | the params (f64 bits) |
//   | head | dimensions (8), row (8), column (8), copies (8), stages (8), accesses (8), 1 + the only
//   |     | dimension with tasks (8), where there are no masks and no loops; 1: the body has no     |
//   |     | instructions but those on registers and their loads, stores and folds (1) |
//   | +1 | slots a row (16), distance of an element's columns in a group (16), rows (16), columns (16)|
//   | +2 | tasks |
//   | +3 | word of the prologue (32), of the body (32), from the start of the block |
//   | +4 | byte of the stages in shared memory (32), of the scratch (32) |
//   | +5 | byte of the warps' own areas (32), bytes of a stage (32) |
//   | +6 | first of the values that the body computes: its byte / 16 in shared memory (32); bytes     |
//   |     | from there to where they lie of a second task that is run at the same time, or 0 (32)   |
//   | +7.. | size, span, tasks of each dimension |
//   | then | the word of each access |
//   | then | of each copy ahead: the number of its access (32), its byte in a stage (32) |
//
// A launch has one such block of words, or several, one behind another. Before each there is what
// says whether and where it is run:
//
//   | word | contents |
//   |---|---|
//   | 0 | length of the block (32), number of conditions (32); 0: nothing is here, nor behind it |
//   | 1 | first block of threads that runs it (31), how many (31; 0: all), decision (1), wait (1) |
//   | 2.. | a condition: address of a byte (63), 1 if it has to be 0 (1) |
//
// wait: until all that is before it is done. A decision is no kernel: it copies the byte at the address
// in word 1, a predicate, to that in word 3: what runs behind may write over predicates.
//
// A slot is a group of a thread: number s (thread + kThreads * group) is slot s % slots of row
// s / slots. Element e of slot q is at column q * kRun + e, or where the distance is not 1 at
// q + e * distance.
//
// An access: [buffer 16 | type 8 | terms 8 | masks 8 | kind 8 | moves 8] [offset] [stride of rows]
// [stride of columns] [a stride a dimension] [3 words a term: location 16, type 8, checked 8;
// stride; size] [3 words a mask: dimension; low; high].
//
// moves: 1: 16 bytes may be moved at once where the buffer's address is a multiple of 16; 2: a group
// lies side by side, wherever it begins.
//
// An instruction is two words at an even word: [op 8 | type 4 | type2 4 | dst 16 | a 16 | b 16] and
// an argument. Of D_SLOW, `op` of the first argument word is the operator of isa.h, and the argument
// is the word where its further ones lie.
#pragma once

#include "../native/isa.h"

namespace vtc {

#ifndef VTC_GROUPS
#define VTC_GROUPS 2  // of a thread
#endif
#ifndef VTC_BLOCKS
#define VTC_BLOCKS 2  // resident on a processor, by their registers
#endif

constexpr int kRun = 8;
constexpr int kSlots = 512;  // of a tile
constexpr int kGroups = VTC_GROUPS;
constexpr int kThreads = kSlots / kGroups;
constexpr int kBlocks = VTC_BLOCKS;
constexpr int kWarps = kThreads / 32;
constexpr int kMostWarps = 8;
constexpr int kElements = kGroups * kRun;

// Operators on A, and what moves values.
enum DeviceOp : int {
  // Leave A and B as they are. Of accesses: a: access; type2: of memory; dst: where a tile lands
  // that is not whole.
  D_NARROW,  // dst = op (type and type2: 8 bits) of a, b: narrow f32; argument: an immediate
  D_STORE,
  D_KEEP_A,  // dst = A
  D_KEEP_B,
  D_REDUCE,  // dst (narrow) = fold of A over columns (type2 2) or the tile (3), times a number;
             // argument: fold (32 bits), f32
  D_ACCUM,   // dst (narrow) = fold of dst and A
  // Change A. Of loads: b: keep what is masked off; argument of D_STAGED: its byte in a stage.
  D_LOAD_A,
  D_STAGED_A,
  D_FETCH_A,  // A = a in shared memory, or a scalar
  D_B_TO_A,
  D_SELECT,    // A = A ? B : a
  D_CHOOSE_A,  // A = a ? A : B
  D_CHOOSE_B,  // A = a ? B : A
  D_FMA,     // A = A * B + a
  // A = op(A).
  D_NEG,
  D_ABS,
  D_FLOOR,
  D_EXP,
  D_EXP2,
  D_LOG,
  D_SQRT,
  D_RSQRT,
  D_TANH,
  D_ERF,
  D_SIGMOID,
  D_RECIPROCAL,
  D_ISNAN,
  D_NOT,
  D_SQUARE,
  D_SILU,
  D_GELU,
  D_GELU_TANH,
  D_BF16,  // rounded
  D_F16,
  // A = op(A, B); those with an R take their operands the other way round.
  D_ADD,
  D_SUB,
  D_RSUB,
  D_MUL,
  D_DIV,
  D_RDIV,
  D_MINIMUM,
  D_MAXIMUM,
  D_EQ,
  D_NE,
  D_LT,
  D_LE,
  D_GT,
  D_GE,
  D_AND,
  D_OR,
  D_RSQRT_SUM,  // 1 / sqrt(A + B)
  // A = op(A, a), where a is a scalar: narrow, or the argument.
  D_SCALAR,
  // Change B.
  D_LOAD_B = D_SCALAR + (D_RSQRT_SUM - D_ADD) + 1,
  D_STAGED_B,
  D_FETCH_B,
  D_A_TO_B,
  // Leave nothing in A and B.
  D_DONE,
  D_LOOP,  // dst: dimension; argument: word of [step, word behind the loop, word of its start]
  D_ENDLOOP,
  D_SLOW,  // an operator on shared memory
};
constexpr int kFoldSquares = 15;  // of D_REDUCE: the sum of squares
constexpr int kScalarForm = D_SCALAR - D_ADD;

// Locations.
constexpr int kImmediate = 8;
constexpr int kNowhere = 9;
constexpr int kShared = 0x8000;  // byte offset / 16 in the low 14 bits
constexpr int kNarrow = 0x4000;

constexpr int kExtentBits = 48;
constexpr uint64_t kExtentMask = (uint64_t{1} << kExtentBits) - 1;
constexpr int kBlockWords = 4;
constexpr int kDecisionWords = 4;
constexpr int kHeadFixed = 7;
constexpr int kAccessFixed = 4;
constexpr int kMostAccesses = 64;
constexpr int kWritesBit = 4;  // of a kind
constexpr int kMovesVectors = 1, kMovesRuns = 2;

// Words in front of a block, without conditions; shifts of the second one.
constexpr int kPrefixWords = 2;
constexpr int kBlocksShift = 31, kDecisionShift = 62, kWaitShift = 63;
constexpr uint64_t kBlocksMask = (uint64_t{1} << 31) - 1;
constexpr int kUnlessShift = 63;  // of a condition

// Of the word of faults: a launch has given up waiting for the kernel.
constexpr uint32_t kGaveUp = 0xffffffff;
// Nanoseconds that blocks wait for each other: far more than any kernel takes.
constexpr uint64_t kPatience = 4'000'000'000;

// Words that come with a launch; a longer one, of a kernel of up to kMostWords, lies in memory.
constexpr int kLaunchWords = 480;
constexpr int kMostWords = 8192;

// Shared memory starts with the block; bytes in it are counted from behind it.
constexpr int block_bytes(int words) { return (words * 8 + 15) / 16 * 16; }

// Slots that threads hold where `used` slots of a tile have elements, for blocks of 128 or 256.
constexpr int held_slots(int used) { return (used + 255) / 256 * 256; }

// Bytes of shared memory of a value, of elements of 4 or 8 bytes, where `held` slots are held.
constexpr int wide_bytes(int held, int size) { return held * kRun * size; }
constexpr int narrow_bytes(int size) { return kSlots * size; }

// Scratch of folds: an element a slot, or two buffers of floats in turn. Twice of it where places are
// found.
constexpr int kScratchBytes = kSlots * 8;

// A warp's own area: two sets of coordinates, and a cursor for each access and each copy.
constexpr int kCoordinateBytes = 2 * kMaxDims * 8;
constexpr int kCursorBytes = 64;
constexpr int warp_bytes(int cursors) { return kCoordinateBytes + cursors * kCursorBytes; }

}  // namespace vtc
