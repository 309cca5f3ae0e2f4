// Bytecode -> the device's form of it: which values are at hand in W, and where the others are kept.
//
// An instruction is *fast* if it works on W, a wide value of 32 bits; all others work on shared
// memory, an element at a time. W is written back only where its value is wanted later.

#include <algorithm>
#include <bit>
#include <limits>

#include "../cuda/layout.h"
#include "device.h"
#include "module.h"
#include "table.h"

namespace vtc {
namespace {

constexpr int kSharedBytes = 111 << 10;    // of a block where two are to be resident, but its words
constexpr int kMostSharedBytes = 232448;   // of one alone
constexpr int kMostStages = 4;
constexpr Word kNoWord = 0;

bool narrow_kind(int kind) { return !(kind & kColumnBit); }

bool compares(int op) { return (op >= OP_EQ && op <= OP_GE) || op == OP_ISNAN || op == OP_ISINF; }

// Scalar operators of f32 that run on W.
bool has_fast_form(int op) {
  switch (op) {
    case OP_ADD: case OP_SUB: case OP_MUL: case OP_DIV: case OP_MINIMUM: case OP_MAXIMUM:
    case OP_FMA: case OP_EQ: case OP_NE: case OP_LT: case OP_LE: case OP_GT: case OP_GE:
    case OP_ISNAN: case OP_NEG: case OP_ABS: case OP_FLOOR: case OP_EXP: case OP_EXP2:
    case OP_LOG: case OP_SQRT: case OP_RSQRT: case OP_TANH: case OP_ERF: case OP_SIGMOID:
    case OP_RECIPROCAL:
      return true;
    default: return false;
  }
}
bool has_fast_logic(int op) { return op == OP_AND || op == OP_OR || op == OP_NOT; }

// Does op(a, b) equal another form of op(b, a), which the interpreter has?
bool may_swap(int op) {
  switch (op) {
    case OP_ADD: case OP_MUL: case OP_EQ: case OP_NE: case OP_AND: case OP_OR: case OP_SUB:
    case OP_DIV: case OP_LT: case OP_LE: case OP_GT: case OP_GE:
      return true;
    default: return false;
  }
}

Word identity_bits(int fold, int type) {
  bool real = type == T_F32 || type == T_F64;
  double infinity = std::numeric_limits<double>::infinity();
  switch (fold) {
    case FOLD_PROD: case FOLD_ALL: return real ? std::bit_cast<Word>(1.0) : 1;
    case FOLD_MAX:
      if (real) return std::bit_cast<Word>(-infinity);
      return static_cast<Word>(type == T_I64 ? std::numeric_limits<int64_t>::min()
                                             : std::numeric_limits<int32_t>::min());
    case FOLD_MIN:
      if (real) return std::bit_cast<Word>(infinity);
      return static_cast<Word>(type == T_I64 ? std::numeric_limits<int64_t>::max()
                                             : std::numeric_limits<int32_t>::max());
    default: return 0;  // also the bits of 0.0
  }
}

// An instruction as it is read, with what it reads and writes.
struct Read {
  const Word* w;
  int op, type, type2, dst = -1, a = -1, b = -1, c = -1;
  const Word* access = nullptr;
  std::vector<int> terms;
  int loop = -1;  // number of the outermost LOOP around it, by position
  bool in_body = false;

  template <class F>
  void each_read(F f) const {
    for (int r : {a, b, c})
      if (r >= 0) f(r);
    for (int r : terms) f(r);
    if (op == OP_ACCUM) f(dst);
  }
  bool reads(int reg) const {
    bool found = false;
    each_read([&](int r) { found |= r == reg; });
    return found;
  }
};

// An operand of a device instruction.
struct Operand {
  enum Kind { kNone, kW, kRegister, kNumber } kind = kNone;
  int reg = -1;
  Word number = kNoWord;
};

struct Emitted {
  int op, type = 0, type2 = 0;
  Operand dst, a, b, c;
  std::vector<Word> extra;          // behind the head
  const Read* access = nullptr;     // whose access comes behind these
  bool staged = false;              // a fast load that may be copied ahead
  int plain_b = -1;                 // a number in the place of b
};

struct Register {
  int size = 4;
  bool narrow = true, used = false;
  int fast_uses = 0, slow_uses = 0, location = kNowhere;
};

class Lowering {
 public:
  Lowering(const ProgramView& program, const KernelView& kernel)
      : program_(program), kernel_(kernel), registers_(256) {}

