// Which elements of their buffers a kernel's accesses reach, at concrete sizes: a module that is wrong
// must not reach memory that is not its own.

#include <algorithm>

#include "shape.h"

namespace vtc {
namespace {

// Dimension d of the access takes the coordinates [0, n[d]). Addresses with runtime terms are
// checked when they are known. `more`: elements that are read behind each address.
void reach(const Access& a, const int64_t* n, int dims, const Reach& f, int64_t more = 0) {
  if (!a.terms.empty()) return;
  int64_t low = a.offset, high = a.offset;
  for (int d = 0; d < dims; ++d) {
    int64_t first = 0, last = n[d] - 1;
    for (const Access::Mask& m : a.masks) {
      if (m.dim != d) continue;
      first = std::max(first, m.low);
      last = std::min(last, m.high - 1);
    }
    if (first > last) return;
    int64_t one = a.stride[d] * first, other = a.stride[d] * last;
    low += std::min(one, other);
    high += std::max(one, other);
  }
  f(a, low, high + more);
}

// A load or store of a kernel. What does not move along a folded dimension is done once for all of
// its points, and if there are none, too.
void reach_points(const Access& a, const Shape& s, const Reach& f) {
  int64_t n[kIrDims];
  for (int d = 0; d < s.dims; ++d) {
    bool moves = a.stride[d] != 0;
    for (const Access::Mask& m : a.masks) moves |= m.dim == d;
    n[d] = s.is_reduced(d) && !moves ? std::max<int64_t>(s.size[d], 1) : s.size[d];
  }
  reach(a, n, s.dims, f);
}

// A convolution's left operand: dimensions of the IR that have no window, input coordinates of
// windows, channels.
void reach_windows(const std::vector<int64_t>& values, const IrConvolution& c, const Access& left,
                   int64_t k, const Shape& s, int dims, const Reach& f) {
  int windows = static_cast<int>(c.windows.size());
  int64_t n[kIrDims + kMaxWindows + 1];
  std::copy(s.whole, s.whole + dims, n);
  for (int w = 0; w < windows; ++w) n[dims + w] = values[c.windows[w].extent];
  n[dims + windows] = k;
  reach(left, n, dims + windows + 1, f);
}

}  // namespace

void each_reach(const std::vector<int64_t>& values, const IrKernel& kernel, const Shape& s,
                const Reach& f) {
  int64_t n[kIrDims + kMaxWindows + 1];
  std::copy(s.size, s.size + s.dims, n);
  for (const IrInstr& i : kernel.body) {
    if (i.access < 0) continue;
    const Access* a = &s.accesses[i.access];
    if (i.op == OP_MATMUL) {
      int64_t k = n[s.dims] = values[i.constant];
      reach(a[0], n, s.dims + 1, f);
      if (!s.packed) {
        reach(a[1], n, s.dims + 1, f);
        continue;
      }
      // A panel for each `width` columns, and in it a group of elements for each `depth` of k.
      int column = s.origin[kernel.sizes.size() - 1];
      int64_t columns = column < 0 ? 1 : n[column];
      if (column >= 0) n[column] = (columns + i.width - 1) / i.width;
      n[s.dims] = (k + i.depth - 1) / i.depth;
      reach(a[1], n, s.dims + 1, f, i.width * i.depth - 1);
      if (column >= 0) n[column] = columns;
    } else if (i.op == OP_ATTENTION) {
      // Query and key are contracted along the head; a mask does not move along the columns.
      const IrAttention& own = kernel.attentions[i.constant];
      int column = s.origin[kernel.sizes.size() - 1];
      int64_t width = n[column];
      for (int operand = 0; operand < (own.flags & 8 ? 4 : 3); ++operand) {
        n[s.dims] = operand == 0 ? 1 : values[own.length];
        n[column] = operand < 2 ? values[own.head_dim] : operand == 3 ? 1 : width;
        reach(a[operand], n, s.dims + 1, f);
      }
      n[column] = width;
    } else if (i.op == OP_CONVOLUTION) {
      const IrConvolution& c = kernel.convolutions[i.constant];
      int windows = static_cast<int>(c.windows.size()), dims = static_cast<int>(kernel.sizes.size());
      int column = s.origin[dims - 1];
      int64_t columns = column < 0 ? 1 : n[column], wide = std::max(c.width, 1);
      if (column >= 0) n[column] = (columns + wide - 1) / wide;
      for (int w = 0; w < windows; ++w) n[s.dims + w] = values[c.windows[w].taps];
      for (size_t part = 0; part < c.k.size(); ++part, a += 2) {
        int64_t k = n[s.dims + windows] = values[c.k[part]];
        reach_windows(values, c, a[0], k, s, dims, f);
        reach(a[1], n, s.dims + windows + 1, f, wide - 1);
      }
      if (column >= 0) n[column] = columns;
    } else if (i.op == OP_LOAD || i.op == OP_STORE) {
      reach_points(*a, s, f);
    }
  }
}

void check_bounds(const std::vector<int64_t>& extents, const std::vector<int64_t>& values,
                  const IrKernel& kernel, const Shape& s) {
  each_reach(values, kernel, s, [&](const Access& a, int64_t low, int64_t high) {
    if (low < 0 || high >= extents[a.buffer]) throw EncodeError("an address outside of its buffer");
  });
}

}  // namespace vtc
