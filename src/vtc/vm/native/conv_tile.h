// A tile of a convolution's outputs, and how its parts are read.
#pragma once

#include <algorithm>
#include <cstring>

#include "epilogue.h"

namespace vtc::conv {

constexpr int kDims = 24, kWindows = 6;
constexpr int64_t kLine = 16;  // floats of a cache line

// A CONVOLUTION and the tile that it fills.
class Tile {
 public:
  Tile(State& s, const Word* w)
      : s_(s), c_{w}, type_(type2_of(w[0])), size_(kItemsize[type_]), windows_(c_.windows()) {
    int kind = kind_dst_of(w[0]);
    r_ = s.rows(kind);
    n_ = s.columns(kind);
    if (c_.scaled()) scale_ = s.reg[a_of(w[0])];
    if (c_.shifted()) shift_ = s.reg[b_of(w[0])];
    ld_ = n_;
    next_ = w + words_of(w);
    out_ = s.reg[dst_of(w[0])];
    if (type_of(w[0]) == T_F32) {
      Epilogue epilogue = find_epilogue(s, w);
      next_ = epilogue.next;
      out_ = reinterpret_cast<char*>(epilogue.out);
      ld_ = epilogue.ld;
      finish_ = epilogue.finish;
    }
    finish_.scale = reinterpret_cast<const float*>(scale_);
    finish_.shift = reinterpret_cast<const float*>(shift_);
    finish_.low = static_cast<float>(c_.low());
    finish_.high = static_cast<float>(c_.high());
    for (int i = 0; i < windows_; ++i) taps_ *= c_.taps(i);
    PartView p = first();
    for (int i = 0; i < c_.parts(); ++i, p = p.next()) depth_ += p.k();
    for (int i = 0; i < c_.digits(); ++i) {
      if (c_.dim(i) == s.column) column_digit_ = i;
      if (c_.dim(i) == s.row) inner_ = i;
    }
  }

  // The instruction to go on with.
  const Word* run();

 private:
  void compute();
  PartView first() const { return {c_.first_part(), c_.digits(), windows_}; }

  // The digits of row i of the tile: a window's point, or its digit's share of the address.
  void locate(int64_t i) {
    std::fill_n(point_, windows_, 0);
    for (int d = 0; d < c_.digits(); ++d) {
      int64_t at = s_.coordinate[c_.dim(d)] + (c_.dim(d) == s_.row ? i : 0);
      digit_[d] = at / c_.divisor(d) % c_.size(d);
      if (c_.window_of(d) >= 0) point_[c_.window_of(d)] = digit_[d];
    }
  }
  // How many rows from row i on differ in the innermost digit alone.
  int64_t run_from(int64_t i) const {
    if (inner_ < 0) return r_ - i;
    return std::min(r_ - i, c_.size(inner_) - digit_[inner_]);
  }
  // The address of a part for the row at hand, at input coordinates 0.
  int64_t base(const PartView& p) const {
    int64_t at = p.offset();
    for (int d = 0; d < c_.digits(); ++d)
      if (c_.window_of(d) < 0) at += digit_[d] * p.digit_stride(d);
    return at;
  }
  float* row_of(int64_t i) const { return reinterpret_cast<float*>(out_) + i * ld_; }
  const char* memory(int buffer) const { return s_.run->pointers[buffer]; }
  // The address of the right operand at column 0 of the tile, or of its panel.
  const char* right_base(const PartView& p) const {
    AccessView a = p.right();
    int64_t at = a.offset(), width = c_.width();
    for (int d = 0; d < s_.kernel.dims(); ++d)
      at += (width && d == s_.column ? s_.coordinate[d] / width : s_.coordinate[d]) * a.stride(d);
    return memory(a.buffer()) + at * size_;
  }
  // How far column j of the tile is from that.
  int64_t column_at(const PartView& p, int64_t j) const {
    int64_t width = c_.width();
    return width ? j / width * column_stride(p) + j % width : j * column_stride(p);
  }
  int64_t column_stride(const PartView& p) const {
    return s_.column == kNoDim ? 0 : p.right().stride(s_.column);
  }
  // Calls f(tap, taps along each window) for each tap in order.
  template <class F>
  void each_tap(F f) const {
    int64_t at[kWindows] = {};
    for (int64_t t = 0; t < taps_; ++t) {
      f(t, at);
      for (int w = windows_ - 1; w >= 0 && ++at[w] == c_.taps(w); --w) at[w] = 0;
    }
  }
  int64_t input(int w, int64_t tap) const {
    return c_.step(w) * point_[w] + c_.dilation(w) * tap - c_.pad(w);
  }

  template <class T>
  double element(const char* p) const {
    return *reinterpret_cast<const T*>(p);
  }
  double value(const char* p) const {
    if (type_ == T_F64) return element<double>(p);
    if (type_ == T_F32) return element<float>(p);
    float x;
    s_.table->read[type_](&x, 1, p, 1, 1);
    return x;
  }

  // Do all parts have their columns in one tensor, the same distance apart?
  bool in_panels() const {
    PartView p = first();
    int buffer = p.right().buffer();
    int64_t stride = column_stride(p);
    for (int i = 1; i < c_.parts(); ++i) {
      p = p.next();
      if (p.right().buffer() != buffer || column_stride(p) != stride) return false;
    }
    return true;
  }

