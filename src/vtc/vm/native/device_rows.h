// Kernels that are one operation on rows, for which the device has kernels of their own
// (cuda/rows.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "../cuda/flat.h"
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
    int64_t extent = 0;  // of the buffer, in bytes
  };
  std::array<Operand, kRowOperands> operands;
  bool found = false;
  // Where rows make no difference (cuda/flat.h): the same without addresses, and which function of one
  // type it is, or -1.
  Flat flat{};
  int flat_function = -1;
};

// The operation that a kernel is, if it is one of `RowsKind`.
RowsKernel find_rows(const ProgramView& program, const KernelView& kernel, const DeviceCode& read);

// Finds the flat form of an operation on rows, if it has one. It may exchange its operands.
void find_flat(RowsKernel& kernel);

// Sets the threads of a block, and how many of them have a row, for operands of any types, anywhere.
void choose_blocks(Rows& own);

#define VTC_COUNT(...) +1
constexpr int kRowGroupFunctions = 0 VTC_ROW_GROUPS(VTC_COUNT);
constexpr int kFlatFunctions = 0 VTC_FLAT(VTC_COUNT);
constexpr int kFlatOfType = kFlatFunctions / 3;
#undef VTC_COUNT

// Functions of cuda/interpreter.cu; behind MAP is that for halves, the others' lists begin where they
// are named.
enum RowsFunction : int {
  ROWS_FUNCTION_MAP,
  ROWS_FUNCTION_NORM = ROWS_FUNCTION_MAP + 2,
  ROWS_FUNCTION_SOFTMAX,
  ROWS_FUNCTION_ROTARY,
  ROWS_FUNCTION_NORM_GROUPS,
  ROWS_FUNCTION_SOFTMAX_GROUPS = ROWS_FUNCTION_NORM_GROUPS + kRowGroupFunctions,
  ROWS_FUNCTION_FLAT = ROWS_FUNCTION_SOFTMAX_GROUPS + kRowGroupFunctions,
  kRowsFunctions = ROWS_FUNCTION_FLAT + kFlatFunctions,
};
#define VTC_NORM_NAME(NAME, ...) "vtc_norm_" #NAME,
#define VTC_SOFTMAX_NAME(NAME, ...) "vtc_softmax_" #NAME,
#define VTC_FLAT_NAME(NAME, ...) "vtc_flat_" #NAME,
constexpr const char* kRowsNames[kRowsFunctions] = {
    "vtc_map",    "vtc_map_halves", "vtc_norm",
    "vtc_softmax", "vtc_rotary",    VTC_ROW_GROUPS(VTC_NORM_NAME)
    VTC_ROW_GROUPS(VTC_SOFTMAX_NAME) VTC_FLAT(VTC_FLAT_NAME)};
#undef VTC_NORM_NAME
#undef VTC_SOFTMAX_NAME
#undef VTC_FLAT_NAME

// How a launch is to run it.
struct RowsLaunch {
  Rows rows;
  Flat flat;
  int function = 0;
  int64_t blocks = 0;  // 0: it cannot, at these addresses

  bool is_flat() const { return function >= ROWS_FUNCTION_FLAT; }
  int threads() const { return is_flat() ? flat.threads : rows.threads; }
  // What the kernel is given.
  std::span<const char> argument() const {
    return is_flat() ? std::span(reinterpret_cast<const char*>(&flat), sizeof flat)
                     : std::span(reinterpret_cast<const char*>(&rows), sizeof rows);
  }
};

// pointers: an address a buffer of the program.
RowsLaunch launch_of(const RowsKernel& kernel, std::span<const uintptr_t> pointers, int processors);

}  // namespace vtc
