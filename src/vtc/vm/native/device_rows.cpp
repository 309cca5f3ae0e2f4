#include "device_rows.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>

#include "device_emit.h"

namespace vtc {
namespace {

constexpr int64_t kMostNormColumns = kMostTeamThreads * kRowElements;
constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / 2;  // rows, columns, threads

bool is_float(int type) { return type == T_BF16 || type == T_F16 || type == T_F32; }

// Matches the value that a kernel stores, backward: each value is the instruction that computes it.
class RowsMatcher {
 public:
  RowsMatcher(const ProgramView& program, const KernelView& kernel, const DeviceCode& read)
      : program_(program), kernel_(kernel), code_(read.code), read_(read) {}

  RowsKernel match() {
    if (!find_axes() || !find_stores()) return {};
    form().columns = static_cast<int>(kernel_.size(kernel_.column()));
    bool norm_fits = form().columns <= kMostNormColumns;
    found_.found = (norm_fits && (as_norm() || as_softmax())) || as_map() || as_choice() ||
                   as_rotary();
    if (!found_.found) return {};
    choose_blocks(form());
    find_flat(found_);
    find_dense(found_);
    found_.found = int64_t{form().rows} * form().lanes * form().parts <= kMost;
    return found_;
  }

 private:
  Rows& form() { return found_.form; }

  // The columns, and the axes of rows.
  bool find_axes() {
    int column = kernel_.column();
    if (column == kNoDim || read_.looped & ~(1u << column) || read_.places) return false;
    int64_t rows = 1;
    for (int d = 0; d < kernel_.dims(); ++d) {
      int64_t size = kernel_.size(d);
      if (size > kMost || size < 1) return false;
      if (d == column || size == 1) continue;
      rows *= size;
      if (axes_.size() == kRowAxes || rows > kMost) return false;
      axes_.push_back(d);
    }
    Rows& own = form();
    own.rows = static_cast<int>(rows);
    own.axes = static_cast<int>(axes_.size());
    std::fill(own.sizes, own.sizes + kRowAxes, 1);
    for (int n = 0; n < own.axes; ++n)
      own.sizes[kRowAxes - own.axes + n] = static_cast<int>(kernel_.size(axes_[n]));
    return true;
  }

  // Nothing but stores, and what is computed on the way to them.
  bool find_stores() {
    for (int n = 0; n < static_cast<int>(code_.size()); ++n) {
      const DeviceInstruction& r = code_[n];
      switch (r.op) {
        case OP_STORE:
          if (!r.in_body || stores_.size() == 2) return false;
          stores_.push_back(n);
          break;
        case OP_LOAD: case OP_CONST: case OP_DONE: case OP_REDUCE: case FUSED_SQUARES:
        case OP_CAST: case OP_IOTA: case OP_INIT: case OP_ACCUM: case OP_FINISH: case OP_LOOP:
        case OP_ENDLOOP: case OP_MOVE:
        case FUSED_NOTHING: case FUSED_SILU: case FUSED_GELU: case FUSED_GELU_TANH:
          break;
        default:
          if (r.op < kFirstScalar) return false;
      }
    }
    return !stores_.empty();
  }

  // The instruction that computes a register as it is read at `at`, behind moves. Loops are over the
  // columns: a pass reads what it has itself computed, or what is the same in all passes.
  int producer(int at, int reg) const {
    if (reg < 0) return -1;
    for (int n = at - 1; n >= 0; --n)
      if (code_[n].dst == reg) return code_[n].op == OP_MOVE ? producer(n, code_[n].a) : n;
    return -1;
  }