  DeviceKernel lower() {
    read();
    classify();
    choose_distance();
    emit();
    place();
    return write();
  }

 private:
  // Reading.

  void read() {
    read_code(kernel_.prologue(), false);
    body_ = static_cast<int>(code_.size());
    read_code(kernel_.body(), true);
  }

  void read_code(const Word* w, bool in_body) {
    int depth = 0, loop = -1;
    for (;; w += op_of(*w) == OP_LOOP ? length_of(*w) : words_of(w)) {
      Read r{w, op_of(*w), type_of(*w), type2_of(*w)};
      r.in_body = in_body;
      if (r.op == OP_LOOP && depth++ == 0) loop = static_cast<int>(code_.size());
      r.loop = loop;
      if (r.op == OP_ENDLOOP && --depth == 0) loop = -1;
      operands(r);
      code_.push_back(r);
      if (r.op == OP_DONE) return;
    }
  }

  void operands(Read& r) const {
    Word head = *r.w;
    auto take_access = [&](const Word* at) {
      r.access = at;
      AccessView a{at};
      for (int n = 0; n < a.terms(); ++n) r.terms.push_back(TermView{a.term(n)}.reg());
    };
    switch (r.op) {
      case OP_DONE: case OP_LOOP: case OP_ENDLOOP: return;
      case OP_CONST: case OP_PARAM: case OP_IOTA: r.dst = dst_of(head); return;
      case OP_MOVE: case OP_CAST: r.dst = dst_of(head), r.a = a_of(head); return;
      case OP_LOAD:
        r.dst = dst_of(head);
        if (r.w[1] & 1) r.a = a_of(head);
        return take_access(r.w + 2);
      case OP_STORE: r.a = a_of(head); return take_access(r.w + 2);
      case OP_REDUCE: r.dst = dst_of(head), r.a = a_of(head); break;
      case OP_INIT: case OP_MERGE: r.dst = dst_of(head); break;
      case OP_ACCUM: case OP_FINISH: r.dst = dst_of(head), r.a = a_of(head); break;
      case OP_SPILL: r.a = a_of(head); break;
      default:
        if (r.op < kFirstScalar) throw EncodeError("the device has no such instruction");
        r.dst = dst_of(head), r.a = a_of(head);
        if (r.op == OP_SELECT || r.op == OP_FMA) r.b = b_of(head), r.c = c_of(head);
        else if (binary(r.op)) r.b = b_of(head);
        return;
    }
    if (has_places(static_cast<int64_t>(r.w[1])))
      throw EncodeError("the device does not find places");
  }

  static bool binary(int op) {
    return (op >= OP_ADD && op <= OP_MAXIMUM) || op == OP_ATAN2 ||
           (op >= OP_EQ && op <= OP_XOR) || op == OP_SHL || op == OP_SHR;
  }

  // What a register holds is known by its instructions.
  void classify() {
    auto note = [&](int reg, int kind, int type) {
      if (reg < 0) return;
      Register& r = registers_[reg];
      r.used = true;
      if (!narrow_kind(kind)) r.narrow = false;
      if (kItemsize[type] == 8) r.size = 8;
    };
    for (const Read& r : code_) {
      Word head = *r.w;
      int type = r.type;
      switch (r.op) {
        case OP_IOTA: note(r.dst, kind_dst_of(head), T_I64); break;
        case OP_CAST:
          note(r.dst, kind_dst_of(head), kCompute[r.type2]);
          note(r.a, kind_a_of(head), type);
          break;
        case OP_INIT: case OP_MERGE: note(r.dst, kind_dst_of(head), r.type2); break;
        case OP_ACCUM:
          note(r.dst, kind_dst_of(head), r.type2);
          note(r.a, kind_a_of(head), type);
          break;
        case OP_SPILL: note(r.a, kind_a_of(head), r.type2); break;
        case OP_FINISH:
          note(r.a, kind_dst_of(head), r.type2);
          note(r.dst, kind_dst_of(head), type);
          break;
        case OP_DONE: case OP_LOOP: case OP_ENDLOOP: case OP_STORE: break;
        default: if (r.dst >= 0) note(r.dst, kind_dst_of(head), compares(r.op) ? T_BOOL : type);
      }
    }
    if (kernel_.row() != kNoDim) full_ |= kRowBit;
    if (kernel_.column() != kNoDim) full_ |= kColumnBit;
    for (const Read& r : code_)
      if (r.op == OP_REDUCE || r.op == OP_ACCUM)
        folded_ |= (kind_a_of(*r.w) & ~kind_dst_of(*r.w) & kColumnBit) != 0;
    slots_ = static_cast<int>(device_slots(kernel_.columns(), folded_));
    int64_t all = kernel_.rows() * slots_;
    if (all > kSlots) throw EncodeError("a tile of this kernel does not fit the device");
    groups_ = all > kThreads ? 2 : 1;
  }

