// Accesses, and where they stand: each warp works out the cursors of all accesses of a task at once,
// one a lane. Where tasks are along one dimension that is done for the first task: for the others each
// thread adds its steps when it uses a cursor.
#pragma once

#include "scalars.cuh"

namespace vtc {

struct Access {
  Words words;
  int at;
  int dims;

  __device__ __forceinline__ int field(int shift) const { return words[at] >> shift & 0xff; }
  __device__ __forceinline__ int buffer() const { return words[at] & 0xffff; }
  __device__ __forceinline__ int type() const { return field(16); }
  __device__ __forceinline__ int terms() const { return field(24); }
  __device__ __forceinline__ int masks() const { return field(32); }
  __device__ __forceinline__ int kind() const { return field(40); }
  __device__ __forceinline__ bool vector() const { return field(48) & kMovesVectors; }
  __device__ __forceinline__ bool runs() const { return field(48) & kMovesRuns; }
  __device__ __forceinline__ int term(int n) const { return at + kAccessFixed + dims + 3 * n; }
  __device__ __forceinline__ int mask(int n) const { return term(terms()) + 3 * n; }
  __device__ __forceinline__ char* pointer() const {
    return reinterpret_cast<char*>(words[kBlockWords + 2 * buffer()]);
  }
  __device__ __forceinline__ int64_t extent() const {
    return static_cast<int64_t>(words[kBlockWords + 2 * buffer() + 1] & kExtentMask);
  }
  // Its number in the program.
  __device__ __forceinline__ Word number() const {
    return words[kBlockWords + 2 * buffer() + 1] >> kExtentBits;
  }
  // May 16 bytes be moved at once? What the lowering knows, and what the address is.
  __device__ __forceinline__ bool vectors() const {
    return vector() && !(words[1] >> (buffer() & 63) & 1);
  }
};

__device__ __forceinline__ Access access_of(const Tile& t, int n) {
  int table = t.dimension(t.dims());
  return Access{t.words, static_cast<int>(t.words[table + n]), t.dims()};
}

enum CursorFlag : uint32_t {
  kVectors = 1,  // 16 bytes may be moved at once
  kWhole = 2,    // and all slots of the tile are there, at distances of 32 bits
  kTerms = 4,    // runtime indices are still to be added
  kRuns = 8,     // groups lie side by side, wherever they begin
};

// What a whole tile is moved by: 16 bytes, read at once.
struct alignas(16) Place {
  char* address;        // of its element (0, 0)
  int32_t step;         // bytes to this block's next task
  int32_t pitch_flags;  // bytes between rows (24 bits), flags (8)

  __device__ __forceinline__ int flags() const { return pitch_flags & 0xff; }
  __device__ __forceinline__ int pitch() const { return pitch_flags >> 8; }
};

// A tile of a buffer: its element (0, 0), and which rows and columns are there (low half: first,
// high half: behind the last).
struct alignas(16) Cursor {
  Place place;
  uint32_t size, stage;  // stage: of a copy ahead, its byte in a stage
  uint32_t rows, columns;
  int64_t base;  // the address in elements of the buffer
  int64_t row, column;
  int64_t step;  // elements to this block's next task, where tasks are along one dimension

