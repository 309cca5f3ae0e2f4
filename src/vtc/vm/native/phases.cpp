// Loops over reduced dimensions, and reductions that tasks share.

#include <algorithm>

#include "encode.h"
#include "table.h"

namespace vtc {

// Axes of tiles that are reduced.
int KernelWriter::folded_bits() const {
  int bits = 0;
  if (t_->row >= 0 && s_->is_reduced(t_->row)) bits |= kRowBit;
  if (t_->column >= 0 && s_->is_reduced(t_->column)) bits |= kColumnBit;
  return bits;
}

bool KernelWriter::has_loop(int phase) const {
  for (size_t v = 0; v < k_->body.size(); ++v) {
    const IrInstr& i = k_->body[v];
    if (i.op == OP_STORE && !reduced_[v] && phase_[v] == phase) return true;
    if (i.op == OP_REDUCE && k_->uses[v] && phase_[v] - 1 == phase) return true;
  }
  return false;
}

void KernelWriter::mark_needed(int v, std::vector<char>& needed) const {
  if (needed[v] || reduced_[v] || hoisted_[v]) return;
  needed[v] = 1;
  const IrInstr& i = k_->body[v];
  for (int a : i.args) mark_needed(a, needed);
  if (i.access >= 0)
    for (const Access::Term& t : s_->accesses[i.access].terms) mark_needed(t.value, needed);
}

// Values outside the loops that are known once the loops of earlier phases are over.
void KernelWriter::emit_reduced(int phase, bool stores) {
  for (size_t v = 0; v < k_->body.size(); ++v) {
    if (!reduced_[v] || phase_[v] != phase) continue;
    const IrInstr& i = k_->body[v];
    if (i.op == OP_STORE) {
      if (stores) emit_store(static_cast<int>(v));
    } else if (i.op != OP_REDUCE && k_->uses[v] && reg_[v] < 0) {
      emit_value(static_cast<int>(v));
    }
  }
}

void KernelWriter::emit_finish(int v, int acc, int place) {
  const IrInstr& i = k_->body[v];
  int src = k_->body[i.args[0]].type;
  Draft& d = draft(OP_FINISH, src);
  d.type2 = accumulator_type(static_cast<int>(i.constant), src);
  d.words = 1;
  d.word[0] = i.constant;
  d.a = acc;
  d.b = place;
  reg_[v] = d.dst = fresh(kind_[v], kItemsize[i.type]);
}

void KernelWriter::emit_loop(int phase) {
  size_t n = k_->body.size();
  std::vector<char> needed(n, 0);
  std::vector<int> acc(n, -1), place(n, -1);
  for (size_t v = 0; v < n; ++v) {
    const IrInstr& i = k_->body[v];
    bool root = i.op == OP_STORE && !reduced_[v] && phase_[v] == phase;
    if (root) mark_needed(static_cast<int>(v), needed);
    if (i.op != OP_REDUCE || !k_->uses[v] || phase_[v] - 1 != phase) continue;
    mark_needed(i.args[0], needed);
    int src = k_->body[i.args[0]].type, type = accumulator_type(static_cast<int>(i.constant), src);
    acc[v] = fresh(kind_[v], kItemsize[type]);
    if (has_places(i.constant)) place[v] = fresh(kind_[v], 8);
    Draft& d = draft(OP_INIT, src);
    d.type2 = type;
    d.words = 1;
    d.word[0] = i.constant;
    d.dst = acc[v];
    d.b = place[v];
  }
  for (size_t v = 0; v < n; ++v)
    if (needed[v] && k_->body[v].op == OP_SCAN) carry_[v] = emit_carry(static_cast<int>(v));
  for (int l = 0; l < t_->loop_count; ++l) {
    Draft& d = draft(OP_LOOP, 0);
    d.word[0] = t_->loops[l];
    d.word[1] = t_->step[t_->loops[l]];
  }
  for (size_t v = 0; v < n; ++v) {
    const IrInstr& i = k_->body[v];
    if (acc[v] >= 0) {
      int from = operand(i.args[0], folded_bits());
      Draft& d = draft(OP_ACCUM, k_->body[i.args[0]].type);
      d.type2 = accumulator_type(static_cast<int>(i.constant), d.type);
      d.words = 1;
      d.word[0] = i.constant;
      d.dst = acc[v];
      d.a = from;
      d.b = place[v];
      d.ir = &i;
    } else if (needed[v]) {
      if (i.op == OP_STORE)
        emit_store(static_cast<int>(v));
      else if (reg_[v] < 0)
        emit_value(static_cast<int>(v));
    }
  }
  for (int l = 0; l < t_->loop_count; ++l) draft(OP_ENDLOOP, 0);
  for (size_t v = 0; v < n; ++v) {
    if (!reduced_[v] && !hoisted_[v]) reg_[v] = -1;
    carry_[v] = -1;
    if (acc[v] < 0) continue;
    if (t_->split >= 0)
      emit_spill(static_cast<int>(v), acc[v], place[v]);
    else
      emit_finish(static_cast<int>(v), acc[v], place[v]);
  }
}

void KernelWriter::emit_spill(int v, int acc, int place) {
  const IrInstr& i = k_->body[v];
  int src = k_->body[i.args[0]].type, type = accumulator_type(static_cast<int>(i.constant), src);
  int64_t count = (kind_[v] & kRowBit ? t_->rows : 1) * (kind_[v] & kColumnBit ? t_->columns : 1);
  int64_t bytes = (count * kItemsize[type] + 7) / 8 * 8 + (place >= 0 ? count * 8 : 0);
  int64_t tasks = 1;
  for (int d = 0; d < s_->dims; ++d) tasks *= t_->tasks(*s_, d);
  spills_[v] = {arena_bytes, bytes, t_->tasks(*s_, t_->split)};
  arena_bytes += (bytes * tasks + 63) / 64 * 64;
  Draft& d = draft(OP_SPILL, src);
  d.type2 = type;
  d.words = 3;
  d.word[0] = i.constant;
  d.word[1] = spills_[v].offset;
  d.word[2] = bytes;
  d.a = acc;
  d.b = place;
}

void KernelWriter::emit_merge(int v, int64_t group) {
  const IrInstr& i = k_->body[v];
  int src = k_->body[i.args[0]].type, type = accumulator_type(static_cast<int>(i.constant), src);
  int acc = fresh(kind_[v], kItemsize[type]);
  int place = has_places(i.constant) ? fresh(kind_[v], 8) : -1;
  Draft& d = draft(OP_MERGE, src);
  d.type2 = type;
  d.words = 5;
  d.word[0] = i.constant;
  d.word[1] = spills_[v].offset;
  d.word[2] = spills_[v].bytes;
  d.word[3] = spills_[v].tasks;
  d.word[4] = group;
  d.dst = acc;
  d.b = place;
  emit_finish(v, acc, place);
}

// A phase a kernel: each task folds its part of the reduced dimension and keeps the result; tasks
// of later kernels merge what all have kept.
void KernelWriter::write_split() {
  bool stores = false;
  for (size_t v = 0; v < k_->body.size(); ++v)
    stores |= k_->body[v].op == OP_STORE && reduced_[v];
  int64_t whole[kIrDims];
  std::copy(t_->span, t_->span + s_->dims, whole);
  whole[t_->split] = std::max<int64_t>(s_->size[t_->split], 1);
  bool first = true;
  for (int phase = 0; phase <= phases_ + (stores ? 1 : 0); ++phase) {
    bool final = phase > phases_;
    if (!final && !has_loop(phase)) continue;
    if (!first) out_.push_back(OP_BARRIER | Word{1} << kLengthShift);
    first = false;
    begin();
    int64_t group = final ? 1 : t_->tasks(*s_, t_->split);
    for (int p = 0; p <= std::min(phase, phases_); ++p) {
      if (p > 0)
        for (size_t v = 0; v < k_->body.size(); ++v)
          if (k_->body[v].op == OP_REDUCE && k_->uses[v] && phase_[v] == p)
            emit_merge(static_cast<int>(v), group);
      emit_reduced(p, final);
    }
    if (!final) emit_loop(phase);
    finish(final ? whole : t_->span);
  }
}

void KernelWriter::emit_hoisted() {
  code_ = &prologue_;
  for (size_t v = 0; v < k_->body.size(); ++v)
    if (hoisted_[v] && k_->uses[v] && reg_[v] < 0) emit_value(static_cast<int>(v));
  code_ = &body_;
}

void KernelWriter::begin() {
  prologue_.clear();
  body_.clear();
  virtual_.clear();
  real_.clear();
  reg_.assign(k_->body.size(), -1);
  carry_.assign(k_->body.size(), -1);
  emit_hoisted();
}

void KernelWriter::write(const IrKernel& kernel, const Shape& shape, const Tiling& tiling) {
  k_ = &kernel;
  s_ = &shape;
  t_ = &tiling;
  analyse();
  mark_hoisted();
  // A value of the prologue is stored by many tasks.
  for (size_t v = 0; v < kernel.body.size(); ++v)
    if (hoisted_[v]) bound_store_[v] = -1;
  spills_.assign(kernel.body.size(), {0, 0, 0});
  if (tiling.split >= 0) return write_split();
  begin();
  if (tiling.loop_count == 0) {
    emit_straight();
  } else {
    for (int phase = 0; phase <= phases_; ++phase) {
      emit_reduced(phase, true);
      if (has_loop(phase)) emit_loop(phase);
    }
  }
  finish(tiling.span);
}

}  // namespace vtc