  bool wide32(int reg) const { return !registers_[reg].narrow && registers_[reg].size == 4; }

  // Accesses.

  bool looped(int d) const {
    for (const Read& r : code_)
      if (r.op == OP_LOOP && dst_of(*r.w) == d) return true;
    return false;
  }

  // May the access move 16 bytes at once where elements of a group are side by side?
  bool aligned(const Read& r) const {
    AccessView a{r.access};
    int size = kItemsize[program_.type(a.buffer())];
    if (kernel_.column() == kNoDim || a.stride(kernel_.column()) != 1 || size > 4 || size < 2)
      return false;
    int64_t unit = 16 / size;
    if (a.offset() % unit) return false;
    for (int d = 0; d < kernel_.dims(); ++d) {
      bool column = d == kernel_.column();
      if (kernel_.size(d) <= 1) continue;
      if (!column && a.stride(d) % unit) return false;
      if (column && kernel_.tasks(d) > 1 && kernel_.span(d) % kRun) return false;
      if (column && looped(d) && kernel_.columns() % kRun) return false;
    }
    for (int n = 0; n < a.terms(); ++n)
      if (TermView{a.term(n)}.stride() % unit) return false;
    return true;
  }

  bool fast_access(const Read& r, int kind, int type) const {
    if (narrow_kind(kind) || kItemsize[type] == 8) return false;
    for (int reg : r.terms)
      if (!registers_[reg].narrow) return false;
    return true;
  }

  void choose_distance() {
    int64_t with = 0, without = 0;
    for (const Read& r : code_) {
      if (!r.access || !fast_access(r, kind_dst_of(*r.w), r.type)) continue;
      AccessView a{r.access};
      if (a.stride(kernel_.column()) != 1) continue;
      (aligned(r) ? with : without) += kItemsize[program_.type(a.buffer())];
    }
    distance_ = without > with ? slots_ : 1;
  }

  // Values: what is in W, what is a number, what is wanted later.

  // Is what a register holds before instruction `at` read by a later one?
  bool wanted(int at, int reg) const {
    const Read& here = code_[at];
    if (here.dst == reg && here.op != OP_ACCUM) return false;
    int n = static_cast<int>(code_.size());
    for (int i = at + 1; i < n; ++i) {
      if (code_[i].reads(reg)) return true;
      bool same = code_[i].loop == here.loop || code_[i].loop < 0;
      if (code_[i].dst == reg && same) break;
    }
    if (here.loop >= 0)
      for (int i = here.loop; i <= at; ++i)
        if (code_[i].reads(reg)) return true;
    return false;
  }

  Emitted& add(int op, int type = 0, int type2 = 0) {
    Emitted& e = emitted_.emplace_back();
    e.op = op, e.type = type, e.type2 = type2;
    return e;
  }

  Operand in_register(int reg) { return {Operand::kRegister, reg}; }

  // W's value goes to its own place, if it is not there and somebody wants it after instruction
  // `at`; `by_now` also counts what instruction `at` itself reads.
  void save(int at, bool by_now) {
    if (in_w_ < 0 || saved_) return;
    if (!wanted(at, in_w_) && !(by_now && code_[at].reads(in_w_))) return;
    add(D_KEEP).dst = in_register(in_w_);
    saved_ = true;
  }

  // An operand of a slow instruction: in shared memory, or a number.
  Operand slow(int reg) {
    if (numbered(reg)) return {Operand::kNumber, reg, numbers_[reg]};
    return in_register(reg);
  }

  bool numbered(int reg) const { return known_[reg]; }

  // A register that must be in memory though it holds a number.
  void materialize(int at, int reg) {
    if (!numbered(reg) || stored_[reg]) return;
    Emitted& e = add(OP_MOVE, types_[reg]);
    e.dst = in_register(reg);
    e.a = {Operand::kNumber, reg, numbers_[reg]};
    stored_[reg] = code_[at].loop < 0;
  }

