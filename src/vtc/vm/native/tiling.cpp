// Tiles by arithmetic alone: which dimensions are their axes, how large they are, what is looped
// over, and how tasks divide the domain.

#include <algorithm>
#include <cstdlib>

#include "shape.h"
#include "table.h"
#include "tiling.h"

namespace vtc {
namespace {

// Of live values. Chains of operators keep theirs in registers, so that a tile may outgrow the first
// cache level; smaller tiles pay for their instructions too often.
constexpr int64_t kTileBytes = 96 << 10;
constexpr int64_t kMaxTile = 8192;             // points
constexpr int64_t kMinTile = 512;
constexpr int64_t kRowBytes = 96 << 10;        // a whole row is worth holding in L2 up to here
constexpr int64_t kRowBlockBytes = 384 << 10;  // of the left operand of a product
constexpr int64_t kBlockDepth = 1024;          // of k, that a product goes through at a time
constexpr int64_t kConvolutionColumns = 128;
constexpr int64_t kConvolutionTile = 6144;     // points
constexpr int64_t kSmallMap = 128;             // output points
constexpr size_t kFewParts = 4;
constexpr int64_t kUneven = 20;                // of it a share may be larger than a half
constexpr int64_t kLongRow = 256;
constexpr int64_t kShortRow = 12;              // a shorter row does not fill a vector
constexpr int64_t kFewTasks = 8;
constexpr Sharing kSharing{.few_tasks = kFewTasks, .tasks = 32, .points = 1 << 18,
                           .points_a_task = 16384};

// A step of at most `most` that divides `size` into even parts, a multiple of 64 if it can be.
int64_t even_step(int64_t size, int64_t most) {
  if (size <= most) return std::max<int64_t>(size, 1);
  int64_t step = divide_up(size, divide_up(size, most));
  int64_t rounded = divide_up(step, 64) * 64;
  return rounded <= std::max<int64_t>(most, 64) ? rounded : step;
}

// The dimension along which the most elements are moved contiguously; the last where they tie.
int contiguous_dim(const Shape& s, int other_than) {
  int best = -1;
  double most = -1;
  for (int d = s.dims - 1; d >= 0; --d) {
    if (d == other_than) continue;
    double votes = 0;
    for (const Access& a : s.accesses) {
      if (s.size[d] <= 1 || a.stride[d] != 1) continue;
      double elements = 1;
      for (int e = 0; e < s.dims; ++e)
        if (a.stride[e] != 0) elements *= static_cast<double>(s.size[e]);
      votes += elements;
    }
    if (votes > most) best = d, most = votes;
  }
  return best;
}

// Are there rows that are contiguous in themselves, but not one behind the other?
bool pitched(const Shape& s, int row, int column) {
  if (row < 0) return false;
  for (const Access& a : s.accesses)
    if (a.stride[column] == 1 && a.stride[row] != 0 && a.stride[row] != s.size[column]) return true;
  return false;
}

int last_dim(const Shape& s, int other_than, bool reduced) {
  for (int d = s.dims - 1; d >= 0; --d)
    if (d != other_than && s.is_reduced(d) == reduced) return d;
  return -1;
}

void reorder(Shape& s, const int* order) {
  int64_t old_size[kIrDims], old_place[kIrDims], stride[kIrDims];
  int to[kIrDims + 1];
  uint32_t old_reduced = s.reduced;
  std::copy(s.size, s.size + s.dims, old_size);
  std::copy(s.place, s.place + s.dims, old_place);
  s.reduced = 0;
  for (int n = 0; n < s.dims; ++n) {
    s.size[n] = old_size[order[n]];
    s.place[n] = old_place[order[n]];
    if (old_reduced >> order[n] & 1) s.reduced |= 1u << n;
    to[order[n]] = n;
  }
  to[s.dims] = s.dims;
  for (Access& a : s.accesses) {
    if (a.apart) continue;
    for (int n = 0; n < s.dims; ++n) stride[n] = a.stride[order[n]];
    std::copy(stride, stride + s.dims, a.stride);
    for (Access::Mask& m : a.masks) m.dim = to[m.dim];
  }
  for (int& o : s.origin)
    if (o >= 0 && o < s.dims) o = to[o];
}

// Moves dimension d to the end.
void move_last(Shape& s, Tiling& t, int d) {
  int order[kIrDims], n = 0;
  for (int e = 0; e < s.dims; ++e)
    if (e != d) order[n++] = e;
  order[n] = d;
  auto moved = [&](int e) { return e < 0 ? e : e == d ? s.dims - 1 : e > d ? e - 1 : e; };
  t.row = moved(t.row);
  t.column = moved(t.column);
  t.split = moved(t.split);
  for (int i = 0; i < t.loop_count; ++i) t.loops[i] = moved(t.loops[i]);
  std::rotate(t.span + d, t.span + d + 1, t.span + s.dims);
  std::rotate(t.step + d, t.step + d + 1, t.step + s.dims);
  reorder(s, order);
}

void tile_product(const IrKernel& kernel, int64_t k, Shape& s, Tiling& t) {
  const Access& left = s.accesses[kernel.body[kernel.anchor].access];
  const Access& right = s.accesses[kernel.body[kernel.anchor].access + 1];
  t.column = s.origin[kernel.sizes.size() - 1];
  for (int d = s.dims - 1; d >= 0 && t.row < 0; --d)
    if (d != t.column && left.stride[d] != 0 && right.stride[d] == 0) t.row = d;
  bool whole = s.reduced != 0;
  int64_t m = t.row < 0 ? 1 : s.size[t.row], n = t.column < 0 ? 1 : s.size[t.column];
  // Panels of B first, rows within them, so that a thread packs a panel once.
  if (t.row >= 0) move_last(s, t, t.row);
  k = std::max<int64_t>(k, 1);
  t.columns = whole ? n : std::min<int64_t>(n, k > 2048 ? 32 : 64);
  // Tiles start where panels do.
  int64_t width = s.packed ? kernel.body[kernel.anchor].width : 1;
  if (t.columns < n) t.columns = std::min(n, divide_up(t.columns, width) * width);
  if (m <= 8) {
    t.rows = m;
  } else {
    // The tile stays in L1, and its rows of A in L2 beside the panels of B.
    int64_t block = std::min<int64_t>(k, kBlockDepth);
    int64_t fits = std::min(8192 / std::max<int64_t>(t.columns, 1), kRowBlockBytes / 4 / block);
    int64_t most = std::max<int64_t>(14, fits / 14 * 14);
    t.rows = std::min(m, divide_up(divide_up(m, divide_up(m, most)), 14) * 14);
  }
}

// Rows of a tile: at least `rows` in whole runs, or in halves of them where two threads would find
// shares of m rows, `others` times, that are less even than by `kUneven`.
int64_t whole_runs(int64_t rows, int64_t run, int64_t m, int64_t others) {
  int64_t all = m * others;
  auto longest = [&](int64_t step) {
    int64_t parts = divide_up(m, step), half = parts * others / 2;
    int64_t first = half / parts * m + std::min(half % parts * step, m);
    return std::max(first, all - first);
  };
  for (int64_t unit : {run, run % 2 ? run : run / 2}) {
    int64_t step = divide_up(rows, unit) * unit;
    if (longest(step) * 2 <= all + all / kUneven) return step;
  }
  return rows;
}

// Whole rows of the output where they are short: a tile's rows are read in runs along the innermost
// window.
void tile_convolution(const IrKernel& kernel, Shape& s, Tiling& t) {
  const IrInstr& anchor = kernel.body[kernel.anchor];
  size_t parts_of_k = kernel.convolutions[anchor.constant].k.size();
  // Rows share the right operand, in all of its parts.
  auto shared = [&](int d) {
    for (size_t part = 0; part < parts_of_k; ++part)
      if (s.accesses[anchor.access + 2 * part + 1].stride[d] != 0) return false;
    return true;
  };
  int last = static_cast<int>(kernel.sizes.size()) - 1;
  t.column = s.origin[last];
  for (int d = s.dims - 1; d >= 0 && t.row < 0; --d)
    if (d != t.column && s.size[d] > 1 && shared(d)) t.row = d;
  int64_t m = t.row < 0 ? 1 : std::max<int64_t>(s.size[t.row], 1);
  int64_t n = t.column < 0 ? 1 : std::max<int64_t>(s.size[t.column], 1);
  // Without windows rows follow each other as they lie.
  int64_t run = m;
  bool windows = !kernel.convolutions[anchor.constant].windows.empty();
  for (int d = windows ? last - 1 : -1; d >= 0; --d)
    if (s.whole[d] > 1 && s.origin[d] == t.row) {
      run = s.whole[d];
      break;
    }
  if (t.row >= 0) move_last(s, t, t.row);
  int64_t panels = divide_up(n, kConvolutionColumns);
  int64_t width = kernel.convolutions[anchor.constant].width;
  if (!width) width = 32;
  t.columns = divide_up(divide_up(n, panels), width) * width;
  if (t.columns > n) t.columns = n;
  panels = divide_up(n, t.columns);
  // Of small maps all rows, so that a thread reads only the panels of its own columns; but rows in
  // many parts are to stay in the first cache for several panels.
  bool small = m <= kSmallMap && divide_up(n, width) >= 4 && parts_of_k <= kFewParts;
  if (small) t.columns = std::min(n, width * (divide_up(n, width) >= 16 ? 2 : 1));
  if (small) panels = divide_up(n, t.columns);
  int64_t most = small ? m : std::max<int64_t>(kConvolutionTile / t.columns, 14);
  int64_t parts = divide_up(m, most), others = panels;
  for (int d = 0; d < s.dims; ++d)
    if (d != t.row && d != t.column) others *= std::max<int64_t>(s.size[d], 1);
  // Two threads, or four, find equal shares.
  if (others < 4 && m >= 28) parts = divide_up(parts, 4) * 4;
  t.rows = divide_up(m, parts);
  if (run < m && run <= most) t.rows = whole_runs(t.rows, run, m, others);
  if (t.rows > m) t.rows = m;
}

void tile_attention(const IrKernel& kernel, const Shape& s, Tiling& t) {
  int dims = static_cast<int>(kernel.sizes.size());
  t.column = s.origin[dims - 1];
  t.row = dims > 1 ? s.origin[dims - 2] : -1;
  const IrInstr& anchor = kernel.body[kernel.anchor];
  if (t.row < 0) {
    // One query: grouped heads that share their keys can be the rows instead.
    for (int d = s.dims - 1; d >= 0 && t.row < 0; --d) {
      bool shared = d != t.column && s.accesses[anchor.access].stride[d] != 0;
      for (int a = 1; a < 3; ++a) shared &= s.accesses[anchor.access + a].stride[d] == 0;
      if (shared) t.row = d;
    }
  }
  t.columns = t.column < 0 ? 1 : s.size[t.column];
  t.rows = t.row < 0 ? 1 : std::min<int64_t>(s.size[t.row], 64);
}

void tile_plain(const IrKernel& kernel, const Shape& s, Tiling& t) {
  choose_axes(s, t);
  if (t.column < 0) return;
  int64_t n = std::max<int64_t>(s.size[t.column], 1);
  int64_t m = t.row < 0 ? 1 : std::max<int64_t>(s.size[t.row], 1);
  int64_t budget = std::clamp(kTileBytes / kernel.live_bytes, kMinTile, kMaxTile) / 64 * 64;
  bool column_reduced = s.is_reduced(t.column), row_reduced = t.row >= 0 && s.is_reduced(t.row);
  bool transposed =
      t.row >= 0 && !row_reduced && !column_reduced && any_contiguous(s, t.row) && m > 1;
  if (column_reduced && n * kernel.live_bytes <= kRowBytes) {
    t.columns = n;
  } else if (transposed) {
    t.columns = std::min<int64_t>(n, 64);
  } else if (row_reduced && !column_reduced) {
    // Down a column: wide enough for whole cache lines, with rows to fold at once, and with several
    // tasks.
    int64_t share = std::max<int64_t>(divide_up(divide_up(n, kFewTasks), 64) * 64, 64);
    t.columns = even_step(n, std::min(share, budget / std::min<int64_t>(m, 8)));
  } else {
    t.columns = even_step(n, budget);
  }
  t.rows = std::clamp<int64_t>(budget / t.columns, 1, m);
  // Of one row every contiguous access is dense, so that loads copy nothing.
  bool plain = !row_reduced && !column_reduced && !transposed;
  if (plain && t.columns >= kLongRow && pitched(s, t.row, t.column)) t.rows = 1;
  if (row_reduced && t.rows < m) t.rows = even_step(m, t.rows);
}

// Values that a later phase reads from a buffer which an earlier one has overwritten, would change:
// such kernels are not looped.
bool overwrites_itself(const IrKernel& kernel, const Shape& s) {
  for (const IrInstr& i : kernel.body)
    if (i.op == OP_STORE)
      for (const IrInstr& j : kernel.body)
        if (j.op == OP_LOAD && s.accesses[i.access].buffer == s.accesses[j.access].buffer)
          return true;
  return false;
}

}  // namespace

bool any_contiguous(const Shape& s, int d) {
  for (const Access& a : s.accesses)
    if (a.stride[d] == 1) return true;
  return false;
}

void choose_axes(const Shape& s, Tiling& t) {
  t.column = contiguous_dim(s, -1);
  if (t.column < 0) return;
  // Rows of a few elements would leave vectors empty: fold them down columns of other rows.
  if (s.is_reduced(t.column) && s.size[t.column] <= kShortRow) {
    int wide = last_dim(s, t.column, false);
    if (wide >= 0 && s.size[wide] >= 64) t.column = wide;
  }
  t.row = last_dim(s, t.column, true);
  if (t.row < 0 && !s.is_reduced(t.column)) {
    // A transposed access wants tiles that are wide both ways.
    int other = contiguous_dim(s, t.column);
    if (other >= 0 && any_contiguous(s, other)) t.row = other;
  }
  if (t.row < 0) t.row = last_dim(s, t.column, false);
}

void choose_tiles(const IrKernel& kernel, const std::vector<int64_t>& values, Shape& s,
                  Tiling& t) {
  if (kernel.anchor < 0) {
    tile_plain(kernel, s, t);
  } else if (kernel.body[kernel.anchor].op == OP_MATMUL) {
    tile_product(kernel, values[kernel.body[kernel.anchor].constant], s, t);
  } else if (kernel.body[kernel.anchor].op == OP_CONVOLUTION) {
    tile_convolution(kernel, s, t);
  } else {
    tile_attention(kernel, s, t);
  }
  divide_tasks(kernel, s, t, kSharing);
}

void divide_tasks(const IrKernel& kernel, Shape& s, Tiling& t, const Sharing& sharing) {
  int64_t tasks = 1;
  bool scans = false;
  for (const IrInstr& i : kernel.body) scans |= i.op == OP_SCAN;
  bool whole = kernel.anchor >= 0 || overwrites_itself(kernel, s);
  for (int d = 0; d < s.dims; ++d) {
    t.points *= s.size[d];
    int64_t tile = d == t.row ? t.rows : d == t.column ? t.columns : 1;
    t.span[d] = s.is_reduced(d) ? std::max<int64_t>(s.size[d], 1) : tile;
    t.step[d] = 0;
    if (!s.is_reduced(d)) {
      tasks *= t.tasks(s, d);
      continue;
    }
    if (whole && (d == t.row || d == t.column)) {
      (d == t.row ? t.rows : t.columns) = t.span[d];
    } else if (s.size[d] != tile) {
      t.step[d] = tile;
    }
  }
  // Dimensions of tiles innermost.
  for (int d = 0; d < s.dims; ++d)
    if (t.step[d] && d != t.row && d != t.column) t.loops[t.loop_count++] = d;
  if (t.row >= 0 && t.step[t.row]) t.loops[t.loop_count++] = t.row;
  if (t.column >= 0 && t.step[t.column]) t.loops[t.loop_count++] = t.column;
  // Few tasks would leave threads idle while one folds a long dimension: let them share it. The
  // choice depends on the shape alone, so results do not depend on the number of threads.
  if (tasks < sharing.few_tasks && t.points >= sharing.points && t.loop_count && !scans && !whole) {
    int d = t.loops[0];
    for (int i = 1; i < t.loop_count; ++i)
      if (s.size[t.loops[i]] > s.size[d]) d = t.loops[i];
    int64_t parts = std::min(sharing.tasks / tasks, divide_up(s.size[d], t.step[d]));
    parts = std::min(parts, t.points / sharing.points_a_task);
    if (parts > 1) {
      t.span[d] = divide_up(divide_up(s.size[d], parts), t.step[d]) * t.step[d];
      t.split = d;
      // Tasks that share a reduction are numbered in a row.
      move_last(s, t, d);
    }
  }
}

}  // namespace vtc