  // Do two instructions compute the same value? What is read in several passes is loaded in each.
  bool same(int n, int m) const {
    if (n == m) return n >= 0;
    if (n < 0 || m < 0) return false;
    const DeviceInstruction &p = code_[n], &q = code_[m];
    if (p.op != q.op || p.type != q.type || p.type2 != q.type2) return false;
    if (p.op == OP_CONST) return p.w[1] == q.w[1];
    if (p.op == OP_LOAD) {
      AccessView one{p.access}, other{q.access};
      return p.a < 0 && q.a < 0 && one.words() == other.words() &&
             std::equal(one.w, one.w + one.words(), other.w);
    }
    bool scalar = p.op >= kFirstScalar && p.op < FUSED_NOTHING;
    if ((!scalar && p.op != OP_CAST) || p.c >= 0) return false;
    return same(a_of(n), a_of(m)) && (p.b < 0 || same(b_of(n), b_of(m)));
  }
  int a_of(int n) const { return producer(n, code_[n].a); }
  int b_of(int n) const { return producer(n, code_[n].b); }
  int c_of(int n) const { return producer(n, code_[n].c); }
  bool is(int n, int op) const { return n >= 0 && code_[n].op == op && code_[n].type == T_F32; }

  std::optional<float> number(int n) const {
    if (!is(n, OP_CONST)) return {};
    return static_cast<float>(std::bit_cast<double>(code_[n].w[1]));
  }

  // A load or store of rows of floats side by side, as operand `which`; or of an element a row.
  bool access(int n, RowsOperand which, int64_t side = 1) {
    const DeviceInstruction& r = code_[n];
    if (r.type != T_F32 || (r.op == OP_LOAD && r.a >= 0)) return false;
    AccessView view{r.access};
    int type = program_.type(view.buffer()), size = kItemsize[type];
    if (!view.plain() || !is_float(type)) return false;
    if (form().columns > 1 && view.stride(kernel_.column()) != side) return false;
    RowOperand* all[] = {&form().x, &form().y, &form().scale, &form().shift, &form().out, &form().sum};
    RowOperand& own = *all[which] = {0, 0, {}, type, size};
    bool vector = which == ROW_SCALE || (which == ROW_SHIFT && form().kind != ROWS_ROTARY);
    for (int axis = 0; axis < form().axes; ++axis) {
      int64_t pitch = view.stride(axes_[axis]) * size;
      if (vector ? pitch != 0 : r.op == OP_STORE && !pitch) return false;
      own.pitch[kRowAxes - form().axes + axis] = pitch;
    }
    found_.operands[which] = {view.buffer(), view.offset() * size,
                              program_.extent(view.buffer()) * size};
    return true;
  }
  bool load(int n, RowsOperand which) { return is(n, OP_LOAD) && access(n, which); }

  bool reset() {
    Rows kept = form();
    found_ = {};
    form().rows = kept.rows, form().columns = kept.columns, form().axes = kept.axes;
    std::copy(kept.sizes, kept.sizes + kRowAxes, form().sizes);
    form().first = form().second = form().third = form().last = form().compare = kNoOperator;
    return false;
  }

  // Calls f(x, other) with the operands of a commutative instruction both ways, until it is true.
  template <class F>
  bool either(int n, F f) {
    int a = a_of(n), b = b_of(n);
    return f(a, b) || (a != b && f(b, a));
  }

  // The operand of a fold along the columns alone; -1 if instruction n is none.
  int folded(int n, int fold) const {
    if (is(n, OP_FINISH)) {
      int accumulated = producer(n, code_[n].a);
      if (accumulated < 0 || code_[accumulated].op != OP_ACCUM) return -1;
      n = accumulated;
    } else if (!is(n, OP_REDUCE)) {
      return -1;
    }
    if (static_cast<int>(code_[n].w[1]) != fold || !read_.folds_columns(code_[n])) return -1;
    Word head = code_[n].head();
    return (kind_a_of(head) & ~kind_dst_of(head)) == kColumnBit ? a_of(n) : -1;
  }

  // The value whose squares are folded, likewise.
  int squared(int n) const {
    if (is(n, FUSED_SQUARES)) {
      Word head = code_[n].head();
      return (kind_a_of(head) & ~kind_dst_of(head)) == kColumnBit ? a_of(n) : -1;
    }
    int square = folded(n, FOLD_SUM);
    return is(square, OP_MUL) && same(a_of(square), b_of(square)) ? a_of(square) : -1;
  }

  // The sum that a mean divides by a number.
  int averaged(int n, float& count) const {
    std::optional<float> by = is(n, OP_DIV) ? number(b_of(n)) : std::nullopt;
    if (by) count = *by;
    return by ? a_of(n) : -1;
  }

