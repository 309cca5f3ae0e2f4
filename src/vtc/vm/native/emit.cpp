// Instructions of a kernel, over virtual registers.
//
// A value is full (one a point) or reduced (one a point of the dimensions that are not reduced).
// Where reduced dimensions are looped over, full values live inside a loop and are computed again
// in every phase that needs them: phase 0 finds the first reductions, phase 1 what uses these, ...

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "encode.h"
#include "table.h"

namespace vtc {
namespace {

bool is_comparison(int op) {
  return (op >= OP_EQ && op <= OP_GE) || op == OP_ISNAN || op == OP_ISINF;
}

constexpr int64_t kStreamBytes = 24 << 20;

}  // namespace

bool KernelWriter::moves_along(const Access& a, uint32_t dims) const {
  for (int d = 0; d < s_->dims; ++d)
    if (dims >> d & 1 && a.stride[d] != 0) return true;
  for (const Access::Mask& m : a.masks)
    if (m.dim < s_->dims && dims >> m.dim & 1) return true;
  return false;
}

int KernelWriter::kind_of(const Access& a) const {
  int kind = 0;
  if (t_->row >= 0 && moves_along(a, 1u << t_->row)) kind |= kRowBit;
  if (t_->column >= 0 && moves_along(a, 1u << t_->column)) kind |= kColumnBit;
  for (const Access::Term& term : a.terms) kind |= kind_[term.value];
  return kind;
}

void KernelWriter::analyse() {
  size_t n = k_->body.size();
  kind_.assign(n, 0);
  phase_.assign(n, 0);
  reduced_.assign(n, 0);
  stored_buffer_.assign(module_.buffers.size(), 0);
  buffer_uses_.assign(module_.buffers.size(), 0);
  for (const Access& a : s_->accesses) ++buffer_uses_[a.buffer];
  int full = (t_->row >= 0 ? kRowBit : 0) | (t_->column >= 0 ? kColumnBit : 0);
  int folded = 0;
  if (t_->row >= 0 && s_->is_reduced(t_->row)) folded |= kRowBit;
  if (t_->column >= 0 && s_->is_reduced(t_->column)) folded |= kColumnBit;
  phases_ = 0;
  int64_t bytes = 0;
  bool fresh = false;
  for (size_t v = 0; v < n; ++v) {
    const IrInstr& i = k_->body[v];
    bool alone = true;
    auto use = [&](int a) {
      alone &= reduced_[a] != 0;
      kind_[v] |= kind_[a];
      phase_[v] = std::max(phase_[v], phase_[a]);
    };
    for (int a : i.args) use(a);
    if (is_anchor(i.op)) {
      kind_[v] = full;
      alone = s_->reduced == 0;
    } else if (i.access >= 0) {
      const Access& access = s_->accesses[i.access];
      for (const Access::Term& t : access.terms) use(t.value);
      alone &= !moves_along(access, s_->reduced);
      kind_[v] |= kind_of(access);
      if (i.op == OP_STORE) stored_buffer_[access.buffer] = 1;
      fresh |= i.op == OP_STORE && module_.buffers[access.buffer].kind == 1;
      if (kind_[v] == full) bytes += t_->points * kItemsize[module_.buffers[access.buffer].type];
    } else if (i.op == OP_IOTA) {
      int d = s_->origin[i.constant];
      if (d >= 0 && d == t_->row) kind_[v] = kRowBit;
      if (d >= 0 && d == t_->column) kind_[v] = kColumnBit;
      alone = d < 0 || !s_->is_reduced(d);
    } else if (i.op == OP_REDUCE) {
      kind_[v] &= ~folded;
      alone = true;
      ++phase_[v];
    } else if (i.op == OP_SCAN) {
      alone = false;
      for (int d = 0; d < s_->dims; ++d)
        if (s_->is_reduced(d))
          kind_[v] |= d == t_->row ? kRowBit : d == t_->column ? kColumnBit : 0;
    }
    reduced_[v] = alone;
    phases_ = std::max(phases_, phase_[v]);
  }
  // The lines of a fresh output are in the caches, where the system has just cleared them.
  stream_ = bytes > kStreamBytes && !fresh && !device_;
  bound_store_.assign(n, -1);
  for (size_t v = 0; v < n; ++v)
    if (k_->body[v].op == OP_STORE && may_bind(static_cast<int>(v)))
      bound_store_[k_->body[v].args[0]] = static_cast<int>(v);
}

// Do all readers of a value come before its store, which lets go of the buffer that it is in?
bool KernelWriter::read_before(int value, int store) const {
  if (t_->loop_count || t_->split >= 0) return false;
  int type = k_->body[value].type;
  if (type != T_F32 && type != T_F64) return false;  // integers may be terms of accesses
  for (size_t v = store + 1; v < k_->body.size(); ++v)
    for (int a : k_->body[v].args)
      if (a == value) return false;
  return true;
}

// May the value that this store writes be computed in place?
bool KernelWriter::may_bind(int v) const {
  const IrInstr& i = k_->body[v];
  const Access& a = s_->accesses[i.access];
  int value = i.args[0];
  const IrInstr& made = k_->body[value];
  int type = module_.buffers[a.buffer].type;
  if (device_ || stream_ || !a.terms.empty() || !a.masks.empty()) return false;
  if (k_->uses[value] != 1 && (made.op < kFirstScalar || !read_before(value, v))) return false;
  bool writes = made.op >= kFirstScalar || made.op == OP_CONVOLUTION;
  if (!writes || type != made.type || !is_compute(type)) return false;
  if (buffer_uses_[a.buffer] != 1 || kind_[v] != kind_[value] || !(kind_[v] & kColumnBit))
    return false;
  return a.stride[t_->column] == 1 && reduced_[v] == reduced_[value];
}

// Values that are the same in every task and pass of a loop are computed once a thread.
void KernelWriter::mark_hoisted() {
  uint32_t moving = 0;
  int64_t tasks = 1;
  for (int d = 0; d < s_->dims; ++d) {
    tasks *= t_->tasks(*s_, d);
    if (t_->tasks(*s_, d) > 1 || t_->step[d]) moving |= 1u << d;
  }
  size_t n = k_->body.size();
  hoisted_.assign(n, 0);
  if (tasks == 1 && t_->loop_count == 0) return;
  for (size_t v = 0; v < n; ++v) {
    const IrInstr& i = k_->body[v];
    if (i.op == OP_CONST || i.op == OP_PARAM) {
      hoisted_[v] = 1;
    } else if (i.op == OP_LOAD) {
      const Access& a = s_->accesses[i.access];
      bool fixed = !moves_along(a, moving) && !stored_buffer_[a.buffer] && a.terms.empty();
      for (int arg : i.args) fixed &= hoisted_[arg] != 0;
      hoisted_[v] = fixed;
    } else if (i.op == OP_IOTA) {
      int d = s_->origin[i.constant];
      hoisted_[v] = d < 0 || !(moving >> d & 1);
    } else if (i.op == OP_CAST || i.op >= kFirstScalar) {
      hoisted_[v] = 1;
      for (int arg : i.args) hoisted_[v] &= hoisted_[arg];
    }
  }
}

KernelWriter::Draft& KernelWriter::draft(int op, int type) {
  Draft& d = code_->emplace_back();
  d.op = op;
  d.type = type;
  return d;
}

int KernelWriter::fresh(int kind, int size, int pool) {
  virtual_.push_back({kind, size, pool, 0, 0, -1});
  return static_cast<int>(virtual_.size()) - 1;
}

// What an anchor's handler takes.
void KernelWriter::check_anchor(const IrInstr& i) const {
  if (i.op != OP_ATTENTION) return;
  int count = k_->attentions[i.constant].flags & 8 ? 4 : 3;
  for (int a = i.access; a < i.access + 3; ++a)
    if (kCompute[module_.buffers[s_->accesses[a].buffer].type] != i.type)
      throw EncodeError("attention over operands of several types");
  for (int a = i.access; a < i.access + count; ++a) {
    const Access& access = s_->accesses[a];
    if (!access.terms.empty() || !access.masks.empty())
      throw EncodeError("attention over operands with terms or masks");
  }
}

// The register of a value, broadcast to at least `kind`.
int KernelWriter::operand(int v, int kind) {
  int reg = reg_[v] < 0 ? emit_value(v) : reg_[v];
  if ((virtual_[reg].kind | kind) == virtual_[reg].kind) return reg;
  Draft& d = draft(OP_MOVE, k_->body[v].type);
  d.a = reg;
  return d.dst = fresh(virtual_[reg].kind | kind, virtual_[reg].size);
}

// The registers of an access's terms, integer values: loads, casts, scalar operators. What an
// epilogue reads is computed before its turn, and so are the terms of it.
std::vector<int> KernelWriter::terms_of(const Access& a) {
  std::vector<int> regs;
  for (const Access::Term& t : a.terms) regs.push_back(operand(t.value, 0));
  return regs;
}

int KernelWriter::emit_load(int v, int other) {
  const IrInstr& i = k_->body[v];
  const Access& a = s_->accesses[i.access];
  std::vector<int> terms = terms_of(a);
  Draft& d = draft(OP_LOAD, i.type);
  d.type2 = module_.buffers[a.buffer].type;
  d.words = 1;
  d.word[0] = (other >= 0) | (stored_buffer_[a.buffer] ? 2 : 0);
  d.a = other;
  d.access = &a;
  d.terms = std::move(terms);
  return d.dst = fresh(kind_[v], kItemsize[i.type], 1);
}

int KernelWriter::emit_carry(int v) {
  const IrInstr& i = k_->body[v];
  int src = k_->body[i.args[0]].type;
  Draft& d = draft(OP_INIT, src);
  d.type2 = accumulator_type(static_cast<int>(i.constant), src);
  d.words = 1;
  d.word[0] = i.constant;
  return d.dst = fresh(kind_[v] & ~folded_bits(), kItemsize[d.type2]);
}

int KernelWriter::emit_scan(int v, int from) {
  const IrInstr& i = k_->body[v];
  int carry = carry_[v] >= 0 ? carry_[v] : emit_carry(v);
  Draft& d = draft(OP_SCAN, i.type);
  d.type2 = accumulator_type(static_cast<int>(i.constant), i.type);
  d.words = 2;
  d.word[0] = i.constant;
  d.word[1] = std::countr_zero(s_->reduced);
  d.a = from;
  d.b = carry;
  return d.dst = fresh(kind_[v], kItemsize[i.type]);
}

// The one instruction that uses a value, -1 if there are several.
int KernelWriter::user_of(int v) const {
  if (k_->uses[v] != 1) return -1;
  for (size_t u = v + 1; u < k_->body.size(); ++u) {
    const IrInstr& i = k_->body[u];
    if (i.op != OP_STORE && !k_->uses[u]) continue;
    for (int a : i.args)
      if (a == v) return static_cast<int>(u);
  }
  return -1;
}

// A convolution multiplies by one value a column, adds another, and bounds the result itself. `last`
// becomes the value that it then gives.
void KernelWriter::take_epilogue(int v, Draft& d, int& last) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  d.low = -kInfinity;
  d.high = kInfinity;
  bool low = false, high = false;
  for (int u = user_of(v); u >= 0; u = user_of(last)) {
    const IrInstr& i = k_->body[u];
    if (i.args.size() != 2 || i.type != k_->body[v].type || i.args[0] == i.args[1]) return;
    int other = i.args[i.args[0] == last];
    const IrInstr& o = k_->body[other];
    bool line = kind_[other] == kColumnBit, number = o.op == OP_CONST && !o.symbolic;
    number &= !std::isnan(std::bit_cast<double>(o.constant));
    bool first = d.b < 0 && !low && !high;
    if (i.op == OP_MUL && line && d.a < 0 && first) {
      d.a = operand(other, 0);
    } else if (i.op == OP_ADD && line && first) {
      d.b = operand(other, 0);
    } else if (i.op == OP_MAXIMUM && number && !low && !high) {
      d.low = std::bit_cast<double>(o.constant);
      low = true;
    } else if (i.op == OP_MINIMUM && number && !high) {
      d.high = std::bit_cast<double>(o.constant);
      high = true;
    } else {
      return;
    }
    last = u;
    reg_[u] = 0;
  }
}

