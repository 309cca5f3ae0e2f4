// Depthwise convolutions.

#include "conv_tile.h"

namespace vtc::conv {

// Channels are columns: each tap is a multiply-add of lines, or of single channels where these lie
// apart.
void Tile::depthwise() {
  PartView p = first();
  AccessView right = p.right();
  int dims = s_.kernel.dims(), along = window_along();
  const char* base_w = right_base(p);
  bool in_lines = n_ == 1 || p.digit_stride(column_digit_) == 1;
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
    Stencil stencil{row_of(i),
                    ld_,
                    run,
                    in_lines ? n_ : 1,
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
                    finish(i)};
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
    for (int64_t j = 1; j < n_ && !in_lines; ++j) {
      for (int l = 0; l < count; ++l) line[l] += p.digit_stride(column_digit_), ++weight[l];
      ++stencil.d;
      Finish& f = stencil.finish;
      for (const float** each : {&f.scale, &f.shift, &f.other})
        if (*each) ++*each;
      s_.table->conv.stencil(stencil);
    }
    i += run;
  }
}

}  // namespace vtc::conv
