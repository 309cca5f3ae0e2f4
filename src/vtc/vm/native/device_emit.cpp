#include "device_emit.h"

#include <limits>
#include <utility>

namespace vtc {
namespace {

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

constexpr uint32_t kOne = 0x3f800000;  // 1.0f

bool is_logic(int op) { return op == OP_AND || op == OP_OR || op == OP_NOT; }

int folded_axes(const DeviceInstruction& r) {
  return kind_a_of(r.head()) & ~kind_dst_of(r.head());
}

}  // namespace

int device_operator(int op) {
  switch (op) {
    case OP_ADD: return D_ADD;
    case OP_SUB: return D_SUB;
    case OP_MUL: return D_MUL;
    case OP_DIV: return D_DIV;
    case OP_MINIMUM: return D_MINIMUM;
    case OP_MAXIMUM: return D_MAXIMUM;
    case OP_EQ: return D_EQ;
    case OP_NE: return D_NE;
    case OP_LT: return D_LT;
    case OP_LE: return D_LE;
    case OP_GT: return D_GT;
    case OP_GE: return D_GE;
    case OP_AND: return D_AND;
    case OP_OR: return D_OR;
    case OP_SELECT: return D_SELECT;
    case OP_FMA: return D_FMA;
    case OP_NEG: return D_NEG;
    case OP_ABS: return D_ABS;
    case OP_FLOOR: return D_FLOOR;
    case OP_EXP: return D_EXP;
    case OP_EXP2: return D_EXP2;
    case OP_LOG: return D_LOG;
    case OP_SQRT: return D_SQRT;
    case OP_RSQRT: return D_RSQRT;
    case OP_TANH: return D_TANH;
    case OP_ERF: return D_ERF;
    case OP_SIGMOID: return D_SIGMOID;
    case OP_RECIPROCAL: return D_RECIPROCAL;
    case OP_ISNAN: return D_ISNAN;
    case OP_NOT: return D_NOT;
    default: return -1;
  }
}

int swapped(int device_op) {
  switch (device_op) {
    case D_SUB: return D_RSUB;
    case D_DIV: return D_RDIV;
    case D_LT: return D_GT;
    case D_LE: return D_GE;
    case D_GT: return D_LT;
    case D_GE: return D_LE;
    default: return device_op;
  }
}

// Division by a power of two is multiplication by its reciprocal, which is exact.
int DeviceEmitter::without_division(int op, Operand& by) {
  if (op != D_DIV || by.location != kImmediate) return op;
  uint32_t bits = static_cast<uint32_t>(by.number), exponent = bits >> 23 & 0xff;
  if (bits & 0x7fffff || exponent < 2 || exponent > 252) return op;
  by.number = (bits & 0x80000000u) | (254 - exponent) << 23;
  return D_MUL;
}

void DeviceEmitter::emit() {
  int64_t slots = kernel_.rows() * read_.slots;
  if (slots > kSlots) throw EncodeError("a tile of this kernel does not fit the device");
  held = held_slots(static_cast<int>(slots));
  choose_distance();
  int count = static_cast<int>(read_.code.size());
  for (int at = 0; at < count; ++at) {
    if (at == read_.body) {
      out_.body = out_.code.size();
      out_.prologue_bytes = out_.shared_bytes;
    }
    instruction(at);
    free_homes(at);
  }
}

void DeviceEmitter::instruction(int at) {
  const DeviceInstruction& r = read_.code[at];
  at_ = at;
  switch (r.op) {
    case OP_DONE:
      flush(at);
      return pair(D_DONE, 0, 0, 0, 0, 0);
    case OP_LOOP: case OP_ENDLOOP: return loop(at);
    case OP_CONST: return set_number(r.dst, r.type, r.w[1]);
    case OP_LOAD: return load(at);
    case OP_STORE: return store(at);
    case OP_MOVE: return move(at);
    case OP_REDUCE: return reduce(at);
    case OP_ACCUM: return accumulate(at);
    case OP_INIT: return begin_fold(at);
    case OP_FINISH: return finish(at);
    case OP_SPILL: return spill(at);
    case OP_MERGE: return merge(at);
    case FUSED_NOTHING: return;
    case FUSED_SILU: return unary(at, D_SILU);
    case FUSED_GELU: return unary(at, D_GELU);
    case FUSED_GELU_TANH: return unary(at, D_GELU_TANH);
    case FUSED_SQUARES: return reduce(at);
    case OP_PARAM: case OP_IOTA:
      define(r.dst);
      slow(r.op, r.type, 0, home(r.dst), kNowhere, kNowhere);
      return push(r.w[1]);
    default: return scalar(at);
  }
}

void DeviceEmitter::loop(int at) {
  const DeviceInstruction& r = read_.code[at];
  flush(at);
  if (r.op == OP_LOOP) {
    pair(D_LOOP, 0, 0, dst_of(r.head()), 0, 0, out_.pool.size());
    out_.pool_arguments.push_back(out_.code.size() - 1);
    loops_[depth_++] = out_.pool.size();
    push(r.w[1]);
    push(0);
    push(out_.code.size());
    return;
  }
  size_t own = loops_[--depth_];
  pair(D_ENDLOOP, 0, 0, dst_of(*read_.code[r.loop].w), 0, 0, own);
  out_.pool_arguments.push_back(out_.code.size() - 1);
  out_.pool[own + 1] = out_.code.size();
  out_.code_targets.push_back(own + 1);
  out_.code_targets.push_back(own + 2);
}

// Memory.

bool DeviceEmitter::fast_access(const DeviceInstruction& r) const {
  if (narrow_kind(kind_dst_of(r.head())) || kItemsize[r.type] == 8) return false;
  AccessView a{r.access};
  for (int n = 0; n < a.terms(); ++n)
    if (!read_.registers[TermView{a.term(n)}.reg()].narrow) return false;
  return true;
}

void DeviceEmitter::choose_distance() {
  int64_t with = 0, without = 0;
  for (const DeviceInstruction& r : read_.code) {
    if (!r.access || !fast_access(r)) continue;
    AccessView a{r.access};
    if (a.stride(kernel_.column()) != 1) continue;
    (aligned(r) || side_by_side(r) ? with : without) += kItemsize[program_.type(a.buffer())];
  }
  distance = without > with ? read_.slots : 1;
}

bool DeviceEmitter::copyable(const DeviceInstruction& r) const {
  return r.loop < 0 && r.in_body && !(r.w[1] & 2) && AccessView{r.access}.plain() && r.a < 0 &&
         distance == 1 && aligned(r) && r.type2 != T_I16;
}

void DeviceEmitter::put_terms_home(int at, AccessView view) {
  for (int n = 0; n < view.terms(); ++n) {
    int reg = TermView{view.term(n)}.reg();
    materialize(at, reg);
    ensure_home(reg);
  }
}

void DeviceEmitter::load(int at) {
  const DeviceInstruction& r = read_.code[at];
  AccessView view{r.access};
  put_terms_home(at, view);
  int memory = program_.type(view.buffer());
  if (!fast_access(r)) {
    if (r.a >= 0) ensure_home(r.a);
    int from = access(r), other = r.a < 0 ? kNowhere : number(r.a) ? kImmediate : home(r.a);
    define(r.dst);
    slow(OP_LOAD, r.type, 0, home(r.dst), from, r.a >= 0);
    if (r.a < 0) return;
    push(static_cast<Word>(other));
    return push_number(other, numbers_[r.a]);
  }
  if (r.a >= 0) {
    to_a(at, r.a, r.type);
    lose_a(at);
    pair(D_LOAD_A, r.type, memory, 0, access(r), 1);
    return result_in_a(r.dst);
  }
  // Into B where A holds what comes later, and B can be had for less.
  bool a_wanted = a_.reg >= 0 && a_.reg != r.dst && wanted(at, a_.reg, false);
  bool b_wanted = b_.reg >= 0 && b_.reg != r.dst && b_.reg != a_.reg && wanted(at, b_.reg, false);
  bool in_b = a_wanted && !(b_wanted && !b_.saved && a_.saved);
  if (in_b && b_wanted) save(at, b_, false);
  if (!in_b && a_wanted && a_.reg != b_.reg) save(at, a_, false);
  size_t word = out_.code.size();
  int number = access(r);
  pair(in_b ? D_LOAD_B : D_LOAD_A, r.type, memory, 0, number, 0);
  if (copyable(r)) out_.copyable.push_back({word, number, memory});
  define(r.dst);
  (in_b ? b_ : a_) = {r.dst, false};
}

void DeviceEmitter::store(int at) {
  const DeviceInstruction& r = read_.code[at];
  AccessView view{r.access};
  put_terms_home(at, view);
  if (!fast_access(r)) {
    ensure_home(r.a);
    int to = access(r), from = number(r.a) ? kImmediate : home(r.a);
    slow(OP_STORE, r.type, 0, from, to, kNowhere);
    return push_number(from, numbers_[r.a]);
  }
  to_a(at, r.a, r.type);
  pair(D_STORE, r.type, program_.type(view.buffer()), 0, access(r), 0);
}

void DeviceEmitter::move(int at) {
  const DeviceInstruction& r = read_.code[at];
  if (number(r.a)) return set_number(r.dst, r.type, numbers_[r.a]);
  if (read_.wide32(r.dst) && read_.registers[r.a].size == 4) {
    to_a(at, r.a, r.type);
    lose_a(at);
    return result_in_a(r.dst);
  }
  ensure_home(r.a);
  int from = home(r.a);
  define(r.dst);
  slow(OP_MOVE, r.type, 0, home(r.dst), from, kNowhere);
}

// Folds.

// An accumulator holds the identity, and no place.
void DeviceEmitter::set_identity(int fold, int type, int accumulator, int places) {
  slow(OP_MOVE, type, 0, accumulator, kImmediate, kNowhere);
  push(identity_bits(fold, type));
  if (!has_places(fold)) return;
  slow(OP_MOVE, T_I64, 0, places, kImmediate, kNowhere);
  push(~Word{0});
}

// Where the places of an accumulator lie.
int DeviceEmitter::places_of(const DeviceInstruction& r) {
  return has_places(static_cast<int64_t>(r.w[1])) ? home(b_of(r.head())) : kNowhere;
}

// The strides of places behind a fold.
void DeviceEmitter::push_strides(const DeviceInstruction& r) {
  if (!has_places(static_cast<int64_t>(r.w[1]))) return;
  for (int d = 0; d < kernel_.dims(); ++d) push(r.w[2 + d]);
}

void DeviceEmitter::begin_fold(int at) {
  const DeviceInstruction& r = read_.code[at];
  define(r.dst);
  set_identity(static_cast<int>(r.w[1]), r.type2, home(r.dst), places_of(r));
}

void DeviceEmitter::reduce(int at) {
  const DeviceInstruction& r = read_.code[at];
  int fold = static_cast<int>(r.w[1]), mode = folded_axes(r);
  if (read_.folds_columns(r)) {
    to_a(at, r.a, r.type);
    if (r.op == FUSED_SQUARES) fold = kFoldSquares;
    define(r.dst);
    return pair(D_REDUCE, r.type, mode, home(r.dst), 0, 0,
                static_cast<Word>(fold) | static_cast<Word>(kOne) << 32);
  }
  Word word = fold_word(fold, mode, kind_a_of(r.head()));
  ensure_home(r.a);
  bool narrow = read_.registers[r.dst].narrow;
  int type = accumulator_type(fold, r.type), parts = fresh(kItemsize[type] == 8 ? 8 : 4, narrow);
  int places = has_places(fold) ? fresh(8, narrow) : kNowhere;
  set_identity(fold, type, parts, places);
  int from = number(r.a) ? kImmediate : home(r.a);
  slow(OP_ACCUM, r.type, type, parts, from, places);
  push(word);
  push_number(from, numbers_[r.a]);
  push_strides(r);
  define(r.dst);
  slow(OP_FINISH, r.type, type, home(r.dst), parts, places);
  push(word);
}

void DeviceEmitter::accumulate(int at) {
  const DeviceInstruction& r = read_.code[at];
  int fold = static_cast<int>(r.w[1]), mode = folded_axes(r);
  modes_[r.dst] = static_cast<uint8_t>(mode);
  if (read_.folds_columns(r)) {
    to_a(at, r.a, r.type);
    return pair(D_ACCUM, r.type, 0, home(r.dst), 0, 0, static_cast<Word>(fold));
  }
  ensure_home(r.a);
  ensure_home(r.dst);
  int from = number(r.a) ? kImmediate : home(r.a);
  slow(OP_ACCUM, r.type, r.type2, home(r.dst), from, places_of(r));
  push(fold_word(fold, mode, kind_a_of(r.head())));
  push_number(from, numbers_[r.a]);
  push_strides(r);
}

void DeviceEmitter::finish(int at) {
  const DeviceInstruction& r = read_.code[at];
  int from = home(r.a);
  define(r.dst);
  slow(OP_FINISH, r.type, r.type2, home(r.dst), from, places_of(r));
  push(fold_word(static_cast<int>(r.w[1]), modes_[r.a], kind_dst_of(r.head())));
}

void DeviceEmitter::spill(int at) {
  const DeviceInstruction& r = read_.code[at];
  int fold = static_cast<int>(r.w[1]), kind = kind_a_of(r.head()), own = home(r.a);
  slow(OP_FINISH, r.type2, r.type2, kNowhere, own, places_of(r));
  push(fold_word(fold, modes_[r.a], kind));
  slow(OP_SPILL, r.type, r.type2, places_of(r), own, buffer(-1));
  push(fold_word(fold, 0, kind));
  push(r.w[2]);
  push(r.w[3]);
}

void DeviceEmitter::merge(int at) {
  const DeviceInstruction& r = read_.code[at];
  int fold = static_cast<int>(r.w[1]), kind = kind_dst_of(r.head());
  define(r.dst);
  set_identity(fold, r.type2, home(r.dst), places_of(r));
  slow(OP_MERGE, r.type, r.type2, home(r.dst), places_of(r), buffer(-1));
  push(fold_word(fold, 0, kind));
  for (int n = 2; n < 6; ++n) push(r.w[n]);
  // One thread has each element: FINISH finds it among those that hold the identity.
  modes_[r.dst] = static_cast<uint8_t>(read_.full & ~kind);
}

// Scalars.

bool DeviceEmitter::fast_scalar(const DeviceInstruction& r) const {
  if (!read_.wide32(r.dst)) return false;
  for (int reg : {r.a, r.b, r.c})
    if (reg >= 0 && read_.registers[reg].size != 4) return false;
  if (r.op == OP_CAST)
    return r.type == T_F32 && (r.type2 == T_F32 || r.type2 == T_BF16 || r.type2 == T_F16);
  if (r.op == OP_SELECT) return kItemsize[r.type] != 8;
  if (is_logic(r.op)) return r.type == T_BOOL;
  return device_operator(r.op) >= 0 && r.type == T_F32;
}

void DeviceEmitter::scalar(int at) {
  const DeviceInstruction& r = read_.code[at];
  if (fast_scalar(r)) {
    if (r.c >= 0) return ternary(at, device_operator(r.op));
    if (r.b >= 0) return binary(at, device_operator(r.op));
    return unary(at, r.op != OP_CAST      ? device_operator(r.op)
                     : r.type2 == T_BF16 ? D_BF16
                     : r.type2 == T_F16  ? D_F16
                                         : -1);
  }
  if (narrow_scalar(at)) return;
  int places[3] = {kNowhere, kNowhere, kNowhere}, n = 0;
  Word numbers[3] = {};
  for (int reg : {r.a, r.b, r.c}) {
    if (reg >= 0) {
      ensure_home(reg);
      places[n] = number(reg) ? kImmediate : home(reg);
      numbers[n] = numbers_[reg];
    }
    ++n;
  }
  define(r.dst);
  slow(r.op, r.type, r.type2, home(r.dst), places[0], places[1]);
  if (r.op == OP_SELECT || r.op == OP_FMA) push(static_cast<Word>(places[2]));
  for (int i = 0; i < 3; ++i) push_number(places[i], numbers[i]);
}

// f32 on narrow values and at most one number.
bool DeviceEmitter::narrow_scalar(int at) {
  const DeviceInstruction& r = read_.code[at];
  int op = device_operator(r.op);
  bool fits = op >= 0 && r.c < 0 && r.type == T_F32 && r.op != OP_CAST &&
              read_.registers[r.dst].narrow && read_.registers[r.dst].size == 4;
  if (!fits || (number(r.a) && (r.b < 0 || number(r.b)))) return false;
  Operand a = operand(r.a, T_F32), b = r.b < 0 ? Operand() : operand(r.b, T_F32);
  op = without_division(op, b);
  if (joins_previous(at, op, b)) return true;
  define(r.dst);
  pair(D_NARROW, op & 15, op >> 4, home(r.dst), a.location, b.location,
       a.location == kImmediate ? a.number : b.number);
  return true;
}

// A fold times a number, and 1 / sqrt(x + number), are one instruction, if nothing else reads what lies
// between.
bool DeviceEmitter::joins_previous(int at, int op, const Operand& b) {
  const DeviceInstruction& r = read_.code[at];
  size_t size = out_.code.size();
  if (at == read_.body || size < 2 || (r.live.has(r.a) && r.a != r.dst) || number(r.a)) return false;
  Word& head = out_.code[size - 2];
  Word& argument = out_.code[size - 1];
  int before = static_cast<int>(head & 0xff);
  if (static_cast<int>(head >> 16 & 0xffff) != home(r.a)) return false;
  bool scales = op == D_MUL && b.location == kImmediate && before == D_REDUCE &&
                argument >> 32 == kOne;
  bool root = op == D_RSQRT && before == D_NARROW && (head >> 8 & 0xff) == D_ADD &&
              head >> 48 == kImmediate;
  if (!scales && !root) return false;
  if (scales) argument = (argument & 0xffffffff) | b.number << 32;
  if (root) head = (head & ~Word{0xff00}) | static_cast<Word>(D_RSQRT_SUM) << 8;
  define(r.dst);
  head = (head & ~(Word{0xffff} << 16)) | static_cast<Word>(home(r.dst)) << 16;
  return true;
}

// op -1: A as it is.
void DeviceEmitter::unary(int at, int op) {
  const DeviceInstruction& r = read_.code[at];
  to_a(at, r.a, r.type);
  lose_a(at);
  if (op >= 0) pair(op, 0, 0, 0, 0, 0);
  result_in_a(r.dst);
}

void DeviceEmitter::binary(int at, int op) {
  const DeviceInstruction& r = read_.code[at];
  int first = r.a, second = r.b;
  bool turn = scalar_value(first) ? !scalar_value(second)
                                  : !scalar_value(second) && a_.reg != first &&
                                        (a_.reg == second || b_.reg == first);
  if (turn) {
    std::swap(first, second);
    op = swapped(op);
  }
  if (scalar_value(second)) {
    to_a(at, first, r.type);
    lose_a(at);
    Operand s = operand(second, r.type);
    op = without_division(op, s);
    pair(op + kScalarForm, 0, 0, 0, s.location, 0, s.number);
  } else if (first == second && op == D_MUL) {
    to_a(at, first, r.type);
    lose_a(at);
    pair(D_SQUARE, 0, 0, 0, 0, 0);
  } else {
    to_a(at, first, r.type, b_.reg == second);
    to_b(at, second, r.type);
    lose_a(at);
    pair(op, 0, 0, 0, 0, 0);
  }
  result_in_a(r.dst);
}

// A = op(A, B, a third value, which is in shared memory or a scalar).
void DeviceEmitter::ternary(int at, int op) {
  const DeviceInstruction& r = read_.code[at];
  if (r.op == OP_SELECT && a_.reg >= 0 && a_.reg != r.a && (a_.reg == r.b || a_.reg == r.c) &&
      r.b != r.c && !scalar_value(r.b) && !scalar_value(r.c) && !number(r.a))
    return choose(at);
  int type_a = r.op == OP_SELECT ? T_BOOL : r.type;
  if (!scalar_value(r.c)) ensure_home(r.c);
  if (a_.reg == r.b && r.a != r.b) to_b(at, r.b, r.type);
  to_a(at, r.a, type_a, b_.reg == r.b);
  to_b(at, r.b, r.type);
  lose_a(at);
  Operand c = operand(r.c, r.type);
  pair(op, 0, 0, 0, c.location, 0, c.number);
  result_in_a(r.dst);
}

// SELECT of A, which is one of the two, and B, by a condition that is in shared memory.
void DeviceEmitter::choose(int at) {
  const DeviceInstruction& r = read_.code[at];
  bool first = a_.reg == r.b;
  ensure_home(r.a);
  to_b(at, first ? r.c : r.b, r.type);
  lose_a(at);
  pair(first ? D_CHOOSE_A : D_CHOOSE_B, 0, 0, 0, home(r.a), 0);
  result_in_a(r.dst);
}

}  // namespace vtc