  __device__ __forceinline__ char* address() const { return place.address; }
  __device__ __forceinline__ int flags() const { return place.flags(); }
  __device__ __forceinline__ bool has_row(int i) const {
    return i >= static_cast<int>(rows & 0xffff) && i < static_cast<int>(rows >> 16);
  }
  __device__ __forceinline__ bool has_column(int j) const {
    return j >= static_cast<int>(columns & 0xffff) && j < static_cast<int>(columns >> 16);
  }
  __device__ __forceinline__ bool has_run(int j) const {
    return j >= static_cast<int>(columns & 0xffff) && j + kRun <= static_cast<int>(columns >> 16);
  }
  __device__ __forceinline__ bool has(int i, int j) const { return has_row(i) && has_column(j); }
};
static_assert(sizeof(Cursor) == kCursorBytes);

__device__ __forceinline__ Cursor& cursor_of_first(const Tile& t, int n) {
  return reinterpret_cast<Cursor*>(t.own + kCoordinateBytes)[n];
}

// The place of an access, of a tile that is whole; else its flags alone count. steps: tasks of this block
// from the one that the cursor is of.
__device__ __forceinline__ Place place_at(const Tile& t, int n, int steps) {
  Place p = cursor_of_first(t, n).place;
  p.address += static_cast<int64_t>(steps) * p.step;
  return p;
}

__device__ __forceinline__ Cursor cursor_at(const Tile& t, int n, int steps) {
  Cursor c = cursor_of_first(t, n);
  int64_t moved = steps * c.step;
  c.base += moved;
  c.place.address += moved * static_cast<int>(c.size);
  return c;
}

__device__ __forceinline__ int clamp_to(int64_t x) {
  return x < 0 ? 0 : x > 0xffff ? 0xffff : static_cast<int>(x);
}

// Are the rows of a tile, and its elements from task to task, at distances of 32 bits?
__device__ __forceinline__ bool near(int64_t bytes) { return bytes > -(1 << 21) && bytes < 1 << 21; }
__device__ __forceinline__ bool near_step(int64_t step) {
  return step > -(1 << 28) && step < 1 << 28;
}

// The cursor of an access at coordinates `at`; r and c are the extents there. What is written does
// not vary along an axis that its kind lacks: one element stands for all.
__device__ __forceinline__ Cursor point(const Tile& t, const Access& a, const int64_t* at, int r,
                                        int c) {
  int kind = a.kind(), some = kind & kWritesBit ? 1 : 0xffff;
  int r0 = 0, r1 = kind & 1 ? r : some, c0 = 0, c1 = kind & 2 ? c : some;
  int64_t base = a.words.number(a.at + 1);
  for (int d = 0; d < t.dims(); ++d) base += at[d] * a.words.number(a.at + kAccessFixed + d);
  for (int n = 0; n < a.masks(); ++n) {
    int m = a.mask(n), d = static_cast<int>(a.words[m]);
    int low = clamp_to(a.words.number(m + 1) - at[d]), high = clamp_to(a.words.number(m + 2) - at[d]);
    if (d == t.row() && kind & 1) {
      r0 = r0 > low ? r0 : low;
      r1 = r1 < high ? r1 : high;
    } else if (d == t.column() && kind & 2) {
      c0 = c0 > low ? c0 : low;
      c1 = c1 < high ? c1 : high;
    } else if (low > 0 || high <= 0) {
      r1 = 0;
    }
  }
  if (c0 >= c1) r1 = 0;
  int slots = t.slots();
  bool rows_full = r * slots == t.groups * kThreads && c == slots * kRun;
  bool whole = rows_full && r0 == 0 && c0 == 0 && r1 >= r && c1 >= c;
  bool vectors = a.vectors();
  int size = itemsize(a.type()), steady = t.steady();
  int64_t step = 0, row = a.words.number(a.at + 2);
  if (steady >= 0) step = t.blocks() * t.span(steady) * a.words.number(a.at + kAccessFixed + steady);
  whole = whole && vectors && !a.terms() && a.type() != T_I16 && near(row * size) && near_step(step);
  int flags = (vectors ? kVectors : 0) | (whole ? kWhole : 0) | (a.terms() ? kTerms : 0) |
              (a.runs() ? kRuns : 0);
  int pitch = whole ? static_cast<int>(row) * size : 0;
  Place place{a.pointer() + base * size, whole ? static_cast<int>(step) * size : 0,
              pitch * 256 | flags};
  return Cursor{place,
                static_cast<uint32_t>(size),
                0,
                static_cast<uint32_t>(r0) | static_cast<uint32_t>(r1) << 16,
                static_cast<uint32_t>(c0) | static_cast<uint32_t>(c1) << 16,
                base,
                row,
                a.words.number(a.at + 3),
                step};
}

__device__ __forceinline__ void point_one(const Tile& t, int n, const Access& a, int set) {
  const int64_t* at = t.coordinate(set);
  int down = t.row(), across = t.column(), r = t.r, c = t.c;
  if (set) {
    r = down == kNoDim ? 1 : static_cast<int>(t.extent(down, at[down]));
    c = across == kNoDim ? 1 : static_cast<int>(t.extent(across, at[across]));
  }
  Cursor& to = cursor_of_first(t, n);
  to = point(t, a, at, r, c);
  if (set) to.stage = static_cast<uint32_t>(t.words[t.dimension(t.dims()) + n] >> 32);
}

// All cursors of the tile at the coordinates of set 0.
VTC_OUT_OF_LINE __device__ void point_all(const Tile t) {
  int lane = t.thread % 32;
  __syncwarp();
#pragma unroll 1
  for (int n = lane; n < t.accesses(); n += 32) point_one(t, n, access_of(t, n), 0);
  __syncwarp();
}

// Coordinates of a task, and of `ahead` if there is one, with the cursors there. The extents of the tile.
struct Extents {
  int r, c;
};
VTC_OUT_OF_LINE __device__ Extents point_task(Tile t, int task, int ahead) {
  int lane = t.thread % 32;
  bool copies = ahead < t.tasks() && t.copies();
  __syncwarp();
  if (lane < 2) t.locate(lane ? ahead : task, t.coordinate(lane));
  __syncwarp();
  const int64_t* at = t.coordinate(0);
  int down = t.row(), across = t.column();
  t.steps = 0;
  t.r = t.c = 1;
  if (down != kNoDim) t.set_extent(down, t.extent(down, at[down]));
  if (across != kNoDim) t.set_extent(across, t.extent(across, at[across]));
  int own = t.accesses(), all = own + (copies ? t.copies() : 0);
  int table = t.dimension(t.dims());
#pragma unroll 1
  for (int n = lane; n < all; n += 32) {
    int which = n < own ? n : static_cast<int>(t.words[table + n] & 0xffffffff);
    point_one(t, n, access_of(t, which), n >= own);
  }
  __syncwarp();
  return {t.r, t.c};
}

// The tile of a task, and the cursors of the copies for task `ahead`, if there is one.
__device__ __forceinline__ void take_task(Tile& t, int task, int ahead) {
  t.steps = 0;
  Extents own = point_task(t, task, ahead);
  t.r = own.r;
  t.c = own.c;
}

__device__ __forceinline__ void fail(const Tile& t, const Access& a, int term) {
  Word here = (t.words[2] >> 48) + 1;
  here = here << 32 | a.number() << 8 | static_cast<Word>(term);
  atomicCAS(reinterpret_cast<unsigned long long*>(t.words[0]), 0ull, here);
}

// Adds the runtime terms of element e to an address. False, and a fault, for an index out of range.
__device__ __forceinline__ bool add_terms(const Tile& t, const Access& a, int e, int64_t& address) {
  int terms = a.terms();
  for (int n = 0; n < terms; ++n) {
    int w = a.term(n), location = static_cast<int>(a.words[w] & 0xffff);
    bool wide_type = (a.words[w] >> 16 & 0xff) == T_I64;
    int64_t value = wide_type ? Source<int64_t>{location, 0}.at(t, e)
                              : Source<int32_t>{location, 0}.at(t, e);
    if (a.words[w] >> 24 & 0xff) {
      int64_t size = a.words.number(w + 2);
      if (value < 0) value += size;
      if (value < 0 || value >= size) {
        fail(t, a, n);
        return false;
      }
    }
    address += a.words.number(w + 1) * value;
  }
  return true;
}

// Is an address that terms have produced inside of the buffer? If not, that is a fault.
__device__ __forceinline__ bool inside(const Tile& t, const Access& a, int64_t address) {
  if (!a.terms() || (address >= 0 && address < a.extent())) return true;
  fail(t, a, a.terms() - 1);
  return false;
}

}  // namespace vtc
