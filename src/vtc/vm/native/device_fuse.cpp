// What instructions mean together: the device has operators for activations and for sums of squares.
#include <algorithm>
#include <cmath>
#include <optional>

#include "../cuda/layout.h"
#include "device_read.h"

namespace vtc {
namespace {

constexpr double kCubic = 0.044715;

// Matches expressions of registers, backward from an instruction of the body.
class Matcher {
 public:
  explicit Matcher(DeviceCode& read) : read_(read), code_(read.code), body_(read.body) {}

  // Replaces what computes the result of instruction `at`, if it is one of `FusedOp`.
  bool fuse(int at) {
    DeviceInstruction& r = code_[at];
    int x = -1, op = -1;
    if (r.op == OP_MUL && r.type == T_F32 && read_.wide32(r.dst)) op = activation(at, x);
    if (r.op == OP_REDUCE && read_.folds_columns(r)) op = squares(at, x);
    if (op < 0 || !unchanged(x, at) || !only_here(at)) return false;
    for (int n : used_) code_[n].op = FUSED_NOTHING, code_[n].dst = code_[n].a = code_[n].b = -1;
    r.op = op, r.a = x, r.b = -1;
    return true;
  }

 private:
  // The instruction that computes a register as it is read at `at`; -1 if that is not known.
  int producer(int at, int reg) const {
    for (int n = at - 1; n >= 0; --n) {
      const DeviceInstruction& r = code_[n];
      if (r.dst == reg) return n;
      if (n >= body_ && (r.op == OP_LOOP || r.op == OP_ENDLOOP)) return -1;
    }
    return -1;
  }

  std::optional<double> number(int at, int reg) const {
    for (int n = at - 1; n >= 0; --n) {
      const DeviceInstruction& r = code_[n];
      if (r.dst != reg) continue;
      if (r.op != OP_CONST || r.type != T_F32) return {};
      return std::bit_cast<double>(r.w[1]);
    }
    return {};
  }

  bool is_number(int at, int reg, double wanted) const {
    std::optional<double> x = number(at, reg);
    return x && std::abs(*x - wanted) <= 1e-6 * std::abs(wanted);
  }

  // The instruction of the body that computes `reg`, if it is `op` of f32: part of the match.
  const DeviceInstruction* step(int& at, int reg, int op) {
    at = producer(at, reg);
    if (at < body_ || code_[at].op != op || code_[at].type != T_F32) return nullptr;
    used_.push_back(at);
    return &code_[at];
  }

  // The other operand, where one of a commutative instruction's is the number.
  int beside(int at, const DeviceInstruction& r, double wanted) const {
    if (is_number(at, r.b, wanted)) return r.a;
    return is_number(at, r.a, wanted) ? r.b : -1;
  }
  static int beside(const DeviceInstruction& r, int reg) {
    return r.a == reg ? r.b : r.b == reg ? r.a : -1;
  }

  int activation(int at, int& x) {
    for (bool first : {true, false}) {
      const DeviceInstruction& r = code_[at];
      used_.clear();
      x = first ? r.a : r.b;
      int gate = first ? r.b : r.a;
      if (x == gate) return -1;
      if (int op = gated(at, x, gate); op >= 0) return op;
    }
    return -1;
  }

