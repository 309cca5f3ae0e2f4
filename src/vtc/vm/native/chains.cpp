// Finding chains: scalar operators in a row, each of which takes the result of the one before. They
// run as one pass (see chain.cpp), so that values between them never leave the registers.

#include <algorithm>

#include "state.h"

namespace vtc {
namespace {

constexpr int kMaxSteps = 24;
constexpr int64_t kWorthSumming = 64;  // elements of a row
constexpr int kLookAhead = 24;  // instructions, for the reader of a value

// An operand over a tile: one element, one a row, one a column, or one a point.
struct Operand {
  const float* p;
  int64_t r, c;
};

// A step over a tile. Registers are -1 where there is none.
struct Link {
  ChainCode code;
  int dst, operand_reg, operand_kind, mask_reg;
  Operand operand;
  const uint8_t* mask;
  float* to;  // the register of the result
  bool kept;
};

ChainCode unary_code(int op) {
  switch (op) {
    case OP_NEG: return CHAIN_NEG;
    case OP_ABS: return CHAIN_ABS;
    case OP_SQRT: return CHAIN_SQRT;
    case OP_RSQRT: return CHAIN_RSQRT;
    case OP_RECIPROCAL: return CHAIN_RECIPROCAL;
    case OP_EXP: return CHAIN_EXP;
    case OP_TANH: return CHAIN_TANH;
    case OP_ERF: return CHAIN_ERF;
    case OP_SIGMOID: return CHAIN_SIGMOID;
    default: return CHAIN_NONE;
  }
}

// The code of a binary operator that gets the chain's value as its left or its right operand.
ChainCode binary_code(int op, bool right) {
  switch (op) {
    case OP_ADD: return CHAIN_ADD;
    case OP_SUB: return right ? CHAIN_SUB_FROM : CHAIN_SUB;
    case OP_MUL: return CHAIN_MUL;
    case OP_DIV: return right ? CHAIN_DIV_INTO : CHAIN_DIV;
    case OP_MINIMUM: return right ? CHAIN_MIN_OF : CHAIN_MIN;
    case OP_MAXIMUM: return right ? CHAIN_MAX_OF : CHAIN_MAX;
    default: return CHAIN_NONE;
  }
}

class Finder {
 public:
  Finder(State& s, const Word* w) : s_(s), kind_(kind_dst_of(*w)), at_(w) {
    r_ = s.rows(kind_);
    c_ = s.columns(kind_);
  }

  // The instruction behind the chain, which has run; null if there is none of two steps or more.
  const Word* run() {
    if (!first()) return nullptr;
    while (count_ < kMaxSteps && next()) {
    }
    find_sum();
    if (count_ + (sum_ != nullptr) < 2) return nullptr;
    mark_kept();
    execute();
    return at_;
  }

 private:
  bool fits(Word head) const {
    return op_of(head) >= kFirstScalar && type_of(head) == T_F32 && kind_dst_of(head) == kind_;
  }
  bool full(int kind) const { return s_.rows(kind) == r_ && s_.columns(kind) == c_; }

  // Can the instruction take the value of register `from` as the chain's? Fills what it names.
  bool link(Word head, int from, Link& l) const {
    int op = op_of(head), a = a_of(head), b = b_of(head), c = c_of(head);
    l.dst = dst_of(head);
    l.mask_reg = l.operand_reg = -1;
    l.code = unary_code(op);
    if (l.code != CHAIN_NONE) return a == from;
    if (op == OP_SELECT) {
      if ((b == from) == (c == from) || !full(kind_a_of(head))) return false;
      l.code = b == from ? CHAIN_SELECT : CHAIN_SELECT_NOT;
      l.mask_reg = a;
      l.operand_reg = b == from ? c : b;
      l.operand_kind = b == from ? kind_c_of(head) : kind_b_of(head);
      return true;
    }
    if (a != from && b != from) return false;
    if (a == from && b == from) {
      l.code = op == OP_ADD ? CHAIN_TWICE : op == OP_MUL ? CHAIN_SQUARE : CHAIN_NONE;
    } else {
      l.code = binary_code(op, b == from);
      l.operand_reg = a == from ? b : a;
      l.operand_kind = a == from ? kind_b_of(head) : kind_a_of(head);
    }
    return l.code != CHAIN_NONE;
  }

  // Registers are where they are when the instruction's turn comes.
  void add(Link l) {
    l.mask = l.mask_reg < 0 ? nullptr : reinterpret_cast<const uint8_t*>(s_.reg[l.mask_reg]);
    if (l.operand_reg >= 0)
      l.operand = {reinterpret_cast<const float*>(s_.reg[l.operand_reg]), s_.rows(l.operand_kind),
                   s_.columns(l.operand_kind)};
    l.to = reinterpret_cast<float*>(s_.reg[l.dst]);
    links_[count_++] = l;
    at_ += 1;
  }

  // The chain begins with an operand of the first instruction that varies as the result does.
  bool first() {
    Word head = *at_;
    if (!fits(head)) return false;
    Link l;
    for (int k = op_of(head) == OP_SELECT; k < 3; ++k) {
      int reg = k == 0 ? a_of(head) : k == 1 ? b_of(head) : c_of(head);
      int kind = k == 0 ? kind_a_of(head) : k == 1 ? kind_b_of(head) : kind_c_of(head);
      if (!full(kind) || !link(head, reg, l)) continue;
      start_reg_ = reg;
      start_ = reinterpret_cast<const float*>(s_.reg[reg]);
      add(l);
      return true;
    }
    return false;
  }

