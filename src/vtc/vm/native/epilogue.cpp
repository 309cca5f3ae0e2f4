// Finding what a convolution can do of the instructions behind it: an activation, the addition of
// another tile, and the store of rows that lie apart.

#include "epilogue.h"

#include <initializer_list>

namespace vtc {
namespace {

class Search {
 public:
  Search(State& s, const Word* w) : s_(s), w_(w), kind_(kind_dst_of(*w)) { begin(); }

  Epilogue run() {
    if (next_ < s_.kernel.body()) return plain();
    if (!silu()) hardswish();
    addition();
    return store();
  }

 private:
  void begin() {
    next_ = w_ + words_of(w_);
    value_ = dst_of(*w_);
    bind_ = nullptr;
    finish_ = {};
  }
  Epilogue plain() const {
    return {next_, reinterpret_cast<float*>(s_.reg[value_]), s_.columns(kind_), finish_};
  }

  // The instruction from w on that does something, behind BINDs.
  static const Word* behind_binds(const Word* w) {
    while (op_of(*w) == OP_BIND) w += length_of(*w);
    return w;
  }
  bool computes(const Word* w, int op) const {
    return op_of(*w) == op && type_of(*w) == T_F32 && kind_dst_of(*w) == kind_;
  }
  // Is w an operator on registers a and b of the tile's kind, in either order?
  bool joins(const Word* w, int op, int a, int b) const {
    if (!computes(w, op) || kind_a_of(*w) != kind_ || kind_b_of(*w) != kind_) return false;
    return (a_of(*w) == a && b_of(*w) == b) || (a_of(*w) == b && b_of(*w) == a);
  }
  // Is w an operator on register a and one number?
  bool with_number(const Word* w, int op, int a, float& number) const {
    if (!computes(w, op) || a_of(*w) != a || kind_a_of(*w) != kind_ || kind_b_of(*w) != 0)
      return false;
    number = *reinterpret_cast<const float*>(s_.reg[b_of(*w)]);
    return number == number;
  }
  // Goes on behind w, whose result replaces the value, if nothing else reads what `passed` names.
  bool take(const Word* w, std::initializer_list<int> passed) {
    const Word* behind = w + length_of(*w);
    int result = dst_of(*w);
    for (int reg : passed)
      if (reg != result && read_later(s_, behind, reg)) return false;
    for (const Word* b = next_; b != w; b += length_of(*b))
      if (op_of(*b) == OP_BIND && dst_of(*b) == result) bind_ = b;
    next_ = behind;
    value_ = result;
    if (bind_ && dst_of(*bind_) != result) bind_ = nullptr;
    return true;
  }

  bool silu() {
    const Word* w = behind_binds(next_);
    if (!computes(w, OP_SIGMOID) || a_of(*w) != value_ || dst_of(*w) == value_) return false;
    int gate = dst_of(*w);
    w = behind_binds(w + length_of(*w));
    if (!joins(w, OP_MUL, value_, gate) || !take(w, {value_, gate})) return false;
    finish_.activation = ACTIVATION_SILU;
    return true;
  }

  bool hardswish() {
    Finish found = finish_;
    const Word* w = behind_binds(next_);
    if (!with_number(w, OP_ADD, value_, found.move)) return false;
    int moved = dst_of(*w);
    w = behind_binds(w + length_of(*w));
    if (!with_number(w, OP_MAXIMUM, moved, found.least)) return false;
    int bounded = dst_of(*w);
    w = behind_binds(w + length_of(*w));
    if (!with_number(w, OP_MINIMUM, bounded, found.most)) return false;
    int gate = dst_of(*w);
    for (int reg : {moved, bounded, gate})
      if (reg == value_) return false;
    w = behind_binds(w + length_of(*w));
    if (!joins(w, OP_MUL, value_, gate)) return false;
    int product = dst_of(*w);
    w = behind_binds(w + length_of(*w));
    if (!with_number(w, OP_DIV, product, found.by)) return false;
    if (!take(w, {value_, moved, bounded, gate, product})) return false;
    found.activation = ACTIVATION_HARDSWISH;
    found.inverse = Reciprocal(found.by);
    finish_ = found;
    return true;
  }

  // The addition of a tile that is in a register, or is loaded next from rows of a buffer.
  void addition() {
    const Word* w = behind_binds(next_);
    const Word* loaded = nullptr;
    if (op_of(*w) == OP_LOAD && type_of(*w) == T_F32 && type2_of(*w) == T_F32 && w[1] == 0 &&
        kind_dst_of(*w) == kind_ && dst_of(*w) != value_) {
      loaded = w;
      w = behind_binds(w + length_of(*w));
    }
    if (!computes(w, OP_ADD)) return;
    int other = a_of(*w) == value_ ? b_of(*w) : a_of(*w);
    if (other == value_ || !joins(w, OP_ADD, value_, other)) return;
    if (!loaded) {
      const float* at = reinterpret_cast<const float*>(s_.reg[other]);
      if (!take(w, {value_})) return;
      other_ = other;
      finish_.other = at;
      finish_.ldo = s_.columns(kind_);
      return;
    }
    AccessView access{loaded + 2};
    if (dst_of(*loaded) != other || !access.plain()) return;
    Place p = locate(s_, access, kind_);
    if ((p.at.column != 1 && s_.columns(kind_) != 1) || !take(w, {value_, other})) return;
    finish_.other = reinterpret_cast<const float*>(p.at.base);
    finish_.ldo = p.at.row;
  }

  // A store of the value is done by writing it there, if the value is bound to it.
  Epilogue store() {
    const Word* w = behind_binds(next_);
    bool bound = op_of(*w) == OP_STORE && a_of(*w) == value_ && w[1] == 1 &&
                 type_of(*w) == T_F32 && type2_of(*w) == T_F32 && kind_dst_of(*w) == kind_;
    AccessView access{w + 2};
    if (bound && w == next_ && access.plain()) {
      Place p = locate(s_, access, kind_);
      if (p.at.column == 1 || s_.columns(kind_) == 1) {
        s_.reg[value_] = s_.home[value_];
        return {w + length_of(*w), reinterpret_cast<float*>(p.at.base), p.at.row, finish_};
      }
    }
    if (overwrites()) begin();
    if (bind_) bind(s_, bind_);
    return plain();
  }

  // Would sums in the result's register overwrite what the convolution still reads?
  bool overwrites() const {
    ConvolutionView c{w_};
    return value_ == other_ || (c.scaled() && value_ == a_of(*w_)) ||
           (c.shifted() && value_ == b_of(*w_));
  }

  State& s_;
  const Word* w_;
  int kind_;
  int value_, other_ = -1;  // registers of the result, and of the tile that is added
  const Word* next_;
  const Word* bind_;  // of the result
  Finish finish_;
};

}  // namespace

Epilogue find_epilogue(State& s, const Word* w) { return Search(s, w).run(); }

}  // namespace vtc