  void bring(int at, int reg, int type) {
    if (in_w_ == reg) return;
    save(at, true);
    Emitted& e = add(D_FETCH, type);
    e.a = slow(reg);
    in_w_ = reg;
    saved_ = true;
  }

  void define(int reg) {
    known_[reg] = stored_[reg] = 0;
    if (in_w_ == reg) in_w_ = -1;
  }

  void result_in_w(int reg) {
    known_[reg] = stored_[reg] = 0;
    in_w_ = reg;
    saved_ = false;
  }

  // An instruction that reads and writes shared memory; what it reads of W is written back.
  void before_slow(int at) {
    const Read& r = code_[at];
    bool reads_w = in_w_ >= 0 && r.reads(in_w_);
    if (reads_w && !saved_) {
      add(D_KEEP).dst = in_register(in_w_);
      saved_ = true;
    }
    for (int t : r.terms) materialize(at, t);
  }

  void emit() {
    known_.assign(256, 0), stored_.assign(256, 0), numbers_.assign(256, 0), types_.assign(256, 0);
    for (int at = 0; at < static_cast<int>(code_.size()); ++at) {
      if (at == body_) in_w_ = -1;
      instruction(at);
    }
  }

  void instruction(int at) {
    const Read& r = code_[at];
    Word head = *r.w;
    switch (r.op) {
      case OP_DONE:
        if (!r.in_body) save(at, false);
        in_w_ = -1;
        add(OP_DONE);
        return;
      case OP_LOOP: case OP_ENDLOOP: {
        save(at, false);
        in_w_ = -1;
        Emitted& e = add(r.op);
        if (r.op == OP_LOOP) e.dst.reg = dst_of(head), e.extra = {r.w[1], 0};
        return;
      }
      case OP_CONST:
        define(r.dst);
        known_[r.dst] = 1;
        numbers_[r.dst] = r.w[1];
        types_[r.dst] = r.type;
        return;
      case OP_LOAD: return load(at);
      case OP_STORE: return store(at);
      case OP_MOVE: return move(at);
      case OP_REDUCE: return reduce(at);
      case OP_ACCUM: return accumulate(at);
      case OP_INIT: {
        before_slow(at);
        define(r.dst);
        Emitted& e = add(OP_MOVE, r.type2);
        e.dst = in_register(r.dst);
        e.a = {Operand::kNumber, -1, identity_bits(static_cast<int>(r.w[1]), r.type2)};
        return;
      }
      case OP_FINISH: {
        before_slow(at);
        define(r.dst);
        Emitted& e = add(OP_FINISH, r.type, r.type2);
        e.dst = in_register(r.dst);
        e.a = in_register(r.a);
        e.extra = {fold_word(static_cast<int>(r.w[1]), modes_[r.a], kind_dst_of(head))};
        return;
      }
      case OP_SPILL: {
        before_slow(at);
        Emitted& joined = add(OP_FINISH, r.type2, r.type2);
        joined.dst = joined.a = in_register(r.a);
        joined.extra = {fold_word(static_cast<int>(r.w[1]), modes_[r.a], kind_a_of(head))};
        Emitted& e = add(OP_SPILL, r.type, r.type2);
        e.a = in_register(r.a);
        e.plain_b = arena();
        e.extra = {fold_word(static_cast<int>(r.w[1]), 0, kind_a_of(head)), r.w[2], r.w[3]};
        return;
      }
      case OP_MERGE: {
        before_slow(at);
        define(r.dst);
        int fold = static_cast<int>(r.w[1]), kind = kind_dst_of(head);
        Emitted& none = add(OP_MOVE, r.type2);
        none.dst = in_register(r.dst);
        none.a = {Operand::kNumber, -1, identity_bits(fold, r.type2)};
        Emitted& e = add(OP_MERGE, r.type, r.type2);
        e.dst = in_register(r.dst);
        e.plain_b = arena();
        e.extra = {fold_word(fold, 0, kind), r.w[2], r.w[3], r.w[4], r.w[5]};
        // One thread has each element: FINISH finds it among those that hold the identity.
        modes_[r.dst] = full_ & ~kind;
        return;
      }
      default: return scalar(at);
    }
  }

  static Word fold_word(int fold, int mode, int kind) {
    return static_cast<Word>(fold) | static_cast<Word>(mode) << 8 | static_cast<Word>(kind) << 16;
  }