  bool as_norm() {
    for (size_t n = 0; n < stores_.size(); ++n) {
      reset();
      int out = stores_[n], other = stores_.size() == 2 ? stores_[1 - n] : -1;
      if (shifted(a_of(out)) && access(out, ROW_OUT) &&
          (other < 0 || (same(a_of(other), z_) && access(other, ROW_SUM))) && same_types()) {
        form().kind = ROWS_NORM;
        form().share = 1.0f / count_;
        return true;
      }
    }
    return reset();
  }
  bool shifted(int n) {
    if (scaled(n)) return true;
    return is(n, OP_ADD) && either(n, [&](int x, int v) { return load(v, ROW_SHIFT) && scaled(x); });
  }
  bool scaled(int n) {
    if (normed(n)) return true;
    return is(n, OP_MUL) &&
           either(n, [&](int x, int v) { return load(v, ROW_SCALE) && (normed(x) || rounded(x)); });
  }
  bool rounded(int n) {
    if (!is(n, OP_CAST) || unary(n) < 0) return false;
    if (!normed(a_of(n))) return false;
    form().first = unary(n);
    return true;
  }
  bool normed(int n) {
    return is(n, OP_MUL) && either(n, [&](int c, int root) { return is_root(root, c) && centred(c); });
  }
  // 1 / sqrt(mean(c * c) + number)?
  bool is_root(int n, int c) {
    if (!is(n, OP_RSQRT)) return false;
    int sum = a_of(n);
    return is(sum, OP_ADD) && either(sum, [&](int mean, int eps) {
             std::optional<float> x = number(eps);
             if (!x || !same(squared(averaged(mean, count_)), c)) return false;
             form().number = *x;
             return true;
           });
  }
  bool centred(int n) {
    float count = 0;
    if (is(n, OP_SUB)) {
      int z = a_of(n);
      if (same(folded(averaged(b_of(n), count), FOLD_SUM), z) && count == count_ && summed(z)) {
        form().centered = 1;
        return true;
      }
    }
    return summed(n);
  }
  bool summed(int n) {
    z_ = n;
    if (load(n, ROW_X)) return true;
    return is(n, OP_ADD) && load(a_of(n), ROW_X) && load(b_of(n), ROW_Y);
  }

  bool as_softmax() {
    reset();
    if (stores_.size() != 1) return false;
    int out = stores_[0], v = a_of(out), e = -1, sum = -1;
    if (is(v, OP_DIV)) {
      e = a_of(v), sum = b_of(v);
    } else if (is(v, OP_MUL)) {
      bool second = is(b_of(v), OP_RECIPROCAL);
      int part = second ? b_of(v) : a_of(v);
      if (!is(part, OP_RECIPROCAL)) return false;
      e = second ? a_of(v) : b_of(v), sum = a_of(part);
    }
    if (!is(e, OP_EXP) || !same(folded(sum, FOLD_SUM), e)) return false;
    int moved = a_of(e);
    if (!is(moved, OP_SUB)) return false;
    int x = a_of(moved);
    if (!same(folded(b_of(moved), FOLD_MAX), x) || !load(x, ROW_X) || !access(out, ROW_OUT) ||
        !same_types())
      return reset();
    form().kind = ROWS_SOFTMAX;
    return true;
  }

  // Of rows that are loaded ahead, in groups of one size.
  bool same_types() {
    bool same = form().x.type == form().out.type;
    for (int n : {ROW_Y, ROW_SUM})
      if (found_.operands[n].buffer >= 0)
        same &= (n == ROW_Y ? form().y : form().sum).type == form().x.type;
    return same;
  }

  // The operator on one value, or -1.
  int unary(int n) const {
    if (n < 0 || code_[n].type != T_F32 || code_[n].b >= 0 || code_[n].a < 0) return -1;
    switch (code_[n].op) {
      case FUSED_SILU: return D_SILU;
      case FUSED_GELU: return D_GELU;
      case FUSED_GELU_TANH: return D_GELU_TANH;
      case OP_CAST:
        return code_[n].type2 == T_BF16 ? D_BF16 : code_[n].type2 == T_F16 ? D_F16 : -1;
      case OP_NOT: case OP_ISNAN: case OP_LOAD: case OP_REDUCE: case FUSED_SQUARES:
      case OP_FINISH: case OP_ACCUM: return -1;
      default: {
        int op = device_operator(code_[n].op);
        return op >= D_NEG && op < D_ADD ? op : -1;
      }
    }
  }
  // The operator on two values whose result is a number, or -1.
  int binary(int n) const {
    if (n < 0 || code_[n].type != T_F32 || code_[n].b < 0 || code_[n].c >= 0) return -1;
    int op = device_operator(code_[n].op);
    return op >= D_ADD && op <= D_MAXIMUM ? op : -1;
  }

