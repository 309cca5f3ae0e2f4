// How operations on rows are launched.
#include <algorithm>
#include <bit>

#include "../cuda/layout.h"
#include "device_rows.h"

namespace vtc {
namespace {

constexpr int64_t kManyBlocks = 264;  // two a processor of a large device
constexpr int64_t kLeastTeam = 4;      // threads that have a row
// Elements from which on, or up to which, kernels are the fastest, as measured on one H200.
constexpr int64_t kFewElements = 1 << 18;  // about the threads that it has at once
constexpr int64_t kManyElements = 1 << 20;
constexpr int64_t kHuge = 1 << 25;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The number of a type among those that functions are for.
int type_number(int type) { return type == T_BF16 ? 0 : type == T_F16 ? 1 : 2; }

// Threads of a block where `all` are wanted: fewer where they would not fill the device.
int block_of(int64_t all) {
  int threads = 64;
  while (threads < kMostRowThreads && all >= 2 * threads * kManyBlocks) threads *= 2;
  return threads;
}

// Bytes from the last multiple of 16 to where rows of an operand begin, and by how many more each next
// row along an axis does.
std::array<int64_t, kRowAxes + 1> beginnings(const RowOperand& own) {
  std::array<int64_t, kRowAxes + 1> found{static_cast<int64_t>(own.address % 16)};
  for (int n = 0; n < kRowAxes; ++n) found[n + 1] = ((own.pitch[n] % 16) + 16) % 16;
  return found;
}

// A norm or a softmax by the functions for groups of elements of one type. False if it cannot be.
bool launch_groups(RowsLaunch& own, int processors) {
  Rows& r = own.rows;
  auto begins = beginnings(r.x);
  for (const RowOperand* other : {&r.y, &r.out, &r.sum})
    if (other->address && beginnings(*other) != begins) return false;
  bool any = r.columns % 8 || begins != decltype(begins){};
  for (const RowOperand* vector : {&r.scale, &r.shift}) {
    if (!vector->address) continue;
    if (vector->type != r.x.type) return false;
    any |= vector->address % 16 != 0;
  }
  if (any && r.x.size != 2) return false;
  int64_t groups = divide_up(r.columns + (any ? 7 : 0), 8);
  // A group a thread, where there are few: what a thread does one after another is the time then.
  bool few = groups <= kMostTeamThreads && r.rows * groups <= int64_t{processors} * 1024;
  int each = few ? 1 : 2;
  int64_t lanes = std::max(divide_up(groups, each), kLeastTeam);
  if (lanes > kMostTeamThreads) return false;
  lanes = lanes <= 32 ? std::bit_ceil(static_cast<uint64_t>(lanes)) : divide_up(lanes, 32) * 32;
  r.lanes = static_cast<int>(lanes);
  r.threads = lanes > 32 ? r.lanes : block_of(r.rows * lanes);
  bool norm = r.kind == ROWS_NORM;
  int type = 4 * type_number(r.x.type);
  own.function = (norm ? ROWS_FUNCTION_NORM_GROUPS : ROWS_FUNCTION_SOFTMAX_GROUPS) + type +
                 2 * any + each - 1;
  own.blocks = divide_up(r.rows, r.threads / r.lanes);
  // A block for each row, whose loads are on their way while others compute; but where the mean is to be
  // known before the squares, blocks that load their next row while they wait.
  if (r.centered) {
    // Blocks of kMostRowThreads, by registers.
    int full = few ? (any ? 3 : 4) : any || r.x.size == 4 ? 2 : 3;
    int resident = std::clamp(full * kMostRowThreads / r.threads, 1, 32);
    own.blocks = std::min(own.blocks, int64_t{processors} * resident);
  }
  return true;
}

// Which function of VTC_DENSE_OF is the fastest for rows without gaps, or -1 where those of launch_groups
// are, which load 16 bytes at once wherever rows begin, and the next row while one is computed.
int dense_form(const Rows& r, bool grouped) {
  int64_t all = int64_t{r.rows} * r.columns, columns = r.columns;
  bool softmax = r.kind == ROWS_SOFTMAX, wide = columns > kMostTeamThreads * 8;
  if (grouped) return softmax || all < kHuge ? DENSE_GROUPS : -1;
  if (wide) return -1;
  if (r.x.size == 2) {
    if (!r.centered && all > kManyElements && columns > 1024) return -1;
    if (softmax && all > kFewElements && columns > 256) return -1;
  }
  bool few = all <= kFewElements / 2 && columns <= kMostTeamThreads * 4;
  bool between = columns > 256 && columns <= 1024 && all < 8 * kFewElements;
  return few || between || columns <= 128 ? DENSE_FOUR : DENSE_EIGHT;
}

// A norm or a softmax of rows without gaps. False if it cannot be, or others are faster.
bool launch_dense(const RowsKernel& kernel, RowsLaunch& own) {
  if (!kernel.dense) return false;
  const Rows& r = own.rows;
  bool grouped = r.columns % 8 == 0;
  for (const RowOperand* o : {&r.x, &r.y, &r.scale, &r.shift, &r.out, &r.sum})
    grouped &= o->address % 16 == 0;
  int form = dense_form(r, grouped);
  if (form < 0) return false;
  int64_t lanes = std::max(divide_up(r.columns, kDenseElements[form]), kLeastTeam);
  lanes = lanes <= 32 ? std::bit_ceil(static_cast<uint64_t>(lanes)) : divide_up(lanes, 32) * 32;
  bool norm = r.kind == ROWS_NORM;
  own.dense = {.x = r.x.address,
               .y = r.y.address,
               .scale = r.scale.address,
               .shift = r.shift.address,
               .out = r.out.address,
               .sum = r.sum.address,
               .rows = r.rows,
               .columns = r.columns,
               .threads = static_cast<int>(lanes > 32 ? lanes : block_of(r.rows * lanes)),
               .lanes = static_cast<int>(lanes),
               .centered = r.centered,
               .rounded = r.first != kNoOperator,
               .number = r.number,
               .share = r.share};
  own.function = (norm ? ROWS_FUNCTION_DENSE_NORM : ROWS_FUNCTION_DENSE_SOFTMAX) +
                 type_number(r.x.type) * kDenseOfType + form;
  own.blocks = divide_up(r.rows, own.dense.threads / lanes);
  return true;
}

// A pointwise kernel by its flat form. False if it cannot be.
bool launch_flat(const RowsKernel& kernel, RowsLaunch& own) {
  const Rows& r = own.rows;
  if (kernel.flat_function < 0) return false;
  // Where rows are aligned and there is much to do, 16 elements a thread cost fewer looks at operators.
  bool any = kernel.flat_function == kFlatOfType - 1;
  if (any && r.aligned && kernel.flat.count >= kManyElements) return false;
  Flat& f = own.flat = kernel.flat;
  f.x = r.x.address, f.y = r.y.address, f.out = r.out.address;
  int type = type_number(r.x.type);
  if (kernel.flat_function < kSingleOfType && f.count <= kFewElements) {
    f.threads = block_of(f.count);
    own.function = ROWS_FUNCTION_SINGLE + type * kSingleOfType + kernel.flat_function;
    own.blocks = divide_up(f.count, f.threads);
    return true;
  }
  uint64_t beginning = r.x.address % 16;
  if (r.out.address % 16 != beginning) return false;
  if (r.y.address && !f.period && r.y.address % 16 != beginning) return false;
  f.head = std::min(static_cast<int>((16 - beginning) % 16) / r.x.size, f.count);
  f.groups = (f.count - f.head) / 8;
  f.threads = block_of(f.groups);
  own.function = ROWS_FUNCTION_FLAT + type * kFlatOfType + kernel.flat_function;
  own.blocks = divide_up(f.groups, f.threads) + (f.groups * 8 < f.count);
  return true;
}

}  // namespace

void choose_blocks(Rows& own) {
  int64_t slots = (own.columns + kRowElements - 1) / kRowElements;
  int64_t all = slots * own.rows;
  int threads = block_of(all);
  own.parts = 1;
  bool together = own.kind == ROWS_NORM || own.kind == ROWS_SOFTMAX;
  if (own.kind == ROWS_ROTARY) {
    own.lanes = own.columns / (2 * kRun);
  } else if (together) {
    own.lanes = slots <= 32 ? 32 : static_cast<int>((slots + 31) / 32 * 32);
    if (own.lanes > 32) threads = own.lanes;
  } else if (own.rows == 1) {
    own.lanes = threads;
  } else if (slots > kMostRowThreads) {
    own.lanes = threads = kMostRowThreads;
  } else {
    own.lanes = static_cast<int>(slots);
    threads = std::max(threads, (own.lanes + 31) / 32 * 32);
  }
  own.threads = threads;
  if (!together && own.kind != ROWS_ROTARY)
    own.parts = static_cast<int>((slots + own.lanes - 1) / own.lanes);
}

RowsLaunch launch_of(const RowsKernel& kernel, std::span<const uintptr_t> pointers, int processors) {
  RowsLaunch own{.rows = kernel.form, .flat = {}, .dense = {}};
  Rows& r = own.rows;
  RowOperand* all[] = {&r.x, &r.y, &r.scale, &r.shift, &r.out, &r.sum};
  bool aligned = true, halves = true, map = r.kind == ROWS_MAP || r.kind == ROWS_CHOOSE;
  for (int n = 0; n < kRowOperands; ++n) {
    const RowsKernel::Operand& o = kernel.operands[n];
    if (o.buffer < 0) continue;
    all[n]->address = pointers[o.buffer] + o.offset;
    all[n]->end = pointers[o.buffer] + o.extent;
    if (n == ROW_SUM && r.kind == ROWS_ROTARY) continue;  // an element a row
    aligned &= all[n]->address % 16 == 0;
    for (int64_t pitch : all[n]->pitch) aligned &= pitch % 16 == 0;
    halves &= all[n]->size == 2;
  }
  if (!map) aligned &= r.columns % 8 == 0;
  r.aligned = aligned;
  if (map && launch_flat(kernel, own)) return own;
  bool folds = r.kind == ROWS_NORM || r.kind == ROWS_SOFTMAX;
  if (folds && launch_dense(kernel, own)) return own;
  if (folds && launch_groups(own, processors)) return own;
  int64_t teams = r.threads / r.lanes;
  own.blocks = r.parts > 1 ? int64_t{r.rows} * r.parts : (r.rows + teams - 1) / teams;
  if (r.kind == ROWS_ROTARY) {
    own.function = ROWS_FUNCTION_ROTARY;
    if (!aligned) own.blocks = 0;
  } else if (map) {
    bool alone = r.kind == ROWS_MAP && r.second == kNoOperator && r.columns % 8 == 0;
    own.function = ROWS_FUNCTION_MAP + (alone && halves && aligned);
  } else {
    own.function = r.kind == ROWS_NORM ? ROWS_FUNCTION_NORM : ROWS_FUNCTION_SOFTMAX;
    if (r.centered)
      own.blocks = std::min(own.blocks, int64_t{processors} *
                                            std::clamp(2 * kMostRowThreads / r.threads, 1, 32));
  }
  return own;
}

}  // namespace vtc