  void load(int at) {
    const Read& r = code_[at];
    bool fast = fast_access(r, kind_dst_of(*r.w), r.type);
    if (!fast) {
      before_slow(at);
      Emitted& e = add(OP_LOAD, r.type, r.type2);
      e.dst = in_register(r.dst);
      if (r.a >= 0) e.a = slow(r.a);
      e.plain_b = r.a >= 0;
      e.access = &r;
      define(r.dst);
      return;
    }
    for (int t : r.terms) materialize(at, t);
    if (r.a >= 0)
      bring(at, r.a, r.type);
    save(at, false);
    Emitted& e = add(OP_LOAD | kFast, r.type, r.type2);
    e.plain_b = r.a >= 0;
    e.access = &r;
    AccessView a{r.access};
    bool alone = r.loop < 0 && r.in_body && !(r.w[1] & 2) && a.plain() && r.a < 0;
    e.staged = alone && distance_ == 1 && aligned(r) && r.type2 != T_I16;
    result_in_w(r.dst);
  }

  void store(int at) {
    const Read& r = code_[at];
    if (!fast_access(r, kind_dst_of(*r.w), r.type)) {
      before_slow(at);
      Emitted& e = add(OP_STORE, r.type, r.type2);
      e.a = slow(r.a);
      e.access = &r;
      return;
    }
    for (int t : r.terms) materialize(at, t);
    bring(at, r.a, r.type);
    add(OP_STORE | kFast, r.type, r.type2).access = &r;
  }

  void move(int at) {
    const Read& r = code_[at];
    if (numbered(r.a)) {
      Word number = numbers_[r.a];
      define(r.dst);
      known_[r.dst] = 1;
      numbers_[r.dst] = number;
      types_[r.dst] = r.type;
      return;
    }
    if (wide32(r.dst)) {
      bring(at, r.a, r.type);
      save(at, false);
      result_in_w(r.dst);
      return;
    }
    before_slow(at);
    Emitted& e = add(OP_MOVE, r.type);
    e.dst = in_register(r.dst);
    e.a = slow(r.a);
    define(r.dst);
  }

  bool fast_fold(const Read& r, int fold) const {
    int kind_a = kind_a_of(*r.w), kind = kind_dst_of(*r.w);
    bool covers = kind_a == full_ && narrow_kind(kind) && (kind_a & ~kind & kColumnBit);
    return r.type == T_F32 && fold <= FOLD_MIN && covers;
  }

  void reduce(int at) {
    const Read& r = code_[at];
    int fold = static_cast<int>(r.w[1]), mode = kind_a_of(*r.w) & ~kind_dst_of(*r.w);
    Word word = fold_word(fold, mode, kind_a_of(*r.w));
    if (fast_fold(r, fold)) {
      bring(at, r.a, r.type);
      Emitted& e = add(OP_REDUCE | kFast, r.type);
      e.dst = in_register(r.dst);
      e.extra = {word};
      define(r.dst);
      return;
    }
    before_slow(at);
    int type = accumulator_type(fold, r.type), parts = static_cast<int>(registers_.size());
    registers_.push_back({kItemsize[type] == 8 ? 8 : 4, registers_[r.dst].narrow, true});
    Emitted& none = add(OP_MOVE, type);
    none.dst = in_register(parts);
    none.a = {Operand::kNumber, -1, identity_bits(fold, type)};
    Emitted& some = add(OP_ACCUM, r.type, type);
    some.dst = in_register(parts);
    some.a = slow(r.a);
    some.extra = {word};
    Emitted& e = add(OP_FINISH, r.type, type);
    e.dst = in_register(r.dst);
    e.a = in_register(parts);
    e.extra = {word};
    define(r.dst);
  }

  void accumulate(int at) {
    const Read& r = code_[at];
    int fold = static_cast<int>(r.w[1]), mode = kind_a_of(*r.w) & ~kind_dst_of(*r.w);
    Word word = fold_word(fold, mode, kind_a_of(*r.w));
    modes_[r.dst] = mode;
    if (fast_fold(r, fold)) {
      bring(at, r.a, r.type);
      Emitted& e = add(OP_ACCUM | kFast, r.type, r.type2);
      e.dst = in_register(r.dst);
      e.extra = {word};
      return;
    }
    before_slow(at);
    Emitted& e = add(OP_ACCUM, r.type, r.type2);
    e.dst = in_register(r.dst);
    e.a = slow(r.a);
    e.extra = {word};
  }

