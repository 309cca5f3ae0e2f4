// Windows that the rows of a run move in. For each tap along the other windows a run reads a line of
// positions, whose channels lie one behind the other: of a position a window's taps are one segment,
// and the next row begins `step` positions on.
//
// Where the input itself lies so, blocks that are inside of it read it in place; the lines of others,
// which hang over, are copied with zeros at their ends. All other inputs (channels first, parts of
// several tensors, bf16) are copied to such lines a run at a time.

#include "conv_tile.h"

namespace vtc::conv {

bool Tile::moves_in_lines() const {
  int along = window_along();
  if (along < 0 || c_.taps(along) == 1 || c_.dilation(along) != 1 || !in_rows()) return false;
  // Taps along it are to follow each other in the right operand.
  for (int w = along + 1; w < windows_; ++w)
    if (c_.taps(w) != 1) return false;
  return true;
}

// `count` positions from input coordinate `first` on, of all parts, at a tap of the other windows.
void Tile::fill_line(float* line, const int64_t* tap, int64_t first, int64_t count) const {
  int along = window_along();
  int64_t low = std::clamp<int64_t>(-first, 0, count);
  int64_t high = std::clamp<int64_t>(c_.extent(along) - first, low, count);
  std::fill_n(line, low * depth_, 0.0f);
  std::fill_n(line + high * depth_, (count - high) * depth_, 0.0f);
  int64_t n = high - low;
  if (n == 0) return;
  const Table& table = *s_.table;
  PartView p = this->first();
  float* to = line + low * depth_;
  for (int part = 0; part < c_.parts(); ++part, to += p.k(), p = p.next()) {
    int64_t at = base(p), k = p.k(), apart = p.window_stride(along), step = p.k_stride();
    for (int w = 0; w < windows_; ++w)
      at += (w == along ? first + low : input(w, tap[w])) * p.window_stride(w);
    const char* from = memory(p.buffer()) + at * size_;
    if (direct(p)) {
      table.copy_rows(to, depth_, from, apart, n, k);
    } else if (type_ == T_F32 && apart == 1) {
      table.turn(to, depth_, from, step, n, k);
    } else {
      for (int64_t q = 0; q < k; ++q)
        table.read[type_](to + q, depth_, from + q * step * size_, apart, n);
    }
  }
}

// Segments in lines of `count` positions from input coordinate `first` on, which are filled.
void Tile::find_lines(int64_t first, int64_t count) {
  int along = window_along();
  std::vector<Segment>& segments = s_.line_segments;
  segments.clear();
  int64_t lines = taps_ / c_.taps(along), length = count * depth_;
  float* line = reinterpret_cast<float*>(s_.left.get((lines * length + 16) * 4));
  each_tap([&](int64_t t, const int64_t* tap) {
    if (tap[along] != 0) return;
    for (int w = 0; w < windows_; ++w)
      if (w != along && (input(w, tap[w]) < 0 || input(w, tap[w]) >= c_.extent(w))) return;
    fill_line(line, tap, first, count);
    auto [b, step] = right_rows(t, tap);
    segments.push_back({line, c_.step(along) * depth_, c_.taps(along) * depth_, b, step});
    line += length;
  });
}

// Segments of the first row of the run at hand in the input itself.
void Tile::find_direct() {
  int along = window_along();
  std::vector<Segment>& segments = s_.segments;
  segments.clear();
  PartView p = first();
  int64_t lda = row_stride(p, along);
  const float* a = reinterpret_cast<const float*>(memory(p.buffer()));
  each_tap([&](int64_t t, const int64_t* tap) {
    for (int w = 0; w < windows_; ++w)
      if (w != along && (input(w, tap[w]) < 0 || input(w, tap[w]) >= c_.extent(w))) return;
    auto [b, step] = right_rows(t, tap);
    add(segments, {a + input_at(p, tap), lda, p.k(), b, step});
  });
}

// The run of `rows` rows that begins with row i, which is at hand.
void Tile::lined_run(int64_t i, int64_t rows) {
  int along = window_along();
  int64_t step = c_.step(along), taps = c_.taps(along), first = input(along, 0);
  int64_t most = s_.table->conv.rows, count = (rows + most - 1) / most, extent = c_.extent(along);
  auto positions = [&](int64_t rows) { return (rows - 1) * step + taps; };
  bool in_place = c_.parts() == 1 && all_direct();
  if (in_place)
    find_direct();
  else
    find_lines(first, positions(rows));
  std::vector<Segment>& segments = in_place ? s_.segments : s_.line_segments;
  for (int64_t b = 0; b < count; ++b) {
    int64_t from = rows * b / count, here = rows * (b + 1) / count - from;
    int64_t at = first + from * step;
    if (in_place && (at < 0 || at + positions(here) > extent)) {
      find_lines(at, positions(here));
      multiply(i + from, static_cast<int>(here), s_.line_segments);
    } else {
      multiply(i + from, static_cast<int>(here), segments);
    }
    for (Segment& s : segments) s.a += here * s.lda;
  }
}

}  // namespace vtc::conv
