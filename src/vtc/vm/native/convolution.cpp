// Convolutions over a tile: which elements of the input each block of rows reads.
//
// Rows of a tile are output points, in runs along the innermost digit. A block of a run reads
// segments, one a tap and part, in place where they lie so and are inside of the input; the others
// are gathered to rows of floats with 0 where the window hangs over.

#include <algorithm>
#include <cstring>

#include "state.h"

namespace vtc {
namespace {

constexpr int kDims = 24, kWindows = 6;
constexpr int64_t kLine = 16;  // floats of a cache line

class Tile {
 public:
  Tile(State& s, const Word* w)
      : s_(s), c_{w}, type_(type2_of(w[0])), size_(kItemsize[type_]), windows_(c_.windows()) {
    int kind = kind_dst_of(w[0]);
    r_ = s.rows(kind);
    n_ = s.columns(kind);
    out_ = s.reg[dst_of(w[0])];
    if (c_.scaled()) scale_ = s.reg[a_of(w[0])];
    if (c_.shifted()) shift_ = s.reg[b_of(w[0])];
    for (int i = 0; i < windows_; ++i) taps_ *= c_.taps(i);
    PartView p = first();
    for (int i = 0; i < c_.parts(); ++i, p = p.next()) depth_ += p.k();
    for (int i = 0; i < c_.digits(); ++i) {
      if (c_.dim(i) == s.column) column_digit_ = i;
      if (c_.dim(i) == s.row) inner_ = i;
    }
  }

  void run();