  bool fast_scalar(const Read& r) const {
    if (!wide32(r.dst)) return false;
    for (int reg : {r.a, r.b, r.c})
      if (reg >= 0 && registers_[reg].size != 4) return false;
    if (r.op == OP_CAST)
      return r.type == T_F32 && (r.type2 == T_F32 || r.type2 == T_BF16 || r.type2 == T_F16);
    if (r.op == OP_SELECT) return kItemsize[r.type] != 8;
    if (has_fast_logic(r.op)) return r.type == T_BOOL;
    return has_fast_form(r.op) && r.type == T_F32;
  }

  // The second operand of a fast instruction.
  Operand beside(int reg) {
    if (reg == in_w_) return {Operand::kW, reg};
    return slow(reg);
  }

  void scalar(int at) {
    const Read& r = code_[at];
    if (r.op == OP_PARAM || r.op == OP_IOTA) {
      before_slow(at);
      Emitted& e = add(r.op, r.type);
      e.dst = in_register(r.dst);
      e.extra = {r.w[1]};
      define(r.dst);
      return;
    }
    if (!fast_scalar(r)) {
      before_slow(at);
      Emitted& e = add(r.op, r.type, r.type2);
      e.dst = in_register(r.dst);
      e.a = slow(r.a);
      if (r.b >= 0) e.b = slow(r.b);
      if (r.c >= 0) e.c = slow(r.c);
      define(r.dst);
      return;
    }
    int first = r.a, second = r.b;
    bool swapped = false;
    if (r.b >= 0 && r.c < 0 && in_w_ != r.a && (in_w_ == r.b || numbered(r.a)) && may_swap(r.op)) {
      std::swap(first, second);
      swapped = true;
    }
    int type_a = r.op == OP_SELECT ? T_BOOL : r.type;
    bring(at, first, type_a);
    save(at, false);
    Emitted e;
    e.op = r.op | kFast;
    e.type = r.type;
    e.type2 = r.op == OP_CAST ? r.type2 : swapped;
    if (second >= 0) e.b = beside(second);
    if (r.c >= 0) e.c = beside(r.c);
    emitted_.push_back(e);
    result_in_w(r.dst);
  }

  int arena() {
    if (arena_ < 0) arena_ = buffer(-1);
    return arena_;
  }

  int buffer(int of_program) {
    auto found = std::find(buffers_.begin(), buffers_.end(), of_program);
    if (found != buffers_.end()) return static_cast<int>(found - buffers_.begin());
    buffers_.push_back(of_program);
    if (buffers_.size() > 64) throw EncodeError("a kernel has more than 64 buffers");
    return static_cast<int>(buffers_.size()) - 1;
  }

  // Places of registers.

  void count(const Operand& o, bool fast) {
    if (o.kind != Operand::kRegister) return;
    ++(fast ? registers_[o.reg].fast_uses : registers_[o.reg].slow_uses);
  }

  void place() {
    for (const Emitted& e : emitted_) {
      bool fast = e.op & kFast || e.op == D_FETCH || e.op == D_KEEP;
      // A fold's result is narrow.
      for (const Operand* o : {&e.a, &e.b, &e.c, &e.dst}) count(*o, fast);
      if (e.access)
        for (int t : e.access->terms) ++registers_[t].slow_uses;
    }
    std::vector<int> files;
    for (int n = 0; n < static_cast<int>(registers_.size()); ++n) {
      const Register& r = registers_[n];
      if (r.fast_uses && !r.slow_uses && !r.narrow && r.size == 4) files.push_back(n);
    }
    std::stable_sort(files.begin(), files.end(), [&](int a, int b) {
      return registers_[a].fast_uses > registers_[b].fast_uses;
    });
    for (int n = 0; n < std::min<int>(kFiles, static_cast<int>(files.size())); ++n)
      registers_[files[n]].location = kInFile + n;
    int at = 0;
    for (Register& r : registers_) {
      if (r.location != kNowhere || !(r.fast_uses || r.slow_uses)) continue;
      r.location = kShared | (r.narrow ? kNarrow : 0) | at / 16;
      at += r.narrow ? narrow_bytes(r.size) : wide_bytes(groups_, r.size);
      if (at > kMostSharedBytes) throw EncodeError("the values of a kernel do not fit the device");
    }
    scratch_ = at;
    first_stage_ = at + kScratchBytes + kCoordinateBytes;
    choose_stages();
  }

  int staged_bytes(const Read& r) const {
    int size = kItemsize[program_.type(AccessView{r.access}.buffer())];
    return groups_ * (size == 2 ? 1 : 2) * kThreads * 16;
  }

