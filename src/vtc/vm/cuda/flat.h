// Pointwise kernels on tensors without gaps, as their launches have them: of ROWS_MAP and ROWS_CHOOSE
// (rows.h) those for which rows make no difference.
//
//   | form | element by element |
//   |---|---|
//   | FLAT_UNARY | out = first(x) |
//   | FLAT_BINARY | out = second(x, y) |
//   | FLAT_GATE | out = first(x) * y |
//   | FLAT_BIAS | out = last(x + y) |
//   | FLAT_CHOOSE | out = compare(x, number) ? second(x, y) : third(x, y) |
//   | FLAT_ANY | out = last(second(first(x), y)) |
//
// The first `lead` elements of the first 16 bytes are another's; x, y and out are shifted alike.
#pragma once

#include <cstdint>

namespace vtc {

enum FlatForm : int {
  FLAT_UNARY, FLAT_BINARY, FLAT_GATE, FLAT_BIAS, FLAT_CHOOSE, FLAT_ANY, kFlatForms
};

struct Flat {
  uint64_t x, y, out;  // addresses of the first elements; y: 0 where there is none
  int32_t lead;
  int32_t count;    // elements
  int32_t period;   // elements after which y begins again, wherever it lies; 0: it does not
  int32_t threads;  // of a block
  float number;     // y where it has no address
  int32_t first, second, third, last, compare;
};

// X(name, type of the elements, form)
#define VTC_FLAT_OF(X, NAME, TYPE)         \
  X(NAME##_unary, TYPE, FLAT_UNARY)        \
  X(NAME##_binary, TYPE, FLAT_BINARY)      \
  X(NAME##_gate, TYPE, FLAT_GATE)          \
  X(NAME##_bias, TYPE, FLAT_BIAS)          \
  X(NAME##_choose, TYPE, FLAT_CHOOSE)      \
  X(NAME##_any, TYPE, FLAT_ANY)
#define VTC_FLAT(X)                \
  VTC_FLAT_OF(X, bf16, T_BF16)     \
  VTC_FLAT_OF(X, f16, T_F16)       \
  VTC_FLAT_OF(X, f32, T_F32)

}  // namespace vtc