  // Between two steps there may be loads and binds that leave alone what the chain uses: they only
  // say where a register is.
  bool next() {
    const Word* w = at_;
    for (;; w += length_of(*w)) {
      if (op_of(*w) == OP_BIND) continue;
      if (op_of(*w) != OP_LOAD) break;
      if (uses(dst_of(*w)) && !stays_in_buffer(s_, w)) return false;
    }
    Link l;
    if (!fits(*w) || !link(*w, links_[count_ - 1].dst, l)) return false;
    for (; at_ != w; at_ += length_of(*at_)) op_of(*at_) == OP_BIND ? bind(s_, at_) : load(s_, at_);
    add(l);
    return true;
  }

  bool uses(int reg) const {
    if (reg == start_reg_) return true;
    for (int i = 0; i < count_; ++i)
      if (links_[i].dst == reg || links_[i].operand_reg == reg || links_[i].mask_reg == reg)
        return true;
    return false;
  }

  // Is the chain's value summed along rows next, which may be done in the same pass?
  void find_sum() {
    Word head = *at_;
    int op = op_of(head);
    if ((op != OP_REDUCE && op != OP_ACCUM) || type_of(head) != T_F32 || at_[1] != FOLD_SUM) return;
    const Link& last = links_[count_ - 1];
    bool across = (kind_a_of(head) & ~kind_dst_of(head)) == kColumnBit;
    if (a_of(head) != last.dst || kind_a_of(head) != kind_ || !across || c_ < kWorthSumming) return;
    sum_ = at_;
    at_ += length_of(head);
  }

  // A step's value is kept unless its register is written again before anybody else reads it.
  void mark_kept() {
    for (int i = 0; i < count_; ++i) {
      Link& l = links_[i];
      l.kept = true;
      bool decided = false;
      for (int j = i + 1; j < count_ && !decided; ++j) {
        if (links_[j].operand_reg == l.dst || links_[j].mask_reg == l.dst) decided = true;
        else if (links_[j].dst == l.dst) decided = true, l.kept = false;
      }
      if (!decided && (sum_ || i + 1 < count_)) l.kept = read_later(s_, at_, l.dst);
    }
  }

  void execute() {
    ChainStep steps[kMaxSteps];
    bool flat = true;
    for (int i = 0; i < count_; ++i) {
      const Link& l = links_[i];
      const Operand& o = l.operand;
      steps[i] = {l.code, true, nullptr, l.mask, l.kept ? l.to : nullptr};
      if (l.operand_reg < 0) continue;
      steps[i].operand = o.p;
      steps[i].splat = o.r * o.c == 1;
      if (o.r * o.c != 1) flat &= o.r == r_ && o.c == c_;
    }
    if (flat && !sum_) return s_.table->chain(steps, count_, start_, r_ * c_);
    for (int i = 0; i < count_; ++i)
      if (links_[i].operand_reg >= 0) steps[i].splat = links_[i].operand.c == 1;
    for (int64_t row = 0; row < r_; ++row) {
      if (sum_)
        put_sum(row, s_.table->chain_sum(steps, count_, start_ + row * c_, c_));
      else
        s_.table->chain(steps, count_, start_ + row * c_, c_);
      for (int i = 0; i < count_; ++i) {
        const Link& l = links_[i];
        if (l.operand_reg >= 0 && l.operand.r != 1) steps[i].operand += l.operand.c;
        if (steps[i].mask) steps[i].mask += c_;
        if (steps[i].store) steps[i].store += c_;
      }
    }
  }

  void put_sum(int64_t row, double sum) {
    char* to = s_.reg[dst_of(*sum_)];
    if (op_of(*sum_) == OP_REDUCE)
      reinterpret_cast<float*>(to)[row] = static_cast<float>(sum);
    else
      reinterpret_cast<double*>(to)[row] += sum;
  }

  State& s_;
  int kind_;
  const Word* at_;
  int64_t r_, c_;
  const Word* sum_ = nullptr;  // the REDUCE or ACCUM that the chain ends in
  int start_reg_ = -1;
  const float* start_ = nullptr;
  Link links_[kMaxSteps];
  int count_ = 0;
};

}  // namespace

const Word* chain(State& s, const Word* w) { return Finder(s, w).run(); }

bool read_later(const State& s, const Word* w, int reg) {
  // What a prologue computes is read by the body.
  if (w < s.kernel.body()) return true;
  for (int n = 0; n < kLookAhead; ++n, w += length_of(*w)) {
    int op = op_of(*w);
    switch (op) {
      case OP_DONE: return false;
      case OP_BIND:
        if (dst_of(*w) == reg) return false;
        continue;
      case OP_LOAD:
      case OP_STORE: {
        if (a_of(*w) == reg || AccessView{w + 2}.terms()) return true;
        if (op == OP_LOAD && dst_of(*w) == reg) return false;
        continue;
      }
      case OP_CAST:
      case OP_MOVE:
      case OP_REDUCE: break;
      default:
        if (op < kFirstScalar) return true;
    }
    if (a_of(*w) == reg || b_of(*w) == reg || c_of(*w) == reg) return true;
    if (dst_of(*w) == reg) return false;
  }
  return true;
}

}  // namespace vtc