  void choose_stages() {
    if (kernel_task_count() <= 1) return;
    int bytes = 0;
    for (const Emitted& e : emitted_) {
      if (!e.staged) continue;
      int size = staged_bytes(*e.access);
      if (first_stage_ + 2 * (bytes + size) > kSharedBytes) break;
      bytes += size;
      ++prefetches_;
    }
    if (!prefetches_) return;
    stage_bytes_ = bytes;
    stages_ = std::min(kMostStages, (kSharedBytes - first_stage_) / bytes);
  }

  int64_t kernel_task_count() const {
    int64_t n = 1;
    for (int d = 0; d < kernel_.dims(); ++d) n *= kernel_.tasks(d);
    return n;
  }

  // Writing.

  int location(const Operand& o) const {
    switch (o.kind) {
      case Operand::kW: return kInW;
      case Operand::kNumber: return kImmediate;
      case Operand::kRegister: return registers_[o.reg].location;
      default: return kNowhere;
    }
  }

  void write_access(const Read& r, std::vector<Word>& out) {
    AccessView a{r.access};
    int kind = r.op == OP_STORE || r.op == OP_LOAD ? kind_dst_of(*r.w) : full_;
    int row = kernel_.row(), column = kernel_.column();
    bool vector = distance_ == 1 && !narrow_kind(kind) && aligned(r);
    out.push_back(static_cast<Word>(buffer(a.buffer())) |
                  static_cast<Word>(program_.type(a.buffer())) << 16 |
                  static_cast<Word>(a.terms()) << 24 | static_cast<Word>(a.masks()) << 32 |
                  static_cast<Word>(kind) << 40 | static_cast<Word>(vector) << 48);
    out.push_back(static_cast<Word>(a.offset()));
    out.push_back(kind & kRowBit ? static_cast<Word>(a.stride(row)) : 0);
    out.push_back(kind & kColumnBit ? static_cast<Word>(a.stride(column)) : 0);
    for (int d = 0; d < kernel_.dims(); ++d) out.push_back(static_cast<Word>(a.stride(d)));
    for (int n = 0; n < a.terms(); ++n) {
      TermView t{a.term(n)};
      out.push_back(static_cast<Word>(registers_[t.reg()].location) |
                    static_cast<Word>(t.type()) << 16 | static_cast<Word>(t.checked()) << 24);
      out.push_back(static_cast<Word>(t.stride()));
      out.push_back(static_cast<Word>(t.size()));
    }
    out.insert(out.end(), a.mask(0), a.mask(0) + 3 * a.masks());
  }

  DeviceKernel write() {
    std::vector<Word> copies, code;
    int offset = 0, left = prefetches_, body = 0;
    std::vector<size_t> loops;
    for (const Emitted& e : emitted_) {
      bool from_stage = e.staged && left > 0;
      if (e.op == OP_ENDLOOP) {
        size_t loop = loops.back();
        loops.pop_back();
        Word back = code.size() + 1 - loop;
        code.push_back(OP_ENDLOOP);
        code.push_back(back);
        code[loop + 1] = code.size() - loop;
        continue;
      }
      int dst = e.op == OP_LOOP ? e.dst.reg : location(e.dst), b = location(e.b);
      bool several = e.op & kFast && (e.op & ~kFast) >= kFirstScalar;
      if (several) dst = location(e.c);
      if (e.plain_b >= 0) b = e.plain_b;
      code.push_back(static_cast<Word>(e.op) | static_cast<Word>(e.type) << 8 |
                     static_cast<Word>(e.type2) << 12 | static_cast<Word>(dst) << 16 |
                     static_cast<Word>(location(e.a)) << 32 | static_cast<Word>(b) << 48);
      if (e.op == OP_LOOP) loops.push_back(code.size());
      code.insert(code.end(), e.extra.begin(), e.extra.end());
      if (!several && (e.op == OP_FMA || e.op == OP_SELECT))
        code.push_back(static_cast<Word>(location(e.c)));
      if (e.op == (OP_LOAD | kFast)) code.push_back(from_stage ? 1 + offset : 0);
      if (from_stage) {
        copies.push_back(static_cast<Word>(offset) | static_cast<Word>(stage_bytes_) << 32);
        write_access(*e.access, copies);
        offset += staged_bytes(*e.access);
        --left;
      }
      if (e.access) write_access(*e.access, code);
      for (const Operand* o : {&e.a, &e.b, &e.c})
        if (o->kind == Operand::kNumber) code.push_back(o->number);
      if (e.op == OP_DONE && !body) body = static_cast<int>(code.size());
    }
    return assemble(copies, code, body);
  }