  // Which activation x * gate is.
  int gated(int at, int x, int gate) {
    int n = at;
    if (const DeviceInstruction* r = step(n, gate, OP_SIGMOID)) return r->a == x ? FUSED_SILU : -1;
    n = at;
    const DeviceInstruction* half = step(n, gate, OP_MUL);
    if (!half) return -1;
    int sum = beside(n, *half, 0.5);
    const DeviceInstruction* plus = sum < 0 ? nullptr : step(n, sum, OP_ADD);
    int curve = plus ? beside(n, *plus, 1.0) : -1;
    if (curve < 0) return -1;
    int before = n;
    if (const DeviceInstruction* erf = step(n, curve, OP_ERF)) {
      const DeviceInstruction* scaled = step(n, erf->a, OP_MUL);
      return scaled && beside(n, *scaled, std::sqrt(0.5)) == x ? FUSED_GELU : -1;
    }
    n = before;
    const DeviceInstruction* tanh = step(n, curve, OP_TANH);
    const DeviceInstruction* scaled = tanh ? step(n, tanh->a, OP_MUL) : nullptr;
    int inner = scaled ? beside(n, *scaled, std::sqrt(2 / M_PI)) : -1;
    const DeviceInstruction* add = inner < 0 ? nullptr : step(n, inner, OP_ADD);
    int cubic = add ? beside(*add, x) : -1;
    const DeviceInstruction* third = cubic < 0 ? nullptr : step(n, cubic, OP_MUL);
    int cube = third ? beside(n, *third, kCubic) : -1;
    const DeviceInstruction* product = cube < 0 ? nullptr : step(n, cube, OP_MUL);
    int square = product ? beside(*product, x) : -1;
    const DeviceInstruction* twice = square < 0 ? nullptr : step(n, square, OP_MUL);
    return twice && twice->a == x && twice->b == x ? FUSED_GELU_TANH : -1;
  }

  int squares(int at, int& x) {
    const DeviceInstruction& r = code_[at];
    used_.clear();
    if (r.w[1] != FOLD_SUM) return -1;
    int n = at;
    const DeviceInstruction* product = step(n, r.a, OP_MUL);
    if (!product || product->a != product->b) return -1;
    x = product->a;
    return FUSED_SQUARES;
  }

  // Does a register hold at `at` what the instructions of the match have read?
  bool unchanged(int reg, int at) const {
    int first = at;
    for (int n : used_) first = std::min(first, n);
    for (int n = first; n < at; ++n)
      if (code_[n].dst == reg || code_[n].op == OP_LOOP || code_[n].op == OP_ENDLOOP) return false;
    return true;
  }

  // Is what the match computes on its way read by nothing else?
  bool only_here(int at) const {
    auto matched = [&](int n) {
      return n == at || std::find(used_.begin(), used_.end(), n) != used_.end();
    };
    for (int own : used_) {
      int reg = code_[own].dst;
      bool defined_again = false;
      for (int n = own + 1; n <= at && !defined_again; ++n) {
        if (code_[n].reads(reg) && !matched(n)) return false;
        defined_again = code_[n].dst == reg;
      }
      if (!defined_again && code_[at].live.has(reg)) return false;
    }
    return true;
  }

  DeviceCode& read_;
  std::vector<DeviceInstruction>& code_;
  int body_;
  std::vector<int> used_;
};

}  // namespace

bool DeviceCode::fuse() {
  Matcher matcher(*this);
  bool found = false;
  for (int at = body; at < static_cast<int>(code.size()); ++at) found |= matcher.fuse(at);
  return found;
}

// Stores come right behind what they store, as far as only instructions on registers lie between, or
// stores to other buffers: no register has to hold it for long.
bool DeviceCode::store_early() {
  bool moved = false;
  for (int at = body; at < static_cast<int>(code.size()); ++at) {
    if (code[at].op != OP_STORE) continue;
    int to = at;
    AccessView own{code[at].access};
    for (; to > body; --to) {
      const DeviceInstruction& before = code[to - 1];
      bool passes = before.op == OP_STORE
                        ? AccessView{before.access}.buffer() != own.buffer()
                        : before.op >= kFirstScalar || before.op == OP_REDUCE || before.op == OP_CONST;
      if (!passes || before.dst == code[at].a) break;
      bool moves_term = false;
      for (int n = 0; n < own.terms(); ++n) moves_term |= TermView{own.term(n)}.reg() == before.dst;
      if (moves_term) break;
    }
    // Only where it ends behind the instruction that computes it.
    if (to == body || to == at || code[to - 1].dst != code[at].a) continue;
    std::rotate(code.begin() + to, code.begin() + at, code.begin() + at + 1);
    moved = true;
  }
  return moved;
}

}  // namespace vtc