int KernelWriter::emit_value(int v) {
  const IrInstr& i = k_->body[v];
  int args[3] = {-1, -1, -1};
  for (size_t a = 0; a < i.args.size(); ++a)
    args[a] = operand(i.args[a], i.op == OP_SCAN ? kind_[v] : 0);
  if (i.op == OP_LOAD) return reg_[v] = emit_load(v, args[0]);
  if (i.op == OP_SCAN) return reg_[v] = emit_scan(v, args[0]);
  bool bound = bound_store_[v] >= 0;
  int dst = fresh(kind_[v], kItemsize[i.type], bound ? 1 : 0);
  switch (i.op) {
    case OP_CONST: {
      Draft& d = draft(OP_CONST, i.type);
      d.words = 1;
      int64_t value = i.symbolic ? values_[i.constant] : i.constant;
      bool is_float = i.type == T_F64 || i.type == T_F32;
      d.word[0] = value;
      if (i.symbolic && is_float) d.word[0] = std::bit_cast<int64_t>(static_cast<double>(value));
      d.dst = dst;
      break;
    }
    case OP_IOTA: {
      int dim = s_->origin[i.constant];
      Draft& d = draft(dim < 0 ? OP_CONST : OP_IOTA, T_I64);
      d.words = 1;
      d.word[0] = dim < 0 ? 0 : dim;
      d.dst = dst;
      break;
    }
    case OP_PARAM: {
      Draft& d = draft(OP_PARAM, i.type);
      d.words = 1;
      d.word[0] = i.constant;
      d.dst = dst;
      break;
    }
    case OP_CAST: {
      Draft& d = draft(OP_CAST, k_->body[i.args[0]].type);
      d.type2 = static_cast<int>(i.constant);
      d.a = args[0];
      d.dst = dst;
      break;
    }
    case OP_REDUCE: {
      int src = k_->body[i.args[0]].type;
      int from = operand(i.args[0], folded_bits());
      Draft& d = draft(OP_REDUCE, src);
      d.words = 1;
      d.word[0] = i.constant;
      d.a = from;
      d.dst = dst;
      d.ir = &i;
      break;
    }
    case OP_CONVOLUTION: {
      Draft own{};
      own.op = OP_CONVOLUTION;
      own.type = i.type;
      int last = v;
      take_epilogue(v, own, last);
      own.ir = &i;
      own.dst = dst;
      if (bound_store_[last] >= 0) {
        Draft& bind = draft(OP_BIND, i.type);
        bind.access = &s_->accesses[k_->body[bound_store_[last]].access];
        virtual_[dst].pool = 1;
        bind.dst = dst;
      }
      code_->push_back(own);
      reg_[last] = dst;
      break;
    }
    case OP_MATMUL:
    case OP_ATTENTION: {
      check_anchor(i);
      int count = i.op == OP_MATMUL ? 2 : k_->attentions[i.constant].flags & 8 ? 4 : 3;
      std::vector<int> terms;
      for (int a = 0; a < count; ++a)
        for (int reg : terms_of(s_->accesses[i.access + a])) terms.push_back(reg);
      Draft& d = draft(i.op, i.type);
      d.ir = &i;
      d.dst = dst;
      d.terms = std::move(terms);
      break;
    }
    default: {
      if (bound) {
        Draft& bind = draft(OP_BIND, i.type);
        bind.access = &s_->accesses[k_->body[bound_store_[v]].access];
        bind.dst = dst;
      }
      Draft& d = draft(i.op, i.op == OP_SELECT || is_comparison(i.op)
                                 ? k_->body[i.args.back()].type
                                 : i.type);
      d.a = args[0];
      d.b = args[1];
      d.c = args[2];
      d.dst = dst;
    }
  }
  return reg_[v] = dst;
}