  DeviceKernel assemble(const std::vector<Word>& copies, const std::vector<Word>& code, int body) {
    DeviceKernel own;
    own.tasks = kernel_task_count();
    if (own.tasks >> 31) throw EncodeError("a kernel has too many tasks for the device");
    own.buffers = buffers_;
    std::vector<Word>& out = own.block;
    int head = kBlockWords + 2 * static_cast<int>(buffers_.size()) + program_.params();
    out.assign(head, 0);
    out[2] = buffers_.size() | static_cast<Word>(head) << 16 |
             static_cast<Word>(program_.params()) << 32 |
             static_cast<Word>(kernel_.number()) << 48;
    for (size_t b = 0; b < buffers_.size(); ++b)
      if (buffers_[b] >= 0)
        out[kBlockWords + 2 * b + 1] = static_cast<Word>(program_.extent(buffers_[b])) |
                                       static_cast<Word>(buffers_[b]) << kExtentBits;
    out.push_back(static_cast<Word>(kernel_.dims()) | static_cast<Word>(kernel_.row()) << 8 |
                  static_cast<Word>(kernel_.column()) << 16 |
                  static_cast<Word>(prefetches_) << 24 | static_cast<Word>(stages_) << 32 |
                  static_cast<Word>(groups_) << 40);
    out.push_back(static_cast<Word>(slots_) | static_cast<Word>(distance_) << 16 |
                  static_cast<Word>(kernel_.rows()) << 32 |
                  static_cast<Word>(std::min<int64_t>(kernel_.columns(), 65535)) << 48);
    out.push_back(static_cast<Word>(own.tasks));
    size_t code_at = out.size() + 2 + 3 * kernel_.dims() + copies.size();
    out.push_back(code_at | (code_at + body) << 32);
    out.push_back(static_cast<Word>(first_stage_) | static_cast<Word>(scratch_) << 32);
    for (int d = 0; d < kernel_.dims(); ++d) {
      out.push_back(static_cast<Word>(kernel_.size(d)));
      out.push_back(static_cast<Word>(kernel_.span(d)));
      out.push_back(static_cast<Word>(kernel_.tasks(d)));
    }
    out.insert(out.end(), copies.begin(), copies.end());
    out.insert(out.end(), code.begin(), code.end());
    own.shared_bytes = block_bytes(static_cast<int>(out.size())) + first_stage_ +
                       stages_ * stage_bytes_;
    if (own.shared_bytes > kMostSharedBytes)
      throw EncodeError("the values of a kernel do not fit the device");
    return own;
  }

  const ProgramView& program_;
  const KernelView& kernel_;
  std::vector<Read> code_;
  int body_ = 0, full_ = 0;
  bool folded_ = false;
  int slots_ = 1, groups_ = 1, distance_ = 1;
  std::vector<Register> registers_;
  int modes_[256] = {};  // of accumulators

  std::vector<Emitted> emitted_;
  int in_w_ = -1;
  bool saved_ = true;
  std::vector<char> known_, stored_;  // registers that hold numbers; of these, those in memory too
  std::vector<Word> numbers_;
  std::vector<int> types_, buffers_;
  int arena_ = -1;

  int scratch_ = 0, first_stage_ = 0, prefetches_ = 0, stages_ = 0, stage_bytes_ = 0;
};

}  // namespace

std::vector<DeviceKernel> lower_device(std::vector<Word>& words) {
  ProgramView program{words.data()};
  std::vector<DeviceKernel> kernels;
  for (const Word* w = program.steps(); op_of(*w) != OP_END;) {
    switch (op_of(*w)) {
      case OP_BARRIER: w += 1; break;  // launches of a stream are in order
      case OP_KERNEL: {
        KernelView kernel{w};
        kernels.push_back(Lowering(program, kernel).lower());
        w += kernel.words();
        break;
      }
      default: throw EncodeError("the device has no branches");
    }
  }
  for (DeviceKernel& kernel : kernels) {
    size_t n = kernel.block.size();
    if (n > kMostWords) throw EncodeError("a kernel is too long for the device");
    if (n <= kLaunchWords) continue;
    kernel.arena_offset = program.arena_bytes();
    words[2] += (n * sizeof(Word) + 63) / 64 * 64;
  }
  return kernels;
}

}  // namespace vtc
