// Operations on rows for which rows make no difference (cuda/flat.h).
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

int form_of(const Rows& r) {
  if (r.kind == ROWS_CHOOSE) return FLAT_CHOOSE;
  bool first = r.first != kNoOperator, last = r.last != kNoOperator;
  if (r.second == kNoOperator) return first && last ? FLAT_ANY : FLAT_UNARY;
  if (!first && !last) return FLAT_BINARY;
  if (first && !last && r.second == D_MUL) return FLAT_GATE;
  if (!first && r.second == D_ADD) return FLAT_BIAS;
  return FLAT_ANY;
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
  kernel.flat_form = form_of(r);
  if (kernel.flat_form == FLAT_UNARY && r.first == kNoOperator) f.first = r.last;
}

}  // namespace vtc
