#include "device_read.h"

#include "../cuda/layout.h"

namespace vtc {
namespace {

bool compares(int op) { return (op >= OP_EQ && op <= OP_GE) || op == OP_ISNAN || op == OP_ISINF; }

bool binary(int op) {
  return (op >= OP_ADD && op <= OP_MAXIMUM) || op == OP_ATAN2 || (op >= OP_EQ && op <= OP_XOR) ||
         op == OP_SHL || op == OP_SHR;
}

bool finds_places(const DeviceInstruction& r) {
  bool fold = r.op == OP_REDUCE || r.op == OP_INIT || r.op == OP_ACCUM || r.op == OP_FINISH ||
              r.op == OP_SPILL || r.op == OP_MERGE;
  return fold && has_places(static_cast<int64_t>(r.w[1]));
}

void set_operands(DeviceInstruction& r) {
  Word head = *r.w;
  switch (r.op) {
    case OP_DONE: case OP_LOOP: case OP_ENDLOOP: return;
    case OP_CONST: case OP_PARAM: case OP_IOTA: r.dst = dst_of(head); return;
    case OP_MOVE: case OP_CAST: r.dst = dst_of(head), r.a = a_of(head); return;
    case OP_LOAD:
      r.dst = dst_of(head);
      if (r.w[1] & 1) r.a = a_of(head);
      r.access = r.w + 2;
      return;
    case OP_STORE: r.a = a_of(head), r.access = r.w + 2; return;
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
  // What is written there is written before anything reads it.
  bool reads_places = r.op == OP_ACCUM || r.op == OP_FINISH || r.op == OP_SPILL;
  if (reads_places && finds_places(r)) r.b = b_of(head);
}

}  // namespace

void DeviceCode::read(const KernelView& kernel) {
  code.clear();
  registers.fill({});
  full = 0, folded = places = false, looped = 0;
  read_code(kernel.prologue(), false);
  body = static_cast<int>(code.size());
  read_code(kernel.body(), true);
  classify(kernel);
  find_live();
  bool fused = fuse(), moved = store_early();
  if (fused || moved) find_live();
}

bool DeviceCode::folds_columns(const DeviceInstruction& r) const {
  int kind = kind_dst_of(r.head()), from = kind_a_of(r.head());
  return r.type == T_F32 && static_cast<int>(r.w[1]) <= FOLD_MIN && from == full &&
         narrow_kind(kind) && from & ~kind & kColumnBit;
}

void DeviceCode::read_code(const Word* w, bool in_body) {
  std::array<int, kMaxDims + 1> open;
  int depth = 0;
  for (;; w += op_of(*w) == OP_LOOP ? length_of(*w) : words_of(w)) {
    DeviceInstruction& r = code.emplace_back(
        DeviceInstruction{w, op_of(*w), type_of(*w), type2_of(*w)});
    r.in_body = in_body;
    r.loop = depth ? open[depth - 1] : -1;
    if (r.op == OP_LOOP) {
      open[depth++] = static_cast<int>(code.size()) - 1;
      looped |= 1u << dst_of(*w);
    }
    if (r.op == OP_ENDLOOP) --depth;
    set_operands(r);
    if (r.op == OP_DONE) return;
  }
}

// What a register holds is known by its instructions.
void DeviceCode::classify(const KernelView& kernel) {
  auto note = [&](int reg, int kind, int type) {
    if (reg < 0) return;
    DeviceRegister& r = registers[reg];
    if (!narrow_kind(kind)) r.narrow = false;
    if (kItemsize[type] == 8) r.size = 8;
  };
  if (kernel.row() != kNoDim) full |= kRowBit;
  if (kernel.column() != kNoDim) full |= kColumnBit;
  for (const DeviceInstruction& r : code) {
    Word head = *r.w;
    switch (r.op) {
      case OP_IOTA: note(r.dst, kind_dst_of(head), T_I64); break;
      case OP_CAST:
        note(r.dst, kind_dst_of(head), kCompute[r.type2]);
        note(r.a, kind_a_of(head), r.type);
        break;
      case OP_INIT: case OP_MERGE:
        note(r.dst, kind_dst_of(head), r.type2);
        if (finds_places(r)) note(b_of(head), kind_dst_of(head), T_I64);
        break;
      case OP_ACCUM:
        note(r.dst, kind_dst_of(head), r.type2);
        note(r.a, kind_a_of(head), r.type);
        break;
      case OP_SPILL: note(r.a, kind_a_of(head), r.type2); break;
      case OP_FINISH:
        note(r.a, kind_dst_of(head), r.type2);
        note(r.dst, kind_dst_of(head), finds_places(r) ? T_I64 : r.type);
        break;
      case OP_REDUCE: note(r.dst, kind_dst_of(head), finds_places(r) ? T_I64 : r.type); break;
      case OP_DONE: case OP_LOOP: case OP_ENDLOOP: case OP_STORE: break;
      default: note(r.dst, kind_dst_of(head), compares(r.op) ? T_BOOL : r.type);
    }
    places |= finds_places(r);
    if (r.op == OP_REDUCE || r.op == OP_ACCUM)
      folded |= (kind_a_of(head) & ~kind_dst_of(head) & kColumnBit) != 0;
  }
  slots = static_cast<int>(device_slots(kernel.columns(), folded));
}

// Backward, until the passes of loops, and the tasks of the body, know what the next ones read.
void DeviceCode::find_live() {
  thread_local std::vector<RegisterSet> at_start;  // of a loop, by its instruction
  at_start.assign(code.size(), {});
  RegisterSet of_body;
  for (bool changed = true; changed;) {
    changed = false;
    RegisterSet live = of_body;
    for (int n = static_cast<int>(code.size()) - 1; n >= 0; --n) {
      DeviceInstruction& r = code[n];
      if (n == body - 1) live = of_body;
      if (r.op == OP_ENDLOOP) live.add(at_start[r.loop]);
      r.live = live;
      if (r.dst >= 0 && r.op != OP_ACCUM) live.remove(r.dst);
      r.each_read([&](int reg) { live.add(reg); });
      if (r.op == OP_LOOP && !(at_start[n] == live)) {
        at_start[n].add(live);
        changed = true;
      }
      if (n == body) {
        RegisterSet more = of_body;
        more.add(live);
        changed |= !(more == of_body);
        of_body = more;
      }
    }
  }
}

}  // namespace vtc