  bool as_map() {
    reset();
    if (stores_.size() != 1) return false;
    int out = stores_[0], v = a_of(out);
    form().kind = ROWS_MAP;
    if (!joined(v)) {
      form().last = unary(v);
      if (form().last < 0 || !joined(a_of(v))) return reset();
    }
    return access(out, ROW_OUT) || reset();
  }
  bool joined(int n) {
    if (first(n)) return true;
    int op = binary(n);
    if (op < 0) return false;
    int a = a_of(n), b = b_of(n);
    for (bool turned : {false, true}) {
      if (turned) std::swap(a, b);
      form().second = turned ? swapped(op) : op;
      if (std::optional<float> x = number(b)) {
        form().number = *x;
        if (first(a)) return true;
      } else if (load(b, ROW_Y) && first(a)) {
        return true;
      }
      found_.operands[ROW_Y] = {};
    }
    form().second = kNoOperator;
    return false;
  }
  bool first(int n) {
    if (load(n, ROW_X)) return true;
    int op = unary(n);
    if (op < 0 || read_.looped || !load(a_of(n), ROW_X)) return false;
    form().first = op;
    return true;
  }

  bool as_choice() {
    reset();
    if (stores_.size() != 1) return false;
    int out = stores_[0], v = a_of(out);
    if (v < 0 || code_[v].op != OP_SELECT || kItemsize[code_[v].type] != 4) return false;
    int condition = a_of(v);
    if (condition < 0 || code_[condition].type != T_F32) return false;
    int op = device_operator(code_[condition].op), x = a_of(condition);
    std::optional<float> bound = number(b_of(condition));
    if (op < D_EQ || op > D_GE || !bound || !load(x, ROW_X)) return reset();
    form().compare = op, form().number = *bound;
    form().kind = ROWS_CHOOSE;
    int y = -1;
    return (side(b_of(v), x, y, form().second) && side(c_of(v), x, y, form().third) && y >= 0 &&
            load(y, ROW_Y) && access(out, ROW_OUT)) ||
           reset();
  }
  // What is chosen: x, y, or an operator on both.
  bool side(int n, int x, int& y, int& op) {
    if (n == x) return true;
    if (is(n, OP_LOAD) && (y < 0 || y == n)) {
      y = n, op = D_B_TO_A;
      return true;
    }
    op = binary(n);
    if (op < 0 || op == D_DIV) return false;
    int a = a_of(n), b = b_of(n);
    if (b == x) std::swap(a, b), op = swapped(op);
    if (a != x || b == x || !is(b, OP_LOAD) || (y >= 0 && y != b)) return false;
    y = b;
    return true;
  }

