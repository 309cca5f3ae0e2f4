// Kernels that are one operation on rows, as their launches have them: computed in registers from the
// loads to the stores, with no words to interpret.
//
//   | kind | each row of `columns` elements |
//   |---|---|
//   | ROWS_MAP | out = last(second(first(x), y)); y is a number where it has no address |
//   | ROWS_CHOOSE | out = compare(x, number) ? second(x, y) : third(x, y) |
//   | ROWS_NORM | z = x, or x + y, which may be stored as `sum`; c = z, or z - mean(z); |
//   |   | out = c * rsqrt(sum(c * c) * share + number), rounded by `first`, then times `scale`, then |
//   |   | plus `shift` |
//   | ROWS_SOFTMAX | e = exp(x - max(x)); out = e / sum(e) |
//   | ROWS_ROTARY | p = x, or x times the row's one element of `sum`, rounded by `first`, times `scale`; |
//   |   | q = its second half, negated, then its first; out = p * y + q * shift; always in groups |
//
// Operators are those of layout.h; kNoOperator leaves a value as it is.
#pragma once

#include <cstdint>

namespace vtc {

enum RowsKind : int { ROWS_MAP, ROWS_CHOOSE, ROWS_NORM, ROWS_SOFTMAX, ROWS_ROTARY };

constexpr int kNoOperator = -1;
constexpr int kRowElements = 16;       // that a thread holds of a row
constexpr int kMostRowThreads = 256;   // of a block where rows are in parts, or a warp has one
constexpr int kMostTeamThreads = 512;  // of a block that has a row
constexpr int kMostRowWarps = kMostTeamThreads / 32;
constexpr int kRowsSharedBytes = 2 * kMostRowWarps * 4;

constexpr int kRowAxes = 4;

struct RowOperand {
  uint64_t address;         // 0: there is none
  uint64_t end;             // of its buffer
  int64_t pitch[kRowAxes];  // bytes between rows along each axis
  int32_t type;             // of memory
  int32_t size;             // bytes of an element
};

struct Rows {
  RowOperand x, y, scale, shift, out, sum;
  int32_t kind;
  int32_t rows, columns;
  int32_t axes;             // of rows, the last ones of `sizes`
  int32_t sizes[kRowAxes];  // whose product is `rows`, the last one fastest
  int32_t threads;          // of a block
  int32_t lanes;            // that have a row together, or a part of it; in folds all threads, or a power
                            // of two up to 32
  int32_t parts;            // of a row: blocks
  int32_t aligned;          // groups of 8 elements are moved at once; of the functions for any types
  int32_t centered;         // of ROWS_NORM
  int32_t first, second, third, last, compare;
  float number, share;
};

// Functions of norms and softmax for elements of one type: X(name, type, groups of a thread, whether
// rows may begin anywhere). Elements of 4 bytes that do are loaded one by one as fast.
#define VTC_ROW_GROUPS(X)          \
  X(bf16_1, T_BF16, 1, false)      \
  X(bf16_2, T_BF16, 2, false)      \
  X(bf16_1_any, T_BF16, 1, true)   \
  X(bf16_2_any, T_BF16, 2, true)   \
  X(f16_1, T_F16, 1, false)        \
  X(f16_2, T_F16, 2, false)        \
  X(f16_1_any, T_F16, 1, true)     \
  X(f16_2_any, T_F16, 2, true)     \
  X(f32_1, T_F32, 1, false)        \
  X(f32_2, T_F32, 2, false)

}  // namespace vtc
