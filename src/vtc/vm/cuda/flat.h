// Pointwise kernels on tensors without gaps, as their launches have them: of ROWS_MAP and ROWS_CHOOSE
// (rows.h) those for which rows make no difference.
//
//   | form | element by element |
//   |---|---|
//   | FLAT_UNARY | out = op(x) |
//   | FLAT_GATE | out = op(x) * y |
//   | FLAT_BIAS | out = op(x + y) |
//   | FLAT_BINARY | out = second(x, y) |
//   | FLAT_CHOOSE | out = compare(x, number) ? second(x, y) : third(x, y) |
//   | FLAT_ANY | out = last(second(first(x), y)) |
//
// The first three are for the operators that are frequent there, a kernel for each: where a kernel has a
// switch over all of them, its warps wait for instructions. A thread has a group of 8 elements that is
// aligned; elements ahead of the first group and behind the last one are the last block's, one a thread.
// x, y and out are aligned alike. Of the frequent operators there are kernels of an element a thread, too,
// for tensors that a device has threads for, wherever they begin.
#pragma once

#include <cstdint>

namespace vtc {

enum FlatForm : int { FLAT_UNARY, FLAT_GATE, FLAT_BIAS, FLAT_BINARY, FLAT_CHOOSE, FLAT_ANY };

struct Flat {
  uint64_t x, y, out;  // addresses of the first elements; y: 0 where there is none
  int32_t head;        // elements ahead of the first group
  int32_t groups;
  int32_t count;       // elements
  int32_t period;      // elements after which y begins again, wherever it lies; 0: it does not
  int32_t threads;     // of a block
  float number;        // y where it has no address
  int32_t first, second, third, last, compare;
};

// X(name, type of the elements, form, op), where D_B_TO_A stands for no operator.
#define VTC_SINGLE_OF(X, NAME, TYPE)                       \
  X(NAME##_copy, TYPE, FLAT_UNARY, D_B_TO_A)               \
  X(NAME##_exp, TYPE, FLAT_UNARY, D_EXP)                   \
  X(NAME##_tanh, TYPE, FLAT_UNARY, D_TANH)                 \
  X(NAME##_sigmoid, TYPE, FLAT_UNARY, D_SIGMOID)           \
  X(NAME##_silu, TYPE, FLAT_UNARY, D_SILU)                 \
  X(NAME##_gelu, TYPE, FLAT_UNARY, D_GELU)                 \
  X(NAME##_gelu_tanh, TYPE, FLAT_UNARY, D_GELU_TANH)       \
  X(NAME##_gate_sigmoid, TYPE, FLAT_GATE, D_SIGMOID)       \
  X(NAME##_gate_silu, TYPE, FLAT_GATE, D_SILU)             \
  X(NAME##_gate_gelu, TYPE, FLAT_GATE, D_GELU)             \
  X(NAME##_gate_gelu_tanh, TYPE, FLAT_GATE, D_GELU_TANH)   \
  X(NAME##_bias_sigmoid, TYPE, FLAT_BIAS, D_SIGMOID)       \
  X(NAME##_bias_silu, TYPE, FLAT_BIAS, D_SILU)             \
  X(NAME##_bias_gelu, TYPE, FLAT_BIAS, D_GELU)             \
  X(NAME##_bias_gelu_tanh, TYPE, FLAT_BIAS, D_GELU_TANH)
#define VTC_FLAT_OF(X, NAME, TYPE)              \
  VTC_SINGLE_OF(X, NAME, TYPE)                  \
  X(NAME##_binary, TYPE, FLAT_BINARY, D_B_TO_A) \
  X(NAME##_choose, TYPE, FLAT_CHOOSE, D_B_TO_A) \
  X(NAME##_any, TYPE, FLAT_ANY, D_B_TO_A)
#define VTC_OF_TYPES(OF, X) OF(X, bf16, T_BF16) OF(X, f16, T_F16) OF(X, f32, T_F32)
#define VTC_FLAT(X) VTC_OF_TYPES(VTC_FLAT_OF, X)
#define VTC_SINGLE(X) VTC_OF_TYPES(VTC_SINGLE_OF, X)

}  // namespace vtc
