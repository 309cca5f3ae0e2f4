// Convolutions over a tile: which elements of the input each block of rows reads.
//
// Rows of a tile are output points, in runs along the innermost digit. A block of a run reads
// segments: in place where a whole window is inside of the input, else from lines that are copied
// with zeros where it hangs over (conv_lines.cpp), or gathered to rows of floats (conv_gather.cpp).

#include "conv_tile.h"

namespace vtc {
namespace conv {

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
        reinterpret_cast<double*>(out_)[i * ld_ + j] = finished(sum, j);
      else
        row_of(i)[j] = finished(static_cast<float>(sum), j);
    }
    if (type_ == T_F64) continue;
    Finish here = finish(i);
    s_.table->conv.complete(row_of(i), ld_, 1, n_, here, here.other);
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

// Rows in blocks of even sizes, each of a run.
void Tile::blocks() {
  pack();
  int most = s_.table->conv.rows;
  bool still = windows_ == 0 && all_direct();  // the same segments for each block, rows apart
  bool lined = moves_in_lines(), whole = !direct(first()) && in_rows();
  for (int64_t i = 0; i < r_;) {
    locate(i);
    int64_t run = run_from(i), count = (run + most - 1) / most;
    if (lined) {
      lined_run(i, run);
      i += run;
      continue;
    }
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
      multiply(i + from, static_cast<int>(rows), s_.segments);
      if (still)
        for (Segment& s : s_.segments) s.a += rows * s.lda;
    }
    i += run;
  }
}

void Tile::multiply(int64_t i, int rows, const std::vector<Segment>& segments) {
  s_.table->conv.block(row_of(i), ld_, segments.data(), static_cast<int64_t>(segments.size()), rows,
                       apart_, n_, finish(i));
}

const Word* Tile::run() {
  if (r_ == 0 || n_ == 0) return next_;
  compute();
  return next_;
}

void Tile::compute() {
  if (type_ == T_F64 || taps_ == 0 || depth_ == 0) return plain();
  PartView p = first();
  if (column_digit_ < 0 && in_panels()) return blocks();
  bool lines = column_digit_ >= 0 && !c_.width() && type_ == T_F32 && c_.parts() == 1 && p.k() == 1;
  return lines ? depthwise() : plain();
}

}  // namespace conv

const Word* convolution(State& s, const Word* w) { return conv::Tile(s, w).run(); }

}  // namespace vtc
