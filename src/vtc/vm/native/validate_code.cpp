// The code of a kernel: every instruction's length, registers and addresses.
//
// A register has one kind and one element size throughout a kernel. One that a load or a bind may
// point to a buffer is written by nothing else, and in every loop (tasks are one) is written before
// it is read, so that what it points to is as large as what is read.

#include "validate_code.h"

#include <algorithm>

namespace vtc {

CodeChecker::CodeChecker(const ProgramView& program, const KernelView& kernel)
    : p_(program), k_(kernel), table_(table()), registers_(kernel.registers()) {
  for (int d = 0; d < k_.dims(); ++d) tasks_ *= k_.tasks(d);
}

void CodeChecker::run() {
  code(k_.prologue() - k_.w, k_.body() - k_.w);
  require(active_.empty(), "a loop without an end");
  int64_t body = k_.body() - k_.w;
  code(body, k_.words());
  require(active_.empty(), "a loop without an end");
  loops_.push_back({-1, body - 1, 0, k_.words()});
  for (const Register& r : registers_) check_pointing(r);
}

int64_t CodeChecker::extent(int dim) const {
  if (dim == kNoDim) return 1;
  int64_t whole = std::min(k_.span(dim), k_.size(dim));
  for (const Loop& l : active_)
    if (l.dim == dim) return std::min(l.step, whole);
  return whole;
}

bool CodeChecker::dead() const {
  return std::any_of(active_.begin(), active_.end(),
                     [&](const Loop& l) { return k_.size(l.dim) == 0; });
}

CodeChecker::Register& CodeChecker::reg(int number, int kind, int size, bool write) {
  require(number < static_cast<int>(registers_.size()), "number of a register");
  Register& r = registers_[number];
  if (r.kind < 0) r.kind = kind, r.size = size;
  require(r.kind == kind && r.size == size, "a register of two shapes");
  int64_t n = (kind & kRowBit ? rows() : 1) * (kind & kColumnBit ? columns() : 1);
  require(rows() <= kMostElements / std::max<int64_t>(columns(), 1), "size of a tile");
  int64_t bytes = static_cast<int64_t>(k_.reg(number) >> 32);
  require(n <= bytes / size, "a tile larger than its register");
  require(write || !r.uses.empty(), "a register is read before it is written");
  r.uses.push_back({at_, kind & kRowBit ? rows() : 1, kind & kColumnBit ? columns() : 1, write});
  return r;
}

void CodeChecker::write(int number, int kind, int size) {
  Register& r = reg(number, kind, size, true);
  if (number != bound_) r.plain_write = true;
}

void CodeChecker::check_pointing(const Register& r) const {
  if (!r.points) return;
  require(!r.plain_write, "an instruction writes where a register points");
  for (size_t u = 0; u < r.uses.size(); ++u) {
    if (r.uses[u].write) continue;
    size_t w = u;
    while (!r.uses[w].write) --w;
    require(r.uses[u].rows <= r.uses[w].rows && r.uses[u].columns <= r.uses[w].columns,
            "a register is read where tiles are larger");
    for (const Loop& l : loops_) {
      if (!(l.start < r.uses[u].at && r.uses[u].at < l.end) || r.uses[w].at > l.start) continue;
      for (const Use& other : r.uses)
        require(!(other.write && other.at > r.uses[u].at && other.at < l.end),
                "a register is read before its loop writes it");
    }
  }
}

void CodeChecker::code(int64_t first, int64_t end) {
  for (at_ = first;;) {
    require(at_ < end, "code without DONE");
    int op = op_of(*at());
    require(length_of(*at()) > 0 || at_ + 1 < end, "code without DONE");
    int64_t length = words_of(at());
    require(length >= 1 && at_ + length <= end, "length of an instruction");
    if (op == OP_DONE) {
      require(length == 1 && at_ + 1 == end, "words behind DONE");
      return;
    }
    int64_t used = instruction(op, length);
    require(used == length, "words of an instruction");
    if (op != OP_BIND) bound_ = -1;
    at_ += length;
  }
}

int64_t CodeChecker::loop(int64_t length) {
  require(length == 3, "length of a loop");
  int d = dst_of(*at());
  int64_t step = static_cast<int64_t>(at()[1]);
  require(d < k_.dims() && step >= 1 && step <= kMostElements, "dimension or step of a loop");
  for (const Loop& l : active_) require(l.dim != d, "two loops over a dimension");
  active_.push_back({d, at_, step});
  return 3;
}

int64_t CodeChecker::endloop(int64_t length) {
  require(length == 2 && !active_.empty(), "the end of no loop");
  Loop l = active_.back();
  active_.pop_back();
  require(static_cast<int64_t>(at()[1]) == at_ - l.start, "where a loop ends");
  require(static_cast<int64_t>(k_.w[l.start + 2]) == at_ + 2 - l.start, "where a loop goes on");
  l.end = at_;
  loops_.push_back(l);
  return 2;
}

int64_t CodeChecker::instruction(int op, int64_t length) {
  if (op == OP_LOOP) return loop(length);
  if (op == OP_ENDLOOP) return endloop(length);
  if (op >= OP_CONST && op <= OP_CAST) return move(op, length);
  if (op >= OP_REDUCE && op <= OP_MERGE) return fold(op, length);
  if (op == OP_MATMUL) return matmul(length);
  if (op == OP_ATTENTION) return attention(length);
  if (op == OP_CONVOLUTION) return convolution(length);
  require(op >= kFirstScalar && op < kOps, "no instruction");
  return scalar(op);
}

int64_t CodeChecker::move(int op, int64_t length) {
  Word w = *at();
  int type = type_of(w), type2 = type2_of(w), kind = kind_dst_of(w), kind_a = kind_a_of(w);
  require(type < kTypes && is_compute(type), "type of an instruction");
  int size = kItemsize[type];
  int64_t n[kMaxDims + 1] = {};
  switch (op) {
    case OP_CONST: write(dst_of(w), kind, size); return 2;
    case OP_PARAM:
      require(length == 2 && at()[1] < static_cast<Word>(p_.params()), "number of a param");
      write(dst_of(w), kind, size);
      return 2;
    case OP_IOTA:
      require(length == 2 && at()[1] < static_cast<Word>(k_.dims()) && type == T_I64, "an iota");
      write(dst_of(w), kind, 8);
      return 2;
    case OP_MOVE:
      require((kind | kind_a) == kind, "kinds of a move");
      read(a_of(w), kind_a, size);
      write(dst_of(w), kind, size);
      return 1;
    case OP_CAST:
      require(type2 < kTypes && table_.cast[type][type2], "types of a cast");
      read(a_of(w), kind, size);
      write(dst_of(w), kind, kItemsize[kCompute[type2]]);
      return 1;
    default: break;
  }
  int64_t offset = op == OP_BIND ? 1 : 2;
  int64_t words = offset + access(offset, length, k_.dims());
  AccessView a{at() + offset};
  int memory = p_.type(a.buffer());
  require(op == OP_BIND || (type2 == memory && kCompute[memory] == type), "types of an access");
  coordinates(n, kind);
  inside(a, n, k_.dims());
  if (op == OP_STORE) {
    require(kind_a == kind, "kinds of a store");
    read(a_of(w), kind, size);
    return words;
  }
  if (op == OP_LOAD && at()[1] & 1) {
    require((kind | kind_a) == kind, "kinds of a load");
    read(a_of(w), kind_a, size);
  }
  Register& r = reg(dst_of(w), kind, size, true);
  if (op == OP_BIND) {
    r.points = true;
    bound_ = dst_of(w);
    // The value is written by the next instruction.
  } else {
    bool copies = at()[1] & 2 || memory != type || type == T_BOOL || !a.plain();
    r.points |= !copies;
  }
  return words;
}

int64_t CodeChecker::scalar(int op) {
  Word w = *at();
  int type = type_of(w), kind = kind_dst_of(w);
  require(type < kTypes && table_.map[op][type], "type of an operator");
  int size = kItemsize[type];
  bool compares = (op >= OP_EQ && op <= OP_GE) || op == OP_ISNAN || op == OP_ISINF;
  bool binary = op <= OP_ATAN2 || (op >= OP_EQ && op <= OP_XOR) || op == OP_SHL || op == OP_SHR;
  int arity = op == OP_SELECT || op == OP_FMA ? 3 : binary ? 2 : 1;
  int regs[3] = {a_of(w), b_of(w), c_of(w)};
  int kinds[3] = {kind_a_of(w), kind_b_of(w), kind_c_of(w)};
  for (int i = 0; i < 3; ++i) {
    if (i >= arity) {
      require(regs[i] == 0 && kinds[i] == 0, "an operand that is none");
      continue;
    }
    require((kinds[i] | kind) == kind, "kinds of an operator");
    read(regs[i], kinds[i], op == OP_SELECT && i == 0 ? 1 : size);
  }
  write(dst_of(w), kind, compares ? 1 : size);
  return 1;
}

int64_t CodeChecker::fold(int op, int64_t length) {
  Word w = *at();
  require(length >= 2, "a reduction is cut short");
  Word which = at()[1];
  int type = type_of(w), type2 = type2_of(w), kind = kind_dst_of(w), kind_a = kind_a_of(w);
  require(which < kFolds && type < kTypes && is_compute(type), "a reduction");
  bool places = has_places(static_cast<int64_t>(which));
  require(places ? table_.arg[0][type][0] != nullptr : table_.fold[which][type][0] != nullptr,
          "type of a reduction");
  require(op == OP_REDUCE || type2 == accumulator_type(static_cast<int>(which), type),
          "type of an accumulator");
  int size = kItemsize[type], held = kItemsize[type2 < kTypes ? type2 : 0];
  int64_t words = 2;
  switch (op) {
    case OP_REDUCE:
    case OP_ACCUM:
      require((kind_a | kind) == kind_a, "kinds of a reduction");
      words += places ? k_.dims() : 0;
      require(length == words, "length of a reduction");
      read(a_of(w), kind_a, size);
      if (op == OP_REDUCE) {
        write(dst_of(w), kind, places ? 8 : size);
      } else {
        read(dst_of(w), kind, held);
        write(dst_of(w), kind, held);
        if (places) write(b_of(w), kind, 8);
      }
      return words;
    case OP_INIT:
      write(dst_of(w), kind, held);
      if (places) write(b_of(w), kind, 8);
      return words;
    case OP_FINISH:
      read(a_of(w), kind, held);
      if (places) read(b_of(w), kind, 8);
      write(dst_of(w), kind, places ? 8 : size);
      return words;
    case OP_SCAN: {
      require(length == 3 && at()[2] < static_cast<Word>(k_.dims()) && table_.scan[which][type],
              "a scan");
      int d = static_cast<int>(at()[2]);
      int axis = d == k_.column() ? kColumnBit : d == k_.row() ? kRowBit : 0;
      require(kind_a == kind && (kind & axis) == axis && kind_b_of(w) == (kind & ~axis),
              "kinds of a scan");
      read(a_of(w), kind, size);
      read(b_of(w), kind & ~axis, held);
      write(b_of(w), kind & ~axis, held);
      write(dst_of(w), kind, size);
      return 3;
    }
    default: return spilled(op, length, which);
  }
}

int64_t CodeChecker::spilled(int op, int64_t length, Word which) {
  Word w = *at();
  int type2 = type2_of(w), kind = op == OP_SPILL ? kind_a_of(w) : kind_dst_of(w);
  int64_t words = op == OP_SPILL ? 4 : 6;
  require(length == words, "length of a spill");
  int64_t offset = static_cast<int64_t>(at()[2]), bytes = static_cast<int64_t>(at()[3]);
  int64_t n = (kind & kRowBit ? rows() : 1) * (kind & kColumnBit ? columns() : 1);
  require(n <= kMostElements, "size of a tile");
  bool places = has_places(static_cast<int64_t>(which));
  int64_t need = (n * kItemsize[type2] + 7) / 8 * 8 + (places ? n * 8 : 0);
  require(offset >= 0 && offset % 8 == 0 && bytes % 8 == 0 && bytes >= need, "room of a spill");
  Wide slots = tasks_;
  if (op == OP_MERGE) {
    int64_t tasks = static_cast<int64_t>(at()[4]), group = static_cast<int64_t>(at()[5]);
    require(tasks >= 1 && group >= 1 && tasks <= kMostElements, "tasks of a merge");
    slots = (Wide{tasks_ - 1} / group + 1) * tasks;
  }
  require(Wide{offset} + slots * bytes <= p_.arena_bytes(), "a spill outside of the arena");
  if (op == OP_SPILL) {
    read(a_of(w), kind, kItemsize[type2]);
    if (places) read(b_of(w), kind, 8);
  } else {
    write(dst_of(w), kind, kItemsize[type2]);
    if (places) write(b_of(w), kind, 8);
  }
  return words;
}

void validate_code(const ProgramView& program, const KernelView& kernel) {
  CodeChecker(program, kernel).run();
}

}  // namespace vtc
