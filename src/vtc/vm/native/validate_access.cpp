// Every address of an access is inside its buffer, and no sum on the way to it wraps.

#include <algorithm>

#include "validate_code.h"

namespace vtc {
namespace {

// Numbers up to it and coordinates, or the address of an element, have a sum that does not wrap.
constexpr int64_t kFar = int64_t{1} << 62;

}  // namespace

int64_t CodeChecker::access(int64_t offset, int64_t length, int strides, bool terms_allowed) {
  require(offset + 2 <= length, "an access is cut short");
  AccessView a{at() + offset};
  require(a.strides() == strides && offset + a.words() <= length, "length of an access");
  require(a.buffer() < p_.buffers(), "buffer of an access");
  require(terms_allowed || a.plain(), "terms or masks where there may be none");
  for (int t = 0; t < a.terms(); ++t) {
    TermView term{a.term(t)};
    require(term.type() == T_I32 || term.type() == T_I64, "type of a term");
    require(term.kind() <= 3, "kind of a term");
    read(term.reg(), term.kind(), kItemsize[term.type()]);
  }
  for (int m = 0; m < a.masks(); ++m) {
    const Word* mask = a.mask(m);
    require(mask[0] < static_cast<Word>(strides), "dimension of a mask");
    for (int bound : {1, 2})
      require(within(static_cast<int64_t>(mask[bound]), kFar), "bounds of a mask");
  }
  return a.words();
}

void CodeChecker::inside(AccessView a, const int64_t* n, int count, int64_t more) const {
  if (dead()) return;
  if (a.terms() > 0) {
    for (int d = 0; d < count; ++d) {
      Wide run = Wide{a.stride(d)} * n[d];
      require(run >= -kFar && run <= kFar, "a stride that addresses wrap at");
    }
    return;
  }
  Wide low = a.offset(), high = Wide{a.offset()} + more;
  for (int d = 0; d < count; ++d) {
    int64_t first = 0, last = n[d] - 1;
    for (int m = 0; m < a.masks(); ++m) {
      if (static_cast<int>(a.mask(m)[0]) != d) continue;
      first = std::max(first, static_cast<int64_t>(a.mask(m)[1]));
      last = std::min(last, static_cast<int64_t>(a.mask(m)[2]) - 1);
    }
    if (first > last) return;
    Wide one = Wide{a.stride(d)} * first, other = Wide{a.stride(d)} * last;
    low += std::min(one, other);
    high += std::max(one, other);
  }
  require(low >= 0 && high < p_.extent(a.buffer()), "an address outside of its buffer");
}

void CodeChecker::coordinates(int64_t* n, int kind) const {
  for (int d = 0; d < k_.dims(); ++d) {
    bool tiled = (d == k_.row() && kind & kRowBit) || (d == k_.column() && kind & kColumnBit);
    n[d] = std::max<int64_t>(k_.size(d), tiled ? 0 : 1);
  }
}

void CodeChecker::left_inside(ConvolutionView c, PartView p) const {
  if (dead()) return;
  for (int d = 0; d < k_.dims(); ++d)
    if (k_.size(d) == 0) return;
  Wide low = p.offset(), high = p.offset();
  auto span = [&](int64_t stride, int64_t count) {
    Wide reach = Wide{stride} * (count - 1);
    low += std::min<Wide>(reach, 0);
    high += std::max<Wide>(reach, 0);
  };
  bool none = p.k() == 0;
  for (int i = 0; i < c.digits(); ++i) {
    if (c.window_of(i) >= 0) {
      require(p.digit_stride(i) == 0, "a stride of a window's digit");
    } else {
      // A digit of a dimension that tiles do not reach stays below its size.
      span(p.digit_stride(i), c.divisor(i) == 1 && c.size(i) > k_.size(c.dim(i))
                                  ? k_.size(c.dim(i)) : c.size(i));
    }
  }
  for (int i = 0; i < c.windows(); ++i) {
    none |= c.extent(i) <= 0 || c.taps(i) == 0;
    span(p.window_stride(i), std::max<int64_t>(c.extent(i), 1));
  }
  span(p.k_stride(), std::max<int64_t>(p.k(), 1));
  require(none || (low >= 0 && high < p_.extent(p.buffer())), "an address outside of its buffer");
}

}  // namespace vtc
