// What the interpreter asks of an instruction set: one table of inner loops.
#pragma once

#include <cstdint>

#include "isa.h"
#include "reciprocal.h"

namespace vtc {

// An address of a tile: element (i, j) lies at base + (i * row + j * column) * itemsize.
struct Strided {
  char* base;
  int64_t row;
  int64_t column;
};

// d[i] = f(a[i], b[i], c[i]) for i < n; bit k of `splat` says that operand k is one element.
using Map = void (*)(void* d, const void* a, const void* b, const void* c, int64_t n,
                     unsigned splat);

// What a step of a chain does with the value x that it gets. _OF, _FROM and _INTO: as the right operand.
enum ChainCode : uint8_t {
  CHAIN_NONE,
  CHAIN_ADD,
  CHAIN_SUB,
  CHAIN_SUB_FROM,
  CHAIN_MUL,
  CHAIN_DIV,
  CHAIN_DIV_INTO,
  CHAIN_MIN,
  CHAIN_MIN_OF,
  CHAIN_MAX,
  CHAIN_MAX_OF,
  CHAIN_SELECT,      // x where the mask is set, else the operand
  CHAIN_SELECT_NOT,  // the operand where the mask is set, else x
  CHAIN_TWICE,       // x + x
  CHAIN_SQUARE,
  CHAIN_NEG,
  CHAIN_ABS,
  CHAIN_SQRT,
  CHAIN_RSQRT,
  CHAIN_RECIPROCAL,
  CHAIN_EXP,
  CHAIN_TANH,
  CHAIN_ERF,
  CHAIN_SIGMOID,
};

struct ChainStep {
  ChainCode code;
  bool splat;            // the operand is one element
  const float* operand;  // null where there is none
  const uint8_t* mask;   // of a select
  float* store;          // where the step's value is kept, or null
};

// Takes n elements of a through the steps.
using Chain = void (*)(const ChainStep* steps, int count, const float* a, int64_t n);

// n elements from s to d, which advance by the given steps (elements).
using Copy = void (*)(void* d, int64_t dstep, const void* s, int64_t sstep, int64_t n);

// A tile of f32 whose rows are `ld` elements apart.
struct Line {
  const float* base;
  int64_t ld;
};

// d[i * ldd + j] = lines[0] op lines[1] op ..., from the left, for i < m, j < n.
using FoldLines = void (*)(float* d, int64_t ldd, const Line* lines, int count, int64_t m,
                           int64_t n);

// Fold a dense [r, c] tile: into one accumulator a row, a column, the whole, or each element.
using FoldTile = void (*)(void* acc, const void* a, int64_t r, int64_t c);

// The same with places: that of element (i, j) is first + i * row + j * column.
struct Places {
  int64_t first, row, column;
};
using ArgTile = void (*)(void* acc, int64_t* place, const void* a, int64_t r, int64_t c, Places at);

// d[i, j] = running fold along axis 0 (down) or 1 (across), going on from carry, which is updated.
using Scan = void (*)(void* d, void* carry, const void* a, int64_t r, int64_t c, int axis);

enum FoldShape { kAcross, kDown, kWhole, kEach };

// The left operand of a product: element (m, k) lies at base + m * lda + k, or at base + m * lda +
// offsets[k] where it is in pieces.
struct LeftRows {
  const float* base;
  int64_t lda;
  const int64_t* offsets;
};

// The right operand in panels of [k][panel] elements of memory type `type`, `apart` bytes from one
// to the next.
struct PanelRows {
  const char* base;
  int64_t apart;
  int type;
};

struct Gemm {
  int panel;  // columns of a packed panel
  // Packs columns [0, n) of B (k rows) to panels of [k][panel], padded with 0.
  void (*pack)(float* packed, const Strided& b, int type, int64_t k, int64_t n);
  // C[m, n] (dense f32, rows ldc apart) = or += A[m, k] * panels of B.
  void (*multiply)(float* c, int64_t ldc, const LeftRows& a, const PanelRows& b, int64_t m,
                   int64_t n, int64_t k, bool add);
  // Rows of A (dense f32) times B where each column of B is contiguous in k.
  void (*dots)(float* c, int64_t ldc, const float* a, int64_t lda, const Strided& b, int type,
               int64_t m, int64_t n, int64_t k);
  // The same two for bf16 rows of A and panels [k / 2][panel][2], or columns, of bf16; null where
  // the processor has no instruction for them.
  void (*multiply_pairs)(float* c, int64_t ldc, const uint16_t* a, int64_t lda, const PanelRows& b,
                         int64_t m, int64_t n, int64_t k, bool add);
  void (*dots_pairs)(float* c, int64_t ldc, const uint16_t* a, int64_t lda, const Strided& b,
                     int64_t m, int64_t n, int64_t k);
  // Rows of A times B where each row of B is contiguous in n.
  void (*axpy)(float* c, int64_t ldc, const float* a, int64_t lda, const Strided& b, int type,
               int64_t m, int64_t n, int64_t k);
};

// Elements a[0 .. k) of each of some rows that are `lda` apart, which meet rows of a panel that are
// `step` apart.
struct Segment {
  const float* a;
  int64_t lda, k;
  const float* b;
  int64_t step;
};

enum Activation : uint8_t {
  ACTIVATION_NONE,
  ACTIVATION_SILU,       // x * sigmoid(x)
  ACTIVATION_HARDSWISH,  // x * min(max(x + move, least), most) / by
};

// What a convolution does to its sums: min(max(sum * scale + shift, low), high) with one value a
// column of each, or null; then an activation, then the addition of another tile, or null.
struct Finish {
  const float* scale = nullptr;
  const float* shift = nullptr;
  float low = 0, high = 0;
  Activation activation = ACTIVATION_NONE;
  float move = 0, least = 0, most = 0, by = 1;
  Reciprocal inverse;  // of `by`
  const float* other = nullptr;
  int64_t ldo = 0;  // from a row of it to the next
};

// One line of outputs of a depthwise convolution: `outputs` points of `channels` channels each.
struct Stencil {
  float* d;
  int64_t ldd;               // between outputs
  int64_t outputs, channels;
  const float* const* lines; // input lines that the window reads, at input coordinate 0
  const float* const* weights;  // of each line: [taps][ldw]
  int64_t ldw;
  int count;                 // lines
  int taps;
  int64_t ldx;               // between input coordinates
  int64_t first;             // input coordinate of tap 0 of output 0; may lie outside
  int64_t step, dilation, extent;
  Finish finish;
};

struct Conv {
  int rows;   // of a block, at most
  int panel;  // columns of a packed panel
  // Columns [0, n) of a right operand, `column` elements apart, to panels of [k][panel] padded with
  // 0; row p is at element offset[p].
  void (*pack)(float* packed, const char* b, int type, int64_t column, const int64_t* offset,
               int64_t k, int64_t n);
  // C[rows, n] = sum of segments times panels, which lie `apart`.
  void (*block)(float* c, int64_t ldc, const Segment* segments, int64_t count, int rows,
                int64_t apart, int64_t n, const Finish& finish);
  void (*stencil)(const Stencil& s);
  // C[rows, n] = its activation and the addition of `other`, or null: what the above do of a Finish
  // as well.
  void (*complete)(float* c, int64_t ldc, int64_t rows, int64_t n, const Finish& finish,
                   const float* other);
};
// The same, and the sum of what comes out.
using ChainSum = double (*)(const ChainStep* steps, int count, const float* a, int64_t n);

struct Table {
  const char* name;
  Map map[kOps][kTypes];
  Chain chain;
  ChainSum chain_sum;
  Map cast[kTypes][kTypes];   // [compute type][memory type]
  Copy read[kTypes];          // memory type to its compute type
  Copy write[kTypes];         // and back
  void (*stream)(void* d, const void* s, int64_t bytes);  // around the caches
  // d[i * dstep + j] = s[i * sstep + j] for i < m, j < n; elements of 4 bytes.
  void (*copy_rows)(void* d, int64_t dstep, const void* s, int64_t sstep, int64_t m, int64_t n);
  // d[i * dstep + j] = s[j * sstep + i] for i < m, j < n; elements of 4 bytes.
  void (*turn)(void* d, int64_t dstep, const void* s, int64_t sstep, int64_t m, int64_t n);
  FoldLines add_lines, min_lines, max_lines;
  FoldTile fold[kFolds][kTypes][4];
  FoldTile merge[kFolds][kTypes];  // accumulators into accumulators, c of them
  ArgTile arg[2][kTypes][4];       // argmax, argmin
  Scan scan[kFolds][kTypes];
  Gemm gemm;
  Conv conv;
};

// The best table that this processor runs; VTC_ISA in the environment may ask for a lesser one.
const Table& table();
const Table* table_named(const char* name);

constexpr int kItemsize[kTypes] = {8, 4, 2, 2, 8, 4, 2, 1, 1, 1};
constexpr uint8_t kCompute[kTypes] = {T_F64, T_F32, T_F32, T_F32, T_I64,
                                      T_I32, T_I32, T_I32, T_I32, T_BOOL};
constexpr bool is_compute(int type) { return kCompute[type] == type; }

// The type in which a fold of values of a compute type is accumulated.
constexpr int accumulator_type(int fold, int type) {
  return type == T_F32 && (fold == FOLD_SUM || fold == FOLD_PROD) ? int{T_F64} : type;
}

// Does a fold find a place, beside a value?
constexpr bool has_places(int64_t fold) { return fold == FOLD_ARGMAX || fold == FOLD_ARGMIN; }

}  // namespace vtc