 private:
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
  Finish finish() const {
    return {reinterpret_cast<const float*>(scale_), reinterpret_cast<const float*>(shift_),
            static_cast<float>(c_.low()), static_cast<float>(c_.high())};
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
  void add(const Segment& s) {
    if (!s_.segments.empty()) {
      Segment& before = s_.segments.back();
      if (before.lda == s.lda && before.a + before.k == s.a && before.step == s.step &&
          before.b + before.k * s.step == s.b) {
        before.k += s.k;
        return;
      }
    }
    s_.segments.push_back(s);
  }

  void plain();
  void blocks();
  void find_segments(int64_t rows);
  void block(int64_t i, int rows);
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
  const char* scale_ = nullptr;
  const char* shift_ = nullptr;
  int column_digit_ = -1, inner_ = -1;
  int64_t digit_[kDims], point_[kWindows];
  bool in_place_ = false;  // are the panels of the right operand read where they lie?
  int64_t apart_ = 0;      // between panels
};

// Element by element: what no loop below is made for.
void Tile::plain() {
  for (int64_t i = 0; i < r_; ++i) {
    locate(i);
    for (int64_t j = 0; j < n_; ++j) {
      double sum = 0;
      each_tap([&](int64_t, const int64_t* tap) {
        for (int w = 0; w < windows_; ++w)
          if (int64_t q = input(w, tap[w]); q < 0 || q >= c_.extent(w)) return;
        PartView p = first();
        for (int part = 0; part < c_.parts(); ++part, p = p.next()) {
          int64_t x = base(p);
          const char* y = right_base(p) + column_at(p, j) * size_;
          for (int w = 0; w < windows_; ++w) {
            x += input(w, tap[w]) * p.window_stride(w);
            y += tap[w] * p.right().stride(s_.kernel.dims() + w) * size_;
          }
          if (column_digit_ >= 0) x += j * p.digit_stride(column_digit_);
          int64_t step = p.right().stride(s_.kernel.dims() + windows_);
          const char* a = memory(p.buffer());
          for (int64_t k = 0; k < p.k(); ++k)
            sum += value(a + (x + k * p.k_stride()) * size_) * value(y + k * step * size_);
        }
      });
      if (type_ == T_F64)
        reinterpret_cast<double*>(out_)[i * n_ + j] = finished(sum, j);
      else
        reinterpret_cast<float*>(out_)[i * n_ + j] = finished(static_cast<float>(sum), j);
    }
  }
}

// Packs the right operand by taps, parts and channels, unless the task before had it or it lies in
// such panels.
void Tile::pack() {
  const Conv& conv = s_.table->conv;
  in_place_ = type_ == T_F32 && c_.width() == conv.panel;
  if (in_place_) {
    apart_ = column_stride(first());
    return;
  }
  apart_ = taps_ * depth_ * conv.panel;
  const char* base = right_base(first());
  if (s_.packed_base == base && s_.packed_columns == n_) return;
  int64_t depth = taps_ * depth_, panels = (n_ + conv.panel - 1) / conv.panel;
  float* packed = reinterpret_cast<float*>(s_.panels.get((panels * conv.panel * depth + 16) * 4));
  int64_t* offset = reinterpret_cast<int64_t*>(s_.right.get((depth + 1) * 8));
  int64_t* to = offset;
  each_tap([&](int64_t, const int64_t* tap) {
    PartView p = first();
    for (int part = 0; part < c_.parts(); ++part, p = p.next()) {
      AccessView a = p.right();
      int64_t at = (right_base(p) - base) / size_;
      for (int w = 0; w < windows_; ++w) at += tap[w] * a.stride(s_.kernel.dims() + w);
      for (int64_t k = 0; k < p.k(); ++k) *to++ = at + k * a.stride(s_.kernel.dims() + windows_);
    }
  });
  if (!c_.width()) {
    conv.pack(packed, base, type_, column_stride(first()), offset, depth, n_);
  } else {
    for (int64_t j = 0; j < panels * conv.panel; ++j)
      for (int64_t q = 0; q < depth; ++q) {
        float x = 0;
        const char* from = base + (column_at(first(), j) + offset[q]) * size_;
        if (j < n_) s_.table->read[type_](&x, 1, from, 1, 1);
        packed[(j / conv.panel * depth + q) * conv.panel + j % conv.panel] = x;
      }
  }
  s_.packed_base = base;
  s_.packed_columns = n_;
}

void Tile::blocks() {
  pack();
  int most = s_.table->conv.rows;
  bool still = windows_ == 0 && all_direct();  // the same segments for each block, rows apart
  for (int64_t i = 0; i < r_;) {
    locate(i);
    int64_t run = run_from(i), count = (run + most - 1) / most;
    bool whole = !direct(first()) && in_rows();
    if (whole) gather_run(run);
    if (still) find_segments(run);
    for (int64_t b = 0; b < count; ++b) {
      int64_t from = run * b / count, rows = run * (b + 1) / count - from;
      if (whole) {
        gathered_block(i, from, static_cast<int>(rows));
        continue;
      }
      if (!still) {
        if (b) locate(i + from);
        find_segments(rows);
      }
      block(i + from, static_cast<int>(rows));
      if (still)
        for (Segment& s : s_.segments) s.a += rows * s.lda;
    }
    i += run;
  }
}

// Gathers what a whole run reads: a row of floats for each output, all taps and channels. First a
// line for each tap and channel, over all outputs; these are then turned.
void Tile::gather_run(int64_t rows) {
  int along = inner_ < 0 ? -1 : c_.window_of(inner_);
  int64_t lines = taps_ * depth_, ld = gathered_row(), across = (rows + kLine - 1) / kLine * kLine;
  float* line = reinterpret_cast<float*>(s_.spare.get((across * ld + 16) * 4));
  float* turned = reinterpret_cast<float*>(s_.left.get((across * ld + 16) * 4));
  const float* first_line = line;
  each_tap([&](int64_t, const int64_t* tap) {
    auto [low, high] = inside(tap, along, rows);
    PartView p = first();
    for (int part = 0; part < c_.parts(); ++part, p = p.next()) {
      int64_t lda = row_stride(p, along), k = p.k();
      const char* a = memory(p.buffer()) + input_at(p, tap) * size_;
      for (int64_t q = 0; q < k; ++q, line += across) {
        const char* x = a + q * p.k_stride() * size_;
        std::fill_n(line, std::min(low, rows), 0.0f);
        if (low < high)
          s_.table->read[type_](line + low, 1, x + low * lda * size_, lda, high - low);
        int64_t from = std::max(low, high);
        std::fill_n(line + from, across - from, 0.0f);
      }
    }
  });
  std::fill_n(line, (ld - lines) * across, 0.0f);
  s_.table->turn(turned, ld, first_line, across, across, ld);
}

// A block of a run that has been gathered.
void Tile::gathered_block(int64_t i, int64_t from, int rows) {
  int64_t ld = gathered_row();
  const float* gathered = reinterpret_cast<const float*>(s_.left.get(0));
  const float* b = reinterpret_cast<const float*>(s_.panels.get(0));
  int64_t step = s_.table->conv.panel;
  if (in_place_) {
    b = reinterpret_cast<const float*>(right_base(first()));
    step = first().right().stride(s_.kernel.dims() + windows_);
  }
  Segment segment{gathered + from * ld, ld, taps_ * depth_, b, step};
  s_.table->conv.block(reinterpret_cast<float*>(out_) + (i + from) * n_, n_, &segment, 1, rows,
                       apart_, n_, finish());
}

// What `rows` rows from the one at hand on read.
void Tile::find_segments(int64_t rows) {
  const Conv& conv = s_.table->conv;
  int along = inner_ < 0 ? -1 : c_.window_of(inner_);  // the window that rows move in
  std::vector<Segment>& segments = s_.segments;
  segments.clear();
  // What is gathered tap by tap lies apart; if all is, a row has all of its taps.
  bool apart = direct(first());
  int64_t room = taps_ * depth_ * rows + 16;
  float* gathered = reinterpret_cast<float*>(s_.left.get(room * 4));
  const float* packed = in_place_ ? nullptr : reinterpret_cast<const float*>(s_.panels.get(0));
  int dims = s_.kernel.dims();
  each_tap([&](int64_t, const int64_t* tap) {
    auto [low, high] = inside(tap, along, rows);
    const float* rows_here = packed;
    if (packed) packed += depth_ * conv.panel;
    if (low >= high) return;
    PartView p = first();
    for (int part = 0; part < c_.parts(); ++part, p = p.next()) {
      const float* b = rows_here;
      int64_t step = conv.panel;
      if (in_place_) {
        int64_t at = 0;
        for (int w = 0; w < windows_; ++w) at += tap[w] * p.right().stride(dims + w);
        b = reinterpret_cast<const float*>(right_base(p)) + at;
        step = p.right().stride(dims + windows_);
      } else {
        rows_here += p.k() * conv.panel;
      }
      int64_t x = input_at(p, tap), lda = row_stride(p, along);
      const char* a = memory(p.buffer());
      if (direct(p) && low == 0 && high == rows) {
        add({reinterpret_cast<const float*>(a) + x, lda, p.k(), b, step});
        continue;
      }
      int64_t k = p.k(), ld = apart ? k : taps_ * depth_;
      for (int64_t r = 0; r < rows; ++r) {
        float* to = gathered + r * ld;
        if (r < low || r >= high)
          std::fill_n(to, k, 0.0f);
        else
          gather(to, a + (x + r * lda) * size_, p.k_stride(), k);
      }
      add({gathered, ld, k, b, step});
      gathered += apart ? rows * k : k;
    }
  });
}

void Tile::block(int64_t i, int rows) {
  s_.table->conv.block(reinterpret_cast<float*>(out_) + i * n_, n_, s_.segments.data(),
                       static_cast<int64_t>(s_.segments.size()), rows, apart_, n_, finish());
}

// Channels are columns: each tap is a multiply-add of lines.
void Tile::depthwise() {
  PartView p = first();
  AccessView right = p.right();
  int dims = s_.kernel.dims(), along = inner_ < 0 ? -1 : c_.window_of(inner_);
  const char* base_w = right_base(p);
  bool lines_up = n_ == 1 || column_stride(p) == 1;
  float* weights = reinterpret_cast<float*>(s_.panels.get((taps_ * n_ + 16) * 4));
  if (!lines_up && (s_.packed_base != base_w || s_.packed_columns != n_)) {
    each_tap([&](int64_t t, const int64_t* tap) {
      int64_t at = 0;
      for (int w = 0; w < windows_; ++w) at += tap[w] * right.stride(dims + w);
      const float* from = reinterpret_cast<const float*>(base_w) + at;
      for (int64_t j = 0; j < n_; ++j) weights[t * n_ + j] = from[j * column_stride(p)];
    });
    s_.packed_base = base_w;
    s_.packed_columns = n_;
  }
  int64_t inner_taps = along < 0 ? 1 : c_.taps(along), lines = taps_ / inner_taps;
  int64_t inner_step = along < 0 ? 0 : p.window_stride(along);
  // Taps along the window that rows move in are `apart` in the order of all taps.
  int64_t apart = 1;
  for (int w = along + 1; along >= 0 && w < windows_; ++w) apart *= c_.taps(w);
  s_.left.get(lines * 2 * sizeof(float*) + 64);
  const float** line = reinterpret_cast<const float**>(s_.left.get(0));
  const float** weight = line + lines;
  for (int64_t i = 0; i < r_;) {
    locate(i);
    int64_t run = run_from(i);
    int count = 0;
    const float* x = reinterpret_cast<const float*>(memory(p.buffer())) + base(p);
    each_tap([&](int64_t t, const int64_t* tap) {
      if (along >= 0 && tap[along] != 0) return;
      int64_t at = 0;
      for (int w = 0; w < windows_; ++w) {
        if (w == along) continue;
        int64_t q = input(w, tap[w]);
        if (q < 0 || q >= c_.extent(w)) return;
        at += q * p.window_stride(w);
      }
      line[count] = x + at;
      int64_t share = 0;
      for (int w = 0; w < windows_; ++w) share += tap[w] * right.stride(dims + w);
      weight[count++] = lines_up ? reinterpret_cast<const float*>(base_w) + share : weights + t * n_;
    });
    Stencil stencil{reinterpret_cast<float*>(out_) + i * n_,
                    n_,
                    run,
                    n_,
                    line,
                    weight,
                    lines_up && along >= 0 ? right.stride(dims + along) : apart * n_,
                    count,
                    static_cast<int>(inner_taps),
                    inner_step,
                    0,
                    1,
                    1,
                    run,
                    finish()};
    if (along >= 0) {
      stencil.first = input(along, 0);
      stencil.step = c_.step(along);
      stencil.dilation = c_.dilation(along);
      stencil.extent = c_.extent(along);
    } else {
      // Rows move plainly: each is an input coordinate of a window of one tap.
      stencil.ldx = inner_ < 0 ? 0 : p.digit_stride(inner_);
    }
    s_.table->conv.stencil(stencil);
    i += run;
  }
}

void Tile::run() {
  if (r_ == 0 || n_ == 0) return;
  if (type_ == T_F64 || taps_ == 0 || depth_ == 0) return plain();
  PartView p = first();
  if (column_digit_ < 0 && in_panels()) return blocks();
  bool lines = column_digit_ >= 0 && !c_.width() && type_ == T_F32 && c_.parts() == 1 && p.k() == 1 &&
               (n_ == 1 || p.digit_stride(column_digit_) == 1);
  return lines ? depthwise() : plain();
}

}  // namespace

void convolution(State& s, const Word* w) { Tile(s, w).run(); }

}  // namespace vtc
