// Kernels that are one operation on rows, for which the device has kernels of their own
// (cuda/rows.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "../cuda/rows.h"

namespace vtc {

struct DeviceCode;
struct KernelView;
struct ProgramView;

// The operands of a Rows, in their order there.
enum RowsOperand : int { ROW_X, ROW_Y, ROW_SCALE, ROW_SHIFT, ROW_OUT, ROW_SUM, kRowOperands };

struct RowsKernel {
  Rows form{};  // without addresses
  struct Operand {
    int buffer = -1;     // of the program; -1: there is none
    int64_t offset = 0;  // bytes
  };
  std::array<Operand, kRowOperands> operands;
  bool found = false;
};

// The operation that a kernel is, if it is one of `RowsKind`.
RowsKernel find_rows(const ProgramView& program, const KernelView& kernel, const DeviceCode& read);

// Functions of cuda/interpreter.cu; behind MAP, NORM and SOFTMAX is that for halves.
enum RowsFunction : int {
  ROWS_FUNCTION_MAP,
  ROWS_FUNCTION_NORM = ROWS_FUNCTION_MAP + 2,
  ROWS_FUNCTION_SOFTMAX = ROWS_FUNCTION_NORM + 2,
  ROWS_FUNCTION_ROTARY = ROWS_FUNCTION_SOFTMAX + 2,
  kRowsFunctions,
};
constexpr const char* kRowsNames[kRowsFunctions] = {
    "vtc_map",     "vtc_map_halves",     "vtc_norm",  "vtc_norm_halves",
    "vtc_softmax", "vtc_softmax_halves", "vtc_rotary"};

// How a launch is to run it.
struct RowsLaunch {
  Rows rows;
  int function;
  int64_t blocks;        // of `rows.threads` threads; 0: it cannot, at these addresses
};

// pointers: an address a buffer of the program.
RowsLaunch launch_of(const RowsKernel& kernel, std::span<const uintptr_t> pointers, int processors);

}  // namespace vtc
