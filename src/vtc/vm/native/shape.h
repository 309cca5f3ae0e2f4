// A kernel at concrete sizes, with as few dimensions as its accesses allow, and its tiles.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "module.h"

namespace vtc {

constexpr int kIrDims = 24;
constexpr int kMaxWindows = 6;

struct Access {
  int buffer;
  int64_t offset;
  // An anchor's further ones (of windows, of the contracted dimension) begin at index `dims` of its
  // kernel.
  int64_t stride[kIrDims + kMaxWindows + 1];
  // The left operand of a convolution keeps the strides of the IR's dimensions.
  bool apart = false;
  int64_t item;  // stride of the IR's first dimension
  struct Term {
    int value;
    int64_t stride, size;
    bool checked;
  };
  struct Mask {
    int dim;
    int64_t low, high;
  };
  std::vector<Term> terms;
  std::vector<Mask> masks;
};

struct Shape {
  int dims = 0;
  int64_t size[kIrDims];
  uint32_t reduced = 0;
  int64_t whole[kIrDims];     // sizes of the IR's dimensions
  int64_t place[kIrDims];     // row-major place of a reduced dimension's coordinate
  int origin[kIrDims];        // dimension of the IR -> dimension here, or -1 where its size is 1
  std::vector<Access> accesses;
  bool packed = false;        // a product reads its right operand in panels

  bool is_reduced(int d) const { return reduced >> d & 1; }
  bool empty() const;         // no point outside the reduced dimensions
};

struct Tiling {
  int row = -1, column = -1;
  int64_t rows = 1, columns = 1;
  int64_t span[kIrDims] = {};
  int64_t step[kIrDims] = {};      // of the loop over a dimension; 0 where there is none
  int loops[kIrDims];         // dimensions looped over, outermost first
  int loop_count = 0;
  int split = -1;             // reduced dimension that tasks divide among themselves
  int64_t points = 1;

  int64_t tasks(const Shape& s, int d) const {
    int64_t n = (s.size[d] + span[d] - 1) / span[d];
    return n > 1 ? n : 1;
  }
};

// A part of a kernel's first dimension: coordinates [first, first + size).
struct Slice {
  int64_t first, size;
  const std::vector<char>* local;  // buffers that hold only this part
};

// Is given an access and the least and greatest element of its buffer that it reaches.
using Reach = std::function<void(const Access&, int64_t, int64_t)>;

// Calls f for each access of the kernel that reaches any, and has no runtime terms.
void each_reach(const std::vector<int64_t>& values, const IrKernel& kernel, const Shape& s,
                const Reach& f);
// Throws EncodeError for an access that leaves its buffer, of `extents` elements.
void check_bounds(const std::vector<int64_t>& extents, const std::vector<int64_t>& values,
                  const IrKernel& kernel, const Shape& s);
void make_shape(const IrKernel& kernel, const std::vector<int64_t>& values, Shape& out,
                const Slice* slice = nullptr);
// May reorder the dimensions of `shape`.
void choose_tiles(const IrKernel& kernel, const std::vector<int64_t>& values, Shape& shape,
                  Tiling& out);

}  // namespace vtc
