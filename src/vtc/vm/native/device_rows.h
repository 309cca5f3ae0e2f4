// Kernels that are one operation on rows, for which the device has kernels of their own
// (cuda/rows.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "../cuda/dense.h"
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
  bool dense = false;  // of rows without gaps (cuda/dense.h)
};

// The operation that a kernel is, if it is one of `RowsKind`.
RowsKernel find_rows(const ProgramView& program, const KernelView& kernel, const DeviceCode& read);

// Finds the flat form of an operation on rows, if it has one. It may exchange its operands.
void find_flat(RowsKernel& kernel);

// Finds whether a norm or a softmax is of rows without gaps.
void find_dense(RowsKernel& kernel);

// Sets the threads of a block, and how many of them have a row, for operands of any types, anywhere.
void choose_blocks(Rows& own);

#define VTC_COUNT(...) +1
constexpr int kRowGroupFunctions = 0 VTC_ROW_GROUPS(VTC_COUNT);
constexpr int kFlatFunctions = 0 VTC_FLAT(VTC_COUNT);
constexpr int kFlatOfType = kFlatFunctions / 3;
constexpr int kSingleFunctions = 0 VTC_SINGLE(VTC_COUNT);
constexpr int kSingleOfType = kSingleFunctions / 3;
constexpr int kDenseFunctions = 0 VTC_DENSE(VTC_COUNT);
constexpr int kDenseOfType = kDenseFunctions / 3;
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
  ROWS_FUNCTION_SINGLE = ROWS_FUNCTION_FLAT + kFlatFunctions,
  ROWS_FUNCTION_DENSE_NORM = ROWS_FUNCTION_SINGLE + kSingleFunctions,
  ROWS_FUNCTION_DENSE_SOFTMAX = ROWS_FUNCTION_DENSE_NORM + kDenseFunctions,
  kRowsFunctions = ROWS_FUNCTION_DENSE_SOFTMAX + kDenseFunctions,
};
#define VTC_NORM_NAME(NAME, ...) "vtc_norm_" #NAME,
#define VTC_SOFTMAX_NAME(NAME, ...) "vtc_softmax_" #NAME,
#define VTC_FLAT_NAME(NAME, ...) "vtc_flat_" #NAME,
#define VTC_SINGLE_NAME(NAME, ...) "vtc_single_" #NAME,
#define VTC_DENSE_NORM_NAME(NAME, ...) "vtc_dense_norm_" #NAME,
#define VTC_DENSE_SOFTMAX_NAME(NAME, ...) "vtc_dense_softmax_" #NAME,
constexpr const char* kRowsNames[kRowsFunctions] = {
    "vtc_map",    "vtc_map_halves", "vtc_norm",
    "vtc_softmax", "vtc_rotary",    VTC_ROW_GROUPS(VTC_NORM_NAME)
    VTC_ROW_GROUPS(VTC_SOFTMAX_NAME) VTC_FLAT(VTC_FLAT_NAME) VTC_SINGLE(VTC_SINGLE_NAME)
    VTC_DENSE(VTC_DENSE_NORM_NAME) VTC_DENSE(VTC_DENSE_SOFTMAX_NAME)};
#undef VTC_NORM_NAME
#undef VTC_SOFTMAX_NAME
#undef VTC_FLAT_NAME
#undef VTC_SINGLE_NAME
#undef VTC_DENSE_NORM_NAME
#undef VTC_DENSE_SOFTMAX_NAME

// How a launch is to run it.
struct RowsLaunch {
  Rows rows;
  Flat flat;
  Dense dense;
  int function = 0;
  int64_t blocks = 0;  // 0: it cannot, at these addresses

  bool is_dense() const { return function >= ROWS_FUNCTION_DENSE_NORM; }
  bool is_flat() const { return function >= ROWS_FUNCTION_FLAT && !is_dense(); }
  int threads() const { return is_flat() ? flat.threads : is_dense() ? dense.threads : rows.threads; }
  // What the kernel is given.
  std::span<const char> argument() const {
    return is_flat() ? bytes(flat) : is_dense() ? bytes(dense) : bytes(rows);
  }

 private:
  template <class T>
  static std::span<const char> bytes(const T& own) {
    return {reinterpret_cast<const char*>(&own), sizeof own};
  }
};

// pointers: an address a buffer of the program.
RowsLaunch launch_of(const RowsKernel& kernel, std::span<const uintptr_t> pointers, int processors);

}  // namespace vtc
