// What a thread has at hand while it runs the tasks of a kernel.
#pragma once

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "pages.h"
#include "sharing.h"
#include "table.h"
#include "words.h"

namespace vtc {

// Memory that only grows, aligned to cache lines.
class Scratch {
 public:
  char* get(size_t bytes) {
    if (bytes > size_) {
      size_t rounded = (bytes + 4095) / 4096 * 4096;
      memory_.reset(static_cast<char*>(std::aligned_alloc(64, rounded)));
      if (!memory_) throw std::bad_alloc();
      if (rounded >= kHugeBytes) want_huge_pages(memory_.get(), rounded);
      size_ = rounded;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> memory_;
  size_t size_ = 0;
};

// What all threads of a run share. Threads that come late read none of what it points to but the
// words of the program.
struct Run {
  ProgramView program;
  char* const* pointers;  // one a buffer, those of the arena filled in
  const double* params;
  char* arena;
  int64_t* times;  // of each kernel, or null
  Sharing* sharing;  // null for one thread
  std::atomic<bool> out_of_memory{false};
  std::atomic<uint64_t> fault{0};  // kernel + 1 (32 bits), buffer (16), term (8) of a bad index
};

struct State {
  Run* run;
  const Table* table;
  KernelView kernel;
  int row, column;
  int64_t task;
  int64_t start[kMaxDims];
  int64_t coordinate[kMaxDims];
  int64_t r, c;
  char* home[256];  // the registers' own memory
  char* reg[256];   // where they are now: a load may leave them in the buffer
  Scratch registers, spare, left, right, panels, attention, line;
  std::vector<Segment> segments, line_segments;
  // The operand that `panels` holds, so that tasks in a row pack it once.
  const char* packed_base;
  int64_t packed_columns;
  // The rows that `left` holds a copy of.
  const char* left_base;
  int64_t left_rows;

  int64_t rows(int kind) const { return kind & kRowBit ? r : 1; }
  int64_t columns(int kind) const { return kind & kColumnBit ? c : 1; }
  int64_t count(int kind) const { return rows(kind) * columns(kind); }

  void fail(int buffer, int term) {
    uint64_t none = 0;
    uint64_t here = static_cast<uint64_t>(kernel.number() + 1) << 32 |
                    static_cast<uint64_t>(buffer) << 8 | static_cast<uint64_t>(term);
    run->fault.compare_exchange_strong(none, here);
  }
};

// A tile of a buffer at the task's coordinates: its address, and the part of it that masks leave.
struct Place {
  Strided at;
  int64_t first;  // address of element (0, 0), in elements, without terms
  int64_t r0, r1, c0, c1;
  int buffer;

  bool empty() const { return r0 >= r1 || c0 >= c1; }
};

Place locate(const State& s, AccessView access, int kind);

// Is the tile one dense run of elements?
inline bool dense(const Strided& at, int64_t r, int64_t c) {
  return (c == 1 || at.column == 1) && (r == 1 || at.row == c);
}

// A term's value for element (i, j) of a tile with `c` columns, as its instruction sees it.
struct TermValue {
  const char* data;
  int type, kind;
  bool checked;
  int64_t stride, size;

  TermValue(const State& s, TermView term)
      : data(s.reg[term.reg()]),
        type(term.type()),
        kind(term.kind()),
        checked(term.checked()),
        stride(term.stride()),
        size(term.size()) {}

  // Adds stride * value to the address; false if the index is out of range.
  bool add(int64_t& address, int64_t i, int64_t j, int64_t c) const {
    int64_t k = kind & kColumnBit ? j : 0;
    if (kind & kRowBit) k += i * (kind & kColumnBit ? c : 1);
    int64_t value = type == T_I32 ? reinterpret_cast<const int32_t*>(data)[k]
                                  : reinterpret_cast<const int64_t*>(data)[k];
    if (checked) {
      if (value < 0) value += size;
      if (value < 0 || value >= size) return false;
    }
    address += stride * value;
    return true;
  }
};

// Does a load leave its tile where it is in the buffer, so that it touches no register's memory?
bool stays_in_buffer(const State& s, const Word* w);

// Instructions, each given its head word.
void load(State& s, const Word* w);
void store(State& s, const Word* w);
// Runs loads and the operator that folds them as one; returns what comes next, null if there is no
// such fold.
const Word* fold_loads(State& s, const Word* w);
void bind(State& s, const Word* w);
void constant(State& s, const Word* w);
void param(State& s, const Word* w);
void iota(State& s, const Word* w);
void move(State& s, const Word* w);
void cast(State& s, const Word* w);
// Return what comes next: scalar operators may run several at a time, a convolution some of those
// behind it. Null if there is no chain.
const Word* map(State& s, const Word* w);
const Word* chain(State& s, const Word* w);
void reduce(State& s, const Word* w);
void init(State& s, const Word* w);
void accumulate(State& s, const Word* w);
void finish(State& s, const Word* w);
void scan(State& s, const Word* w);
void spill(State& s, const Word* w);
void merge(State& s, const Word* w);
void matmul(State& s, const Word* w);
void attention(State& s, const Word* w);
const Word* convolution(State& s, const Word* w);

// Might register `reg` be read from instruction w on?
bool read_later(const State& s, const Word* w, int reg);

// The range of the contracted dimension [0, k) that an access's masks leave.
std::pair<int64_t, int64_t> contracted_part(const State& s, AccessView access, int64_t k);

// n lines of k elements of an operand of an anchor, `ld` apart, in the compute type of its memory
// type: rows of the left one (axis kRowBit) or columns of the right one (kColumnBit).
void gather_lines(State& s, AccessView access, int type, int axis, int64_t n, int64_t k, char* out,
                  int64_t ld);

}  // namespace vtc
