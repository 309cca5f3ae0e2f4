// Loads that one operator folds, as a pooling does with its window: lines of all of them are read
// where they lie, and only the result is written.

#include <algorithm>

#include "state.h"

namespace vtc {
namespace {

constexpr int kMostLoads = 64;
constexpr int64_t kShortest = 8, kLongest = 4096;  // elements of a row

class LoadFold {
 public:
  LoadFold(State& s, const Word* w) : s_(s), kind_(kind_dst_of(*w)), at_(w) {
    r_ = s.rows(kind_);
    c_ = s.columns(kind_);
  }

  // The instruction behind the fold, which has run; null if there is none that is worth it.
  const Word* run() {
    if (kind_ != (kRowBit | kColumnBit) || r_ < 2 || c_ < kShortest || c_ > kLongest) return nullptr;
    const Word* first = at_;
    if (!add(at_)) return nullptr;
    at_ += length_of(*at_);
    result_ = dst_of(*first);
    while (count_ < kMostLoads && step()) {
    }
    if (count_ < 3 || all_dense_ || value_is_written() || read_again()) return nullptr;
    find_result(first);
    if (overlaps()) return nullptr;
    execute();
    return at_;
  }

 private:
  struct Load {
    int reg;
    Place place;
    bool there;  // is any of it unmasked?
  };

  // A load of f32 rows that lie anywhere, whose masks leave whole rows.
  bool add(const Word* w) {
    if (type_of(*w) != T_F32 || type2_of(*w) != T_F32 || kind_dst_of(*w) != kind_) return false;
    if (w[1] & 2) return false;
    AccessView access{w + 2};
    if (access.terms()) return false;
    Load load{dst_of(*w), locate(s_, access, kind_), true};
    const Place& p = load.place;
    load.there = !p.empty();
    bool whole = p.c0 <= 0 && p.c1 >= c_;
    if (load.there && (p.at.column != 1 || !whole)) return false;
    if (access.masks()) {
      int reg = w[1] & 1 ? a_of(*w) : -1;
      if (reg >= 0 && kind_a_of(*w) != 0) return false;
      if (masked_ && reg != value_reg_) return false;
      masked_ = true;
      value_reg_ = reg;
    }
    all_dense_ &= access.plain() && dense(p.at, r_, c_);
    loads_[count_++] = load;
    return true;
  }

  // Adds a load and the operator that folds it into what is there.
  bool step() {
    const Word* w = at_;
    while (op_of(*w) == OP_BIND) w += length_of(*w);
    if (op_of(*w) != OP_LOAD) return false;
    const Word* load = w;
    w += length_of(*w);
    while (op_of(*w) == OP_BIND) w += length_of(*w);
    Word head = *w;
    int op = op_of(head);
    bool known = op == OP_ADD || op == OP_MINIMUM || op == OP_MAXIMUM;
    if (!known || (op_ >= 0 && op != op_) || type_of(head) != T_F32) return false;
    int kinds = kind_dst_of(head) & kind_a_of(head) & kind_b_of(head);
    if (kinds != kind_ || a_of(head) != result_ || b_of(head) != dst_of(*load)) return false;
    if (b_of(head) == result_ || !add(load)) return false;
    op_ = op;
    results_[steps_++] = result_ = dst_of(head);
    at_ = w + 1;
    return true;
  }

  // Is the value of masked places a register that the fold writes?
  bool value_is_written() const {
    if (!masked_ || value_reg_ < 0) return false;
    return std::any_of(loads_, loads_ + count_, [&](const Load& l) { return l.reg == value_reg_; }) ||
           std::any_of(results_, results_ + steps_, [&](int reg) { return reg == value_reg_; });
  }

  // Does anybody read what the fold does not write?
  bool read_again() const {
    auto again = [&](int reg) { return reg != result_ && read_later(s_, at_, reg); };
    return std::any_of(loads_, loads_ + count_, [&](const Load& l) { return again(l.reg); }) ||
           std::any_of(results_, results_ + steps_, again);
  }

  // Registers are where they are when the last operator's turn has come.
  void find_result(const Word* w) {
    for (; w != at_; w += length_of(*w)) {
      if (op_of(*w) == OP_BIND) {
        bind(s_, w);
      } else if (op_of(*w) == OP_LOAD) {
        int reg = dst_of(*w);
        s_.reg[reg] = stays_in_buffer(s_, w) ? locate(s_, AccessView{w + 2}, kind_).at.base
                                             : s_.home[reg];
      }
    }
    out_ = reinterpret_cast<float*>(s_.reg[result_]);
  }

  // Would a row of the result be written over what a later one reads?
  bool overlaps() const {
    auto low = reinterpret_cast<uintptr_t>(out_), high = low + r_ * c_ * sizeof(float);
    for (int l = 0; l < count_; ++l) {
      const Place& p = loads_[l].place;
      if (!loads_[l].there) continue;
      auto start = reinterpret_cast<uintptr_t>(p.at.base);
      int64_t from = std::max<int64_t>(p.r0, 0) * p.at.row, to = (std::min(p.r1, r_) - 1) * p.at.row;
      uintptr_t least = start + std::min(from, to) * static_cast<int64_t>(sizeof(float));
      uintptr_t most = start + (std::max(from, to) + c_) * static_cast<int64_t>(sizeof(float));
      if (least < high && low < most) return true;
    }
    return false;
  }

  // Rows in parts, in each of which the same loads are masked off.
  void execute() {
    const float* filled = masked_ ? fill() : nullptr;
    auto* fold = op_ == OP_ADD       ? s_.table->add_lines
                 : op_ == OP_MINIMUM ? s_.table->min_lines
                                     : s_.table->max_lines;
    Line lines[kMostLoads];
    for (int64_t i = 0; i < r_;) {
      int64_t end = r_;
      for (int l = 0; l < count_; ++l) {
        const Place& p = loads_[l].place;
        bool inside = loads_[l].there && i >= p.r0 && i < p.r1;
        if (inside)
          end = std::min(end, p.r1);
        else if (loads_[l].there && i < p.r0)
          end = std::min(end, p.r0);
        const float* base = reinterpret_cast<const float*>(p.at.base);
        lines[l] = inside ? Line{base + i * p.at.row, p.at.row} : Line{filled, 0};
      }
      fold(out_ + i * c_, c_, lines, count_, end - i, c_);
      i = end;
    }
  }

  const float* fill() {
    float* line = reinterpret_cast<float*>(s_.line.get(c_ * sizeof(float)));
    float value = value_reg_ < 0 ? 0 : *reinterpret_cast<const float*>(s_.reg[value_reg_]);
    std::fill_n(line, c_, value);
    return line;
  }

  State& s_;
  int kind_;
  const Word* at_;
  int64_t r_, c_;
  Load loads_[kMostLoads];
  int results_[kMostLoads];
  int count_ = 0, steps_ = 0;
  int op_ = -1, result_ = -1, value_reg_ = -1;
  bool masked_ = false, all_dense_ = true;
  float* out_ = nullptr;
};

}  // namespace

const Word* fold_loads(State& s, const Word* w) {
  // Most loads are followed by something else.
  const Word* behind = w + length_of(*w);
  if (op_of(*behind) != OP_LOAD && op_of(*behind) != OP_BIND) return nullptr;
  return LoadFold(s, w).run();
}

}  // namespace vtc
