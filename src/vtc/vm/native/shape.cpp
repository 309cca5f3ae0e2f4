// Sizes of a kernel, and merging its dimensions.

#include "shape.h"

#include <algorithm>

namespace vtc {
namespace {

void fill_access(const IrAccess& from, const std::vector<int64_t>& values, const int64_t* size,
                 int dims, Access& to) {
  to.buffer = from.buffer;
  to.apart = false;
  to.offset = values[from.offset];
  for (size_t d = 0; d < from.strides.size(); ++d) to.stride[d] = values[from.strides[d]];
  to.item = from.strides.empty() ? 0 : to.stride[0];
  to.terms.clear();
  for (const IrTerm& t : from.terms)
    to.terms.push_back({t.value, values[t.stride], t.size < 0 ? 0 : values[t.size], t.size >= 0});
  to.masks.clear();
  for (const IrMask& m : from.masks) {
    int64_t low = values[m.low], high = values[m.high];
    if (m.dim >= dims || low > 0 || high < size[m.dim]) to.masks.push_back({m.dim, low, high});
  }
}

void take_slice(Shape& s, const Slice& slice) {
  s.size[0] = slice.size;
  for (Access& a : s.accesses)
    if (!(*slice.local)[a.buffer]) a.offset += a.item * slice.first;
}

// From this many rows on, a right operand in panels beats one that is streamed as it lies.
constexpr int64_t kPanelRows = 16;

// Chooses between a product's right operand as it lies and the same in panels: the other access
// becomes a second copy of the chosen one.
void choose_right(const IrKernel& kernel, Shape& s) {
  s.packed = false;
  if (kernel.anchor < 0 || kernel.body[kernel.anchor].op != OP_MATMUL) return;
  const IrInstr& product = kernel.body[kernel.anchor];
  if (!product.width) return;
  Access& left = s.accesses[product.access];
  Access &right = s.accesses[product.access + 1], &packed = s.accesses[product.access + 2];
  int64_t rows = 1;
  for (int d = 0; d < s.dims; ++d)
    if (left.stride[d] != 0 && packed.stride[d] == 0) rows *= s.size[d];
  s.packed = rows >= kPanelRows;
  (s.packed ? right : packed) = s.packed ? packed : right;
}

// Dimensions that must stay themselves: a mask, a scan or the coordinate itself names them.
uint32_t pinned_dims(const IrKernel& kernel, const Shape& s) {
  uint32_t pinned = 0;
  for (const IrInstr& i : kernel.body) {
    if (i.op == OP_IOTA) pinned |= 1u << i.constant;
    if (i.op == OP_SCAN) pinned |= s.reduced;
    // The last two are the axes of attention's tiles.
    if (i.op == OP_ATTENTION) pinned |= 3u << std::max(s.dims - 2, 0);
    if (i.op == OP_CONVOLUTION) pinned |= 1u << (s.dims - 1);
  }
  for (const Access& a : s.accesses)
    for (const Access::Mask& m : a.masks)
      if (m.dim < s.dims) pinned |= 1u << m.dim;
  return pinned;
}

bool mergeable(const Shape& s, uint32_t pinned, int outer, int inner) {
  if ((pinned >> outer | pinned >> inner) & 1) return false;
  if (s.is_reduced(outer) != s.is_reduced(inner)) return false;
  for (const Access& a : s.accesses)
    if (!a.apart && a.stride[outer] != a.stride[inner] * s.size[inner]) return false;
  return true;
}

}  // namespace

bool Shape::empty() const {
  for (int d = 0; d < dims; ++d)
    if (size[d] <= 0 && !is_reduced(d)) return true;
  return false;
}

void make_shape(const IrKernel& kernel, const std::vector<int64_t>& values, Shape& s,
                const Slice* slice) {
  int dims = static_cast<int>(kernel.sizes.size());
  if (dims > kIrDims) throw EncodeError("a kernel has too many dimensions");
  s.dims = dims;
  s.reduced = kernel.reduced;
  for (int d = 0; d < dims; ++d) s.size[d] = std::max<int64_t>(values[kernel.sizes[d]], 0);
  s.accesses.resize(kernel.accesses.size());
  for (size_t a = 0; a < kernel.accesses.size(); ++a)
    fill_access(kernel.accesses[a], values, s.size, dims, s.accesses[a]);
  if (slice) take_slice(s, *slice);
  choose_right(kernel, s);
  std::copy(s.size, s.size + dims, s.whole);
  if (kernel.anchor >= 0 && kernel.body[kernel.anchor].op == OP_CONVOLUTION) {
    const IrInstr& anchor = kernel.body[kernel.anchor];
    const IrConvolution& c = kernel.convolutions[anchor.constant];
    if (c.windows.size() > kMaxWindows) throw EncodeError("a convolution has too many windows");
    for (size_t part = 0; part < c.k.size(); ++part) s.accesses[anchor.access + 2 * part].apart = true;
  }
  uint32_t pinned = pinned_dims(kernel, s);
  // A scanned or masked dimension of size 1 keeps its place; an iota's coordinate there is 0.
  uint32_t kept = 0;
  for (const IrInstr& i : kernel.body)
    if (i.op == OP_SCAN) kept |= s.reduced;
  if (kernel.anchor >= 0 && kernel.body[kernel.anchor].op == OP_ATTENTION) kept |= 1u << (dims - 1);
  for (const Access& a : s.accesses)
    for (const Access::Mask& m : a.masks)
      if (m.dim < dims) kept |= 1u << m.dim;

  int order[kIrDims], found = 0;  // surviving dimensions, from the innermost
  int64_t size[kIrDims];
  int merged_into[kIrDims];
  for (int d = dims - 1; d >= 0; --d) {
    merged_into[d] = -1;
    if (s.size[d] == 1 && !(kept >> d & 1)) continue;
    if (found && mergeable(s, pinned, d, order[found - 1]) && s.size[d] > 0) {
      // The inner stride stays: the sizes multiply.
      s.size[order[found - 1]] *= s.size[d];
      merged_into[d] = found - 1;
      for (Access& a : s.accesses)
        if (!a.apart) a.stride[d] = 0;
      continue;
    }
    merged_into[d] = found;
    order[found++] = d;
  }
  std::reverse(order, order + found);
  uint32_t reduced = 0;
  for (int n = 0; n < found; ++n) {
    size[n] = s.size[order[n]];
    if (s.is_reduced(order[n])) reduced |= 1u << n;
  }
  for (int d = 0; d < dims; ++d) s.origin[d] = merged_into[d] < 0 ? -1 : found - 1 - merged_into[d];
  for (Access& a : s.accesses) {
    if (a.apart) continue;
    constexpr int kMore = kMaxWindows + 1;
    int64_t stride[kIrDims + kMore];
    for (int n = 0; n < found; ++n) stride[n] = a.stride[order[n]];
    std::copy(a.stride + dims, a.stride + dims + kMore, stride + found);
    std::copy(stride, stride + found + kMore, a.stride);
    for (Access::Mask& m : a.masks) m.dim = m.dim >= dims ? found : s.origin[m.dim];
  }
  s.dims = found;
  s.reduced = reduced;
  std::copy(size, size + found, s.size);
  int64_t place = 1;
  for (int n = found - 1; n >= 0; --n) {
    s.place[n] = s.is_reduced(n) ? place : 0;
    if (s.is_reduced(n)) place *= size[n];
  }
  if (found > kMaxDims) throw EncodeError("a kernel has more than 8 dimensions that do not merge");
}

}  // namespace vtc