  // x * cos + (the halves of x turned round) * sin, as embeddings of positions are applied.
  bool as_rotary() {
    reset();
    form().kind = ROWS_ROTARY;
    if (stores_.size() != 1 || form().columns % (2 * kRun) || read_.looped) return reset();
    int out = stores_[0], v = a_of(out);
    half_ = form().columns / 2;
    bool matched = is(v, OP_ADD) && either(v, [&](int straight, int turned) {
      return is(straight, OP_MUL) && is(turned, OP_MUL) && either(turned, [&](int q, int sine) {
               return q >= 0 && load(sine, ROW_SHIFT) &&
                      either(straight, [&](int p, int cosine) {
                        return load(cosine, ROW_Y) && of_head(p) && is_turned(q, p);
                      });
             });
    });
    int64_t lanes = half_ / kRun;
    if (!matched || !access(out, ROW_OUT) || (lanes & (lanes - 1)) || lanes > 32) return reset();
    return true;
  }
  // The rows as they are turned: loaded, or normed, too.
  bool of_head(int n) {
    form().first = kNoOperator;
    found_.operands[ROW_SCALE] = found_.operands[ROW_SUM] = {};
    if (load(n, ROW_X)) return true;
    return is(n, OP_MUL) && either(n, [&](int x, int scale) {
             if (!load(scale, ROW_SCALE)) return false;
             if (int op = unary(x); is(x, OP_CAST) && op >= 0) form().first = op, x = a_of(x);
             return is(x, OP_MUL) && either(x, [&](int own, int factor) {
                      return is(factor, OP_LOAD) && access(factor, ROW_SUM, 0) && load(own, ROW_X);
                    });
           });
  }
  // column >= half ? p, half a row before : -p, half a row behind? A load may choose by its mask.
  bool is_turned(int n, int p) {
    if (is(n, OP_LOAD)) {
      AccessView view{code_[n].access};
      return view.masks() == 1 && static_cast<int64_t>(view.mask(0)[1]) == half_ &&
             moved(n, p, -half_) && is(a_of(n), OP_NEG) && moved(a_of(a_of(n)), p, half_);
    }
    if (code_[n].op != OP_SELECT) return false;
    int condition = a_of(n), second = b_of(n), first = c_of(n);
    if (condition >= 0 && code_[condition].op == OP_AND) {
      if (!bounds_column(b_of(condition), OP_LT, 2 * half_)) return false;
      condition = a_of(condition);
    }
    return code_[n].type == T_F32 && bounds_column(condition, OP_GE, half_) &&
           moved(second, p, -half_) && is(first, OP_NEG) && moved(a_of(first), p, half_);
  }
  // Compares instruction n the column with a number?
  bool bounds_column(int n, int op, int64_t wanted) const {
    if (n < 0 || code_[n].op != op || code_[n].type != T_I64) return false;
    int column = a_of(n), bound = b_of(n);
    return column >= 0 && code_[column].op == OP_IOTA &&
           static_cast<int>(code_[column].w[1]) == kernel_.column() && bound >= 0 &&
           code_[bound].op == OP_CONST && code_[bound].type == T_I64 &&
           static_cast<int64_t>(code_[bound].w[1]) == wanted;
  }
  // Does n compute of columns `by` further on what p does?
  bool moved(int n, int p, int64_t by) const {
    if (n < 0 || p < 0) return false;
    const DeviceInstruction &own = code_[n], &other = code_[p];
    if (own.op != other.op || own.type != other.type || own.type2 != other.type2) return false;
    if (own.op != OP_LOAD) {
      if (own.op != OP_MUL && own.op != OP_CAST) return false;
      return moved(a_of(n), a_of(p), by) && (own.b < 0 || moved(b_of(n), b_of(p), by));
    }
    AccessView to{own.access}, from{other.access};
    int64_t across = from.stride(kernel_.column());
    if (to.buffer() != from.buffer() || to.terms() || to.offset() != from.offset() + by * across)
      return false;
    for (int d = 0; d < kernel_.dims(); ++d)
      if (to.stride(d) != from.stride(d)) return false;
    // What is masked off is not chosen.
    int64_t low = by < 0 ? half_ : 0, high = by < 0 ? 2 * half_ : half_;
    for (int m = 0; m < to.masks(); ++m) {
      const Word* mask = to.mask(m);
      if (static_cast<int>(mask[0]) != kernel_.column() || static_cast<int64_t>(mask[1]) > low ||
          static_cast<int64_t>(mask[2]) < high)
        return false;
    }
    return true;
  }

  const ProgramView& program_;
  const KernelView& kernel_;
  const std::vector<DeviceInstruction>& code_;
  const DeviceCode& read_;
  RowsKernel found_;
  std::vector<int> stores_;
  std::vector<int> axes_;  // dimensions
  int z_ = -1;
  float count_ = 0;  // of what is averaged
  int64_t half_ = 0;  // of a row that is turned
};

}  // namespace

RowsKernel find_rows(const ProgramView& program, const KernelView& kernel, const DeviceCode& read) {
  return RowsMatcher(program, kernel, read).match();
}

}  // namespace vtc