void KernelWriter::emit_store(int v) {
  const IrInstr& i = k_->body[v];
  const Access& a = s_->accesses[i.access];
  int from = operand(i.args[0], kind_[v]);
  std::vector<int> terms = terms_of(a);
  Draft& d = draft(OP_STORE, k_->body[i.args[0]].type);
  d.type2 = module_.buffers[a.buffer].type;
  d.words = 1;
  d.word[0] = (bound_store_[i.args[0]] == v ? 1 : 0) | (stream_ ? 2 : 0);
  d.a = from;
  d.access = &a;
  d.terms = std::move(terms);
}

// Is it cheaper to compute a value again than to keep a tile of it?
bool KernelWriter::is_cheap(int v) const {
  const IrInstr& i = k_->body[v];
  bool simple = i.op == OP_ADD || i.op == OP_SUB || i.op == OP_MUL;
  if (!simple || reduced_[v] || hoisted_[v] || bound_store_[v] >= 0) return false;
  if (i.type != T_F32 && i.type != T_F64) return false;  // integers may be terms of accesses
  for (int a : i.args)
    if (reg_[a] < 0 || !(k_->body[a].op == OP_LOAD || reduced_[a] || hoisted_[a])) return false;
  return true;
}

// One pass over the tile: every value once, in order. A cheap value that is read on both sides of a
// reduction is computed on both: a chain that ends in a reduction then stores nothing.
void KernelWriter::emit_straight() {
  std::vector<int> passed;
  for (size_t v = 0; v < k_->body.size(); ++v) {
    const IrInstr& i = k_->body[v];
    if (i.op == OP_STORE) {
      emit_store(static_cast<int>(v));
    } else if (k_->uses[v] && reg_[v] < 0) {
      emit_value(static_cast<int>(v));
      if (i.op == OP_REDUCE && !device_) {
        for (int p : passed) reg_[p] = -1;
        passed.clear();
      } else if (k_->uses[v] > 1 && is_cheap(static_cast<int>(v))) {
        passed.push_back(static_cast<int>(v));
      }
    }
  }
}

}  // namespace vtc
