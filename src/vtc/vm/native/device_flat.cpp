// Operations on rows without gaps (cuda/flat.h, cuda/dense.h).
#include <limits>
#include <utility>

#include "../cuda/layout.h"
#include "device_emit.h"
#include "device_rows.h"

namespace vtc {
namespace {

constexpr int64_t kMostElements = std::numeric_limits<int32_t>::max() / 2;

// Does each row begin where the one before ends?
bool has_no_gaps(const Rows& r, const RowOperand& own) {
  int64_t pitch = int64_t{r.columns} * own.size;
  for (int n = kRowAxes - 1; n >= kRowAxes - r.axes; --n) {
    if (own.pitch[n] != pitch) return false;
    pitch *= r.sizes[n];
  }
  return true;
}

bool is_one_row(const Rows& r, const RowOperand& own) {
  for (int n = kRowAxes - r.axes; n < kRowAxes; ++n)
    if (own.pitch[n]) return false;
  return true;
}

struct FlatFunction {
  int form, op;
};
#define VTC_ENTRY(NAME, TYPE, FORM, OP) {FORM, OP},
constexpr FlatFunction kFunctions[kFlatOfType] = {VTC_FLAT_OF(VTC_ENTRY, , )};
#undef VTC_ENTRY

// What an operation, on one or two tensors, is as one of the first forms, else {FLAT_ANY, D_B_TO_A}.
FlatFunction simple_form(const Rows& r, bool two) {
  bool first = r.first != kNoOperator, last = r.last != kNoOperator;
  if (r.kind == ROWS_CHOOSE) return {FLAT_CHOOSE, D_B_TO_A};
  if (r.second == kNoOperator && !(first && last))
    return {FLAT_UNARY, first ? r.first : last ? r.last : int{D_B_TO_A}};
  if (!first && !last) return {FLAT_BINARY, D_B_TO_A};
  if (two && !last && r.second == D_MUL) return {FLAT_GATE, r.first};
  if (two && !first && r.second == D_ADD) return {FLAT_BIAS, r.last};
  return {FLAT_ANY, D_B_TO_A};
}

// The function for it among those of a type.
int function_of(const Rows& r, bool two) {
  FlatFunction wanted = simple_form(r, two);
  for (int n = 0; n < kFlatOfType; ++n)
    if (kFunctions[n].form == wanted.form && kFunctions[n].op == wanted.op) return n;
  return kFlatOfType - 1;  // FLAT_ANY
}

}  // namespace

void find_flat(RowsKernel& kernel) {
  Rows& r = kernel.form;
  if (r.kind != ROWS_MAP && r.kind != ROWS_CHOOSE) return;
  if (int64_t{r.rows} * r.columns > kMostElements || !has_no_gaps(r, r.out)) return;
  bool two = kernel.operands[ROW_Y].buffer >= 0;
  if (two && r.kind == ROWS_MAP && r.first == kNoOperator && !has_no_gaps(r, r.x)) {
    std::swap(r.x, r.y);
    std::swap(kernel.operands[ROW_X], kernel.operands[ROW_Y]);
    r.second = swapped(r.second);
  }
  if (!has_no_gaps(r, r.x) || r.x.type != r.out.type) return;
  if (two && (r.y.type != r.x.type || !(has_no_gaps(r, r.y) || is_one_row(r, r.y)))) return;
  Flat& f = kernel.flat;
  f.count = r.rows * r.columns;
  f.period = two && !has_no_gaps(r, r.y) ? r.columns : 0;
  f.number = r.number;
  f.first = r.first, f.second = r.second, f.third = r.third, f.last = r.last, f.compare = r.compare;
  kernel.flat_function = function_of(r, two);
}

void find_dense(RowsKernel& kernel) {
  const Rows& r = kernel.form;
  bool norm = r.kind == ROWS_NORM;
  if (!norm && r.kind != ROWS_SOFTMAX) return;
  auto fits = [&](int n, const RowOperand& own) {
    return kernel.operands[n].buffer < 0 || own.type == r.x.type;
  };
  auto rows = [&](int n, const RowOperand& own) {
    return kernel.operands[n].buffer < 0 || (fits(n, own) && has_no_gaps(r, own));
  };
  int rounds = r.x.type == T_BF16 ? D_BF16 : r.x.type == T_F16 ? D_F16 : kNoOperator;
  kernel.dense = rows(ROW_X, r.x) && rows(ROW_Y, r.y) && rows(ROW_OUT, r.out) && rows(ROW_SUM, r.sum) &&
                 fits(ROW_SCALE, r.scale) && fits(ROW_SHIFT, r.shift) &&
                 (!norm || r.first == kNoOperator || r.first == rounds);
}

}  // namespace vtc
