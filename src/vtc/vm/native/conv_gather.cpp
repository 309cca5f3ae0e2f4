// What a convolution reads where its input does not lie as its loops want it: gathered first.

#include "conv_tile.h"

namespace vtc::conv {

// Gathers what a whole run reads: a row of floats for each output, all taps and channels. First a
// line for each tap and channel, over all outputs; these are then turned.
void Tile::gather_run(int64_t rows) {
  int along = window_along();
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
  s_.table->conv.block(row_of(i + from), ld_, &segment, 1, rows, apart_, n_, finish(i + from));
}

// What `rows` rows from the one at hand on read.
void Tile::find_segments(int64_t rows) {
  const Conv& conv = s_.table->conv;
  int along = window_along();
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
        add(segments, {reinterpret_cast<const float*>(a) + x, lda, p.k(), b, step});
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
      add(segments, {gathered, ld, k, b, step});
      gathered += apart ? rows * k : k;
    }
  });
}

}  // namespace vtc::conv
