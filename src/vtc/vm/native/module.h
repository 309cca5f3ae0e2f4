// A module of tile kernels as the encoder sees it: parsed once, from the image that machine.py
// writes, with sizes as numbers of expressions.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "isa.h"

namespace vtc {

struct EncodeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct IrTerm {
  int value, stride, size;  // size -1: unchecked
};

struct IrMask {
  int dim, low, high;
};

struct IrAccess {
  int buffer, offset;
  std::vector<int> strides;
  std::vector<IrTerm> terms;
  std::vector<IrMask> masks;
};

struct IrInstr {
  int op, type;
  std::vector<int> args;
  int access = -1;  // into IrKernel::accesses; an anchor's first operand
  // const: bits or, with `symbolic`, an expression; param, iota: number; cast: type; reduce, scan:
  // fold; matmul: expression of k; attention, convolution: into the kernel's lists of them.
  int64_t constant = 0;
  bool symbolic = false;
  int memory = 0;  // matmul, convolution: type of its operands
  // matmul: panels of its third operand, which is the second one packed; 0 if there is none.
  int width = 0, depth = 0;
};

constexpr bool is_anchor(int op) {
  return op == OP_MATMUL || op == OP_ATTENTION || op == OP_CONVOLUTION;
}

struct IrAttention {
  int length, head_dim, shift, window, flags;
  int64_t scale, softcap;  // bits
};

struct IrWindow {
  int dim, taps, stride, dilation, pad, extent;  // dim -1: of one point
};

struct IrConvolution {
  std::vector<IrWindow> windows;
  std::vector<int> k;  // of each part, whose operands are two accesses in a row
  int width;           // of the right operands' panels, or 0
};

struct IrKernel {
  int number;
  std::vector<int> sizes;
  uint32_t reduced = 0;
  std::vector<IrInstr> body;
  std::vector<IrAccess> accesses;
  std::vector<IrAttention> attentions;
  std::vector<IrConvolution> convolutions;
  std::vector<int> uses;  // of each value
  int live_bytes = 4;     // a point, at the fullest place of the body
  int anchor = -1;
  int cost = 0;           // roughly, cycles a vector of points
};

struct IrStep {
  int kernel = -1;  // else a branch
  int predicate = -1;
  std::vector<IrStep> then, otherwise;
};

struct IrBuffer {
  int kind, type, extent;  // kind: 0 input, 1 output, 2 temporary
};

struct IrModule {
  int symbols = 0, params = 0;
  std::vector<std::vector<int64_t>> expressions;
  std::vector<IrBuffer> buffers;
  std::vector<IrKernel> kernels;
  std::vector<IrStep> steps;

  explicit IrModule(std::span<const int64_t> image);
  // The values of all expressions.
  void evaluate(std::span<const int64_t> symbols, std::vector<int64_t>& values) const;
};

}  // namespace vtc
