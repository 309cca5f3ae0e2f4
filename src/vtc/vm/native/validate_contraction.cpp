// Products, attention and convolutions: sizes that the interpreter can hold, operands inside their
// buffers.

#include <algorithm>
#include <tuple>

#include "validate_code.h"

namespace vtc {
namespace {

constexpr int kMostDigits = 24, kMostWindows = 6;
constexpr int64_t kMostTaps = 1 << 16;

}  // namespace

int64_t CodeChecker::matmul(int64_t length) {
  Word w = *at();
  int type = type_of(w), memory = type2_of(w), kind = kind_dst_of(w);
  require(length >= 3, "a product is cut short");
  int64_t k = static_cast<int64_t>(at()[1]);
  bool floats = memory == T_F32 || memory == T_BF16 || memory == T_F16;
  require((type == T_F32 && floats) || (type == T_F64 && memory == T_F64), "types of a product");
  require(k >= 0 && k <= int64_t{1} << 30, "contracted size");
  require(std::max(rows(), columns()) <= (int64_t{1} << 31) / std::max<int64_t>(k, 1),
          "size of a product's tile");
  int64_t n[kMaxDims + 1];
  int64_t words = 3;
  for (int side : {kRowBit, kColumnBit}) {
    int64_t offset = words;
    words += access(offset, length, k_.dims() + 1);
    AccessView a{at() + offset};
    require(p_.type(a.buffer()) == memory, "type of an operand");
    if (side == kColumnBit && at()[2]) {
      panels(a, kind, k);
      continue;
    }
    for (int t = 0; t < a.terms(); ++t)
      require((TermView{a.term(t)}.kind() | side) == side, "kind of an operand's term");
    coordinates(n, side & kind);
    n[k_.dims()] = k;
    inside(a, n, k_.dims() + 1);
  }
  write(dst_of(w), kind, kItemsize[type]);
  return words;
}

void CodeChecker::panels(AccessView a, int kind, int64_t k) const {
  int64_t width = static_cast<int64_t>(at()[2] & 0xffffffff);
  int64_t depth = static_cast<int64_t>(at()[2] >> 32);
  require(width >= 1 && width <= 1024 && depth >= 1 && depth <= 16, "size of a panel");
  require(a.plain(), "panels with terms or masks");
  require(type2_of(*at()) != T_F64, "type of panels");
  require(a.stride(k_.dims()) == width * depth, "rows of a panel");
  int64_t n[kMaxDims + 1];
  coordinates(n, kColumnBit & kind);
  int column = k_.column();
  if (column != kNoDim) {
    require(kind & kColumnBit, "kind of a product in panels");
    require(k_.span(column) >= k_.size(column) || k_.span(column) % width == 0, "span of panels");
    for (const Loop& l : active_)
      require(l.dim != column || l.step % width == 0, "a loop that is not over whole panels");
    n[column] = (n[column] + width - 1) / width;
  }
  n[k_.dims()] = (k + depth - 1) / depth;
  inside(a, n, k_.dims() + 1);
  // The last element of a panel's row, where there is a row.
  for (int d = 0; d <= k_.dims(); ++d)
    if (n[d] == 0) return;
  inside(a, n, k_.dims() + 1, width * depth - 1);
}

int64_t CodeChecker::attention(int64_t length) {
  Word w = *at();
  int kind = kind_dst_of(w);
  require(length >= 9, "an attention is cut short");
  require(type_of(w) == T_F32 || type_of(w) == T_F64, "type of an attention");
  int64_t keys = static_cast<int64_t>(at()[1]), depth = static_cast<int64_t>(at()[2]);
  require(keys >= 0 && keys <= kMostElements, "length of attention");
  require(depth >= 0 && depth <= 1 << 16, "head size of attention");
  require(rows() <= 1 << 16 && columns() <= 1 << 16, "size of attention's tile");
  int column = k_.column();
  require(column != kNoDim && k_.span(column) >= k_.size(column) && kind & kColumnBit,
          "columns of attention");
  for (const Loop& l : active_) require(l.dim != column, "a loop over the columns of attention");
  require(at()[8] == kNoDim || at()[8] < static_cast<Word>(k_.dims()), "position of attention");
  int64_t shift = static_cast<int64_t>(at()[6]), window = static_cast<int64_t>(at()[7]);
  require(within(shift, kMostElements) && within(window, kMostElements), "window");
  int64_t n[kMaxDims + 1];
  int64_t words = 9;
  int count = at()[4] & 8 ? 4 : 3;
  for (int operand = 0; operand < count; ++operand) {
    int64_t offset = words;
    words += access(offset, length, k_.dims() + 1, false);
    AccessView a{at() + offset};
    int memory = p_.type(a.buffer());
    bool fits = operand < 3 ? kCompute[memory] == type_of(w) : kCompute[memory] == T_F32;
    fits |= operand == 3 && (memory == T_BOOL || memory == T_F64);
    require(fits, "type of attention's operand");
    coordinates(n, kind);
    n[k_.dims()] = operand == 0 ? 1 : keys;
    // Query and key are contracted along the head; a mask does not move along the columns.
    if (operand < 2) n[column] = depth;
    if (operand == 3) n[column] = 1;
    inside(a, n, k_.dims() + 1);
  }
  write(dst_of(w), kind, kItemsize[type_of(w)]);
  return words;
}

// Digits divide the coordinate of a dimension completely, so that rows of a tile are runs along the
// innermost one.
int64_t CodeChecker::convolution(int64_t length) {
  Word w = *at();
  int type = type_of(w), memory = type2_of(w), kind = kind_dst_of(w);
  require(length_of(w) == 0 && length >= ConvolutionView::kHead, "a convolution is cut short");
  ConvolutionView c{at()};
  bool floats = memory == T_F32 || memory == T_BF16 || memory == T_F16;
  require((type == T_F32 && floats) || (type == T_F64 && memory == T_F64), "types of a convolution");
  int digits = c.digits(), windows = c.windows(), parts = c.parts();
  require(digits <= kMostDigits && windows <= kMostWindows, "digits or windows of a convolution");
  int64_t words = ConvolutionView::kHead + 3 * digits + 5 * windows;
  require(words <= length, "a convolution is cut short");
  int64_t below[kMaxDims];
  std::fill_n(below, kMaxDims, 1);
  uint32_t seen = 0;
  for (int i = digits - 1; i >= 0; --i) {
    require(c.dim(i) < k_.dims() && c.size(i) >= 1 && c.size(i) <= kMostElements, "a digit");
    int64_t& inner = below[c.dim(i)];
    require(c.divisor(i) == inner && inner <= kMostElements / c.size(i), "divisor of a digit");
    inner *= c.size(i);
    int window = c.window_of(i);
    require(window < windows, "window of a digit");
    require(c.dim(i) != k_.column() || (window < 0 && c.divisor(i) == 1 &&
                                        c.size(i) >= k_.size(c.dim(i))), "columns of a convolution");
    if (window < 0) continue;
    require(!(seen >> window & 1), "a window of two digits");
    seen |= 1u << window;
  }
  for (int i = 0; i < digits; ++i)
    require(below[c.dim(i)] >= k_.size(c.dim(i)), "digits of a dimension");
  int64_t taps = 1;
  for (int i = 0; i < windows; ++i) {
    require(c.taps(i) >= 0 && c.taps(i) <= kMostTaps, "taps of a window");
    taps *= c.taps(i);
    require(taps <= kMostTaps, "taps of windows");
    for (int64_t x : {c.step(i), c.dilation(i), c.pad(i), c.extent(i)})
      require(x >= -(int64_t{1} << 31) && x <= int64_t{1} << 31, "a window");
  }
  int64_t depth = 0;
  for (int part = 0; part < parts; ++part) {
    int64_t offset = words + 4 + digits + windows;
    require(offset <= length, "a convolution is cut short");
    PartView p{at() + words, digits, windows};
    require(p.k() >= 0 && p.k() <= int64_t{1} << 24, "contracted size");
    depth += p.k();
    require(p.w[1] < static_cast<Word>(p_.buffers()) && p_.type(p.buffer()) == memory,
            "left operand of a convolution");
    words = offset + access(offset, length, k_.dims() + windows + 1, false);
    AccessView right = p.right();
    require(p_.type(right.buffer()) == memory, "type of an operand");
    require(k_.row() == kNoDim || right.stride(k_.row()) == 0, "rows of a right operand");
    require(c.width() == 0 || c.width() <= 1024, "size of a panel");
    int64_t n[kMaxDims + kMostWindows + 1];
    coordinates(n, kind);
    for (int i = 0; i < windows; ++i) n[k_.dims() + i] = c.taps(i);
    n[k_.dims() + windows] = p.k();
    int column = k_.column();
    if (c.width() && column != kNoDim) {
      // The stride of the column leads from panel to panel, which a tile starts with.
      require(k_.span(column) % c.width() == 0 || k_.span(column) >= k_.size(column),
              "columns of panels");
      for (const Loop& l : active_) require(l.dim != column, "a loop over columns in panels");
      n[column] = (std::max<int64_t>(n[column], 1) + c.width() - 1) / c.width();
    }
    inside(right, n, k_.dims() + windows + 1, std::max<int64_t>(c.width(), 1) - 1);
    left_inside(c, p);
  }
  require(depth * std::max<int64_t>(taps, 1) <= int64_t{1} << 26, "size of a convolution");
  require(std::max(rows(), columns()) <= (int64_t{1} << 31) / std::max<int64_t>(depth * taps, 1),
          "size of a convolution's tile");
  for (auto [there, number, own] : {std::tuple{c.scaled(), a_of(w), kind_a_of(w)},
                                    std::tuple{c.shifted(), b_of(w), kind_b_of(w)}}) {
    if (!there) continue;
    require(own == kColumnBit, "kinds of a convolution");
    read(number, own, kItemsize[type]);
  }
  require(kind == ((k_.row() == kNoDim ? 0 : kRowBit) | (k_.column() == kNoDim ? 0 : kColumnBit)),
          "kind of a convolution");
  write(dst_of(w), kind, kItemsize[type]);
  return words;
}

}  // namespace vtc