  template <class T>
  T finished(T x, int64_t j) const {
    if (scale_) x = x * reinterpret_cast<const T*>(scale_)[j];
    if (shift_) x = x + reinterpret_cast<const T*>(shift_)[j];
    T low = static_cast<T>(c_.low()), high = static_cast<T>(c_.high());
    x = x > low || x != x ? x : low;
    return x < high || x != x ? x : high;
  }
  // For rows from row i of the tile on.
  Finish finish(int64_t i) const {
    Finish found = finish_;
    if (found.other) found.other += i * found.ldo;
    return found;
  }

  // The rows of a run whose tap is inside of the input.
  std::pair<int64_t, int64_t> inside(const int64_t* tap, int along, int64_t rows) const {
    int64_t low = 0, high = rows;
    for (int w = 0; w < windows_; ++w) {
      int64_t q = input(w, tap[w]), step = w == along ? c_.step(w) : 0, extent = c_.extent(w);
      auto outside = [&](int64_t r) { return q + r * step < 0 || q + r * step >= extent; };
      while (low < high && outside(low)) ++low;
      while (low < high && outside(high - 1)) --high;
    }
    return {low, high};
  }
  // The address of a part's element that the row at hand reads for a tap.
  int64_t input_at(const PartView& p, const int64_t* tap) const {
    int64_t x = base(p);
    for (int w = 0; w < windows_; ++w) x += input(w, tap[w]) * p.window_stride(w);
    return x;
  }
  // How far a row's elements are from those of the row before.
  int64_t row_stride(const PartView& p, int along) const {
    if (inner_ < 0) return 0;
    return along >= 0 ? c_.step(along) * p.window_stride(along) : p.digit_stride(inner_);
  }
  // Do packed rows of the right operand follow each other in the order of taps, parts and channels?
  bool in_rows() const {
    if (!in_place_) return true;
    if (c_.parts() != 1) return false;
    PartView p = first();
    int64_t step = p.right().stride(s_.kernel.dims() + windows_), apart = step * p.k();
    for (int w = windows_ - 1; w >= 0; --w) {
      if (c_.taps(w) > 1 && p.right().stride(s_.kernel.dims() + w) != apart) return false;
      apart *= c_.taps(w);
    }
    return true;
  }
  // The window that the rows of a run move in, or -1.
  int window_along() const { return inner_ < 0 ? -1 : c_.window_of(inner_); }
  // Where the rows of panels begin that a tap of the first part meets, and how far they are apart.
  std::pair<const float*, int64_t> right_rows(int64_t t, const int64_t* tap) const {
    const Conv& conv = s_.table->conv;
    if (!in_place_)
      return {reinterpret_cast<const float*>(s_.panels.get(0)) + t * depth_ * conv.panel,
              conv.panel};
    PartView p = first();
    int dims = s_.kernel.dims();
    int64_t at = 0;
    for (int w = 0; w < windows_; ++w) at += tap[w] * p.right().stride(dims + w);
    return {reinterpret_cast<const float*>(right_base(p)) + at, p.right().stride(dims + windows_)};
  }
  // May elements of the left operand be read where they lie?
  bool direct(const PartView& p) const {
    return type_ == T_F32 && (p.k_stride() == 1 || p.k() == 1);
  }
  bool all_direct() const {
    PartView p = first();
    for (int part = 0; part < c_.parts(); ++part, p = p.next())
      if (!direct(p)) return false;
    return true;
  }
  void gather(float* to, const char* from, int64_t step, int64_t k) const {
    if (type_ != T_F32) return s_.table->read[type_](to, 1, from, step, k);
    if (step == 1) {
      std::memcpy(to, from, k * 4);
      return;
    }
    const float* x = reinterpret_cast<const float*>(from);
    for (int64_t p = 0; p < k; ++p) to[p] = x[p * step];
  }
  // Adds a segment, to the one before if it goes on there.
  static void add(std::vector<Segment>& segments, const Segment& s) {
    if (!segments.empty()) {
      Segment& before = segments.back();
      if (before.lda == s.lda && before.a + before.k == s.a && before.step == s.step &&
          before.b + before.k * s.step == s.b) {
        before.k += s.k;
        return;
      }
    }
    segments.push_back(s);
  }

  void plain();
  void blocks();
  void find_segments(int64_t rows);
  void multiply(int64_t i, int rows, const std::vector<Segment>& segments);
  bool moves_in_lines() const;
  void lined_run(int64_t i, int64_t rows);
  void fill_line(float* line, const int64_t* tap, int64_t first, int64_t count) const;
  void find_lines(int64_t first, int64_t count);
  void find_direct();
  // Floats from one gathered row to the next.
  int64_t gathered_row() const { return (taps_ * depth_ + kLine - 1) / kLine * kLine; }
  void gather_run(int64_t rows);
  void gathered_block(int64_t i, int64_t from, int rows);
  void depthwise();
  void pack();

  State& s_;
  ConvolutionView c_;
  int type_, size_, windows_;
  int64_t r_, n_, taps_ = 1, depth_ = 0;
  char* out_;
  int64_t ld_;  // from a row of the result to the next
  const Word* next_;
  Finish finish_;
  const char* scale_ = nullptr;
  const char* shift_ = nullptr;
  int column_digit_ = -1, inner_ = -1;
  int64_t digit_[kDims], point_[kWindows];
  bool in_place_ = false;  // are the panels of the right operand read where they lie?
  int64_t apart_ = 0;      // between panels
};

}  // namespace vtc::conv
