// From drafts over virtual registers to the words of a kernel.

#include <algorithm>
#include <bit>
#include <cmath>

#include "encode.h"
#include "table.h"

namespace vtc {
namespace {

Word instruction(int op, int type, int type2, int length) {
  return static_cast<Word>(op) | static_cast<Word>(type) << kTypeShift |
         static_cast<Word>(type2) << kType2Shift | static_cast<Word>(length) << kLengthShift;
}

}  // namespace

int64_t KernelWriter::register_size(int kind, int size) const {
  int64_t count = (kind & kRowBit ? t_->rows : 1) * (kind & kColumnBit ? t_->columns : 1);
  return (count * size + 63) / 64 * 64;
}

// Linear scan: a register is free again after the last use of its value.
void KernelWriter::assign_registers() {
  int hoisted = static_cast<int>(prologue_.size()), end = hoisted + static_cast<int>(body_.size());
  auto at = [&](int i) -> Draft& { return i < hoisted ? prologue_[i] : body_[i - hoisted]; };
  for (Virtual& v : virtual_) v.first = v.last = -1;
  int loop_start = -1, depth = 0;
  std::vector<int> touched;  // in the loop at hand, made before it
  auto touch = [&](int v, int i) {
    if (v < 0) return;
    if (virtual_[v].first < 0) virtual_[v].first = i;
    virtual_[v].last = virtual_[v].first < hoisted ? end : i;
    if (loop_start >= 0 && virtual_[v].first < loop_start) touched.push_back(v);
  };
  for (int i = 0; i < end; ++i) {
    Draft& d = at(i);
    if (d.op == OP_LOOP && depth++ == 0) loop_start = i;
    for (int v : {d.a, d.b, d.c, d.dst}) touch(v, i);
    for (int v : d.terms) touch(v, i);
    if (d.op == OP_ENDLOOP && --depth == 0) {
      for (int v : touched) virtual_[v].last = std::max(virtual_[v].last, i);
      touched.clear();
      loop_start = -1;
    }
  }
  std::vector<int> free;
  auto release = [&](int v, int i) {
    if (v >= 0 && virtual_[v].last == i && virtual_[v].real >= 0) {
      if (std::find(free.begin(), free.end(), virtual_[v].real) == free.end())
        free.push_back(virtual_[v].real);
    }
  };
  auto take = [&](int v) {
    if (v < 0 || virtual_[v].real >= 0) return;
    Virtual& x = virtual_[v];
    for (size_t f = free.size(); f-- > 0;) {
      const Real& r = real_[free[f]];
      if (r.kind != x.kind || r.size != x.size || r.pool != x.pool) continue;
      x.real = free[f];
      free.erase(free.begin() + static_cast<int64_t>(f));
      return;
    }
    x.real = static_cast<int>(real_.size());
    real_.push_back({x.kind, x.size, x.pool});
  };
  for (int i = 0; i < end; ++i) {
    Draft& d = at(i);
    // Scalar operators may write over an operand that dies here; others read after they write.
    bool in_place = d.op >= kFirstScalar || d.op == OP_CAST;
    if (in_place)
      for (int v : {d.a, d.b, d.c}) release(v, i);
    take(d.dst);
    take(d.b);
    if (!in_place)
      for (int v : {d.a, d.b, d.c}) release(v, i);
    for (int v : d.terms) release(v, i);
    release(d.dst, i);
  }
  if (real_.size() > 255) throw EncodeError("a kernel needs more than 255 registers");
}

void KernelWriter::put_access(const Access& a, int strides, const int* terms) {
  if (a.terms.size() > 255 || a.masks.size() > 255) throw EncodeError("an access is too long");
  out_.push_back(static_cast<Word>(a.buffer) | static_cast<Word>(a.terms.size()) << 16 |
                 static_cast<Word>(a.masks.size()) << 24 | static_cast<Word>(strides) << 40);
  out_.push_back(static_cast<Word>(a.offset));
  for (int d = 0; d < strides; ++d) out_.push_back(static_cast<Word>(a.stride[d]));
  for (size_t t = 0; t < a.terms.size(); ++t) {
    const Access::Term& term = a.terms[t];
    const Virtual& v = virtual_[terms[t]];
    int type = v.size == 4 ? T_I32 : T_I64;
    out_.push_back(static_cast<Word>(v.real) | static_cast<Word>(type) << 8 |
                   static_cast<Word>(v.kind) << 16 | static_cast<Word>(term.checked) << 24);
    out_.push_back(static_cast<Word>(term.stride));
    out_.push_back(static_cast<Word>(term.size));
  }
  for (const Access::Mask& m : a.masks) {
    out_.push_back(static_cast<Word>(m.dim));
    out_.push_back(static_cast<Word>(m.low));
    out_.push_back(static_cast<Word>(m.high));
  }
}

// The left operand is read at digits of the kernel's coordinates: the IR's dimensions, merged where
// every part's strides and the windows allow it.
void KernelWriter::put_convolution(const Draft& d) {
  const IrInstr& i = *d.ir;
  const IrConvolution& c = k_->convolutions[i.constant];
  int dims = static_cast<int>(k_->sizes.size()), windows = static_cast<int>(c.windows.size());
  size_t parts = c.k.size();
  auto left = [&](size_t part) -> const Access& { return s_->accesses[i.access + 2 * part]; };
  struct Digit {
    int ir, dim, window;
    int64_t divisor, size;
  };
  std::vector<Digit> digits;  // from the innermost
  int64_t inner[kIrDims];     // sizes of the dimensions inside of a merged one
  std::fill_n(inner, s_->dims, 1);
  for (int ir = dims - 1; ir >= 0; --ir) {
    if (s_->whole[ir] == 1 || s_->origin[ir] < 0) continue;
    bool still = s_->origin[ir] == t_->column;
    for (size_t p = 0; p < parts; ++p) still &= left(p).stride[ir] == 0;
    if (still) continue;
    int window = 0;
    for (int w = 0; w < windows; ++w)
      if (c.windows[w].dim == ir) window = w + 1;
    int64_t& divisor = inner[s_->origin[ir]];
    bool joins = false;
    for (Digit& before : digits) {
      if (before.dim != s_->origin[ir] || before.divisor * before.size != divisor) continue;
      joins = window == 0 && before.window == 0;
      for (size_t p = 0; p < parts && joins; ++p)
        joins = left(p).stride[ir] == left(p).stride[before.ir] * before.size;
      if (joins) before.size *= s_->whole[ir];
      break;
    }
    if (!joins) digits.push_back({ir, s_->origin[ir], window, divisor, s_->whole[ir]});
    divisor *= s_->whole[ir];
  }
  std::reverse(digits.begin(), digits.end());
  out_.push_back(0);
  out_.push_back(digits.size() | static_cast<Word>(windows) << 16 |
                 static_cast<Word>(parts) << 32 | static_cast<Word>(c.width) << 48);
  out_.push_back((d.a >= 0 ? 1 : 0) | (d.b >= 0 ? 2 : 0));
  out_.push_back(std::bit_cast<Word>(d.low));
  out_.push_back(std::bit_cast<Word>(d.high));
  for (const Digit& digit : digits) {
    out_.push_back(static_cast<Word>(digit.dim) | static_cast<Word>(digit.window) << 8);
    out_.push_back(static_cast<Word>(digit.divisor));
    out_.push_back(static_cast<Word>(digit.size));
  }
  for (const IrWindow& w : c.windows)
    for (int x : {w.taps, w.stride, w.dilation, w.pad, w.extent})
      out_.push_back(static_cast<Word>(values_[x]));
  for (size_t p = 0; p < parts; ++p) {
    const Access& a = left(p);
    out_.push_back(static_cast<Word>(std::max<int64_t>(values_[c.k[p]], 0)));
    out_.push_back(static_cast<Word>(a.buffer));
    out_.push_back(static_cast<Word>(a.offset));
    for (const Digit& digit : digits) out_.push_back(static_cast<Word>(a.stride[digit.ir]));
    for (int w = 0; w <= windows; ++w) out_.push_back(static_cast<Word>(a.stride[dims + w]));
    put_access(s_->accesses[i.access + 2 * p + 1], s_->dims + windows + 1, nullptr);
  }
}

void KernelWriter::put_anchor(const Draft& d) {
  const IrInstr& i = *d.ir;
  if (i.op == OP_CONVOLUTION) return put_convolution(d);
  int count = 2;
  if (i.op == OP_MATMUL) {
    out_.push_back(static_cast<Word>(std::max<int64_t>(values_[i.constant], 0)));
    out_.push_back(s_->packed ? static_cast<Word>(i.width) | static_cast<Word>(i.depth) << 32 : 0);
  } else {
    const IrAttention& a = k_->attentions[i.constant];
    constexpr int kDefaultScale = 16;
    int64_t depth = values_[a.head_dim];
    Word scale = a.flags & kDefaultScale
                     ? std::bit_cast<Word>(1.0 / std::sqrt(static_cast<double>(depth)))
                     : static_cast<Word>(a.scale);
    int position = s_->origin[k_->sizes.size() - 2];
    count = a.flags & 8 ? 4 : 3;
    for (Word w : {static_cast<Word>(values_[a.length]), static_cast<Word>(depth), scale,
                   static_cast<Word>(a.flags & 15), static_cast<Word>(a.softcap),
                   static_cast<Word>(values_[a.shift]),
                   static_cast<Word>(a.window < 0 ? 0 : values_[a.window]),
                   static_cast<Word>(position < 0 ? kNoDim : position)})
      out_.push_back(w);
  }
  const int* terms = d.terms.data();
  for (int a = 0; a < count; ++a) {
    const Access& access = s_->accesses[i.access + a];
    put_access(access, s_->dims + 1, terms);
    terms += access.terms.size();
  }
}

void KernelWriter::put(const Draft& d, int64_t loop) {
  size_t start = out_.size();
  int type2 = d.op == OP_MATMUL || d.op == OP_CONVOLUTION ? d.ir->memory : d.type2;
  Word head = instruction(d.op, d.type, type2, 0);
  auto field = [&](int v, int shift, int kind_shift) {
    if (v < 0) return;
    head |= static_cast<Word>(virtual_[v].real) << shift;
    head |= static_cast<Word>(virtual_[v].kind) << kind_shift;
  };
  field(d.dst, kDstShift, kKindDstShift);
  field(d.a, kAShift, kKindAShift);
  field(d.b, kBShift, kKindBShift);
  field(d.c, kCShift, kKindCShift);
  if (d.op == OP_LOOP) {
    head |= static_cast<Word>(d.word[0]) << kDstShift;
    out_.insert(out_.end(), {head, static_cast<Word>(d.word[1]), 0});
  } else if (d.op == OP_ENDLOOP) {
    Word distance = out_.size() - loop;
    out_.insert(out_.end(), {head, distance});
    out_[loop + 2] = distance + 2;
  } else {
    if (d.op == OP_STORE) {
      // What is written covers the value and moves with the access.
      head &= ~(kKindDstMask << kKindDstShift);
      head |= static_cast<Word>(virtual_[d.a].kind) << kKindDstShift;
    }
    out_.push_back(head);
    for (int w = 0; w < d.words; ++w) out_.push_back(static_cast<Word>(d.word[w]));
    if (is_anchor(d.op)) put_anchor(d);
    if (d.access) put_access(*d.access, s_->dims, d.terms.data());
    bool places = (d.op == OP_REDUCE || d.op == OP_ACCUM) && has_places(d.word[0]);
    for (int n = 0; places && n < s_->dims; ++n) out_.push_back(static_cast<Word>(s_->place[n]));
  }
  size_t length = out_.size() - start;
  if (d.op == OP_CONVOLUTION) {
    out_[start + 1] = length;
    return;
  }
  if (length > 255) throw EncodeError("an instruction is too long");
  out_[start] |= static_cast<Word>(length) << kLengthShift;
}

void KernelWriter::finish(const int64_t* span) {
  assign_registers();
  size_t start = out_.size();
  out_.push_back(static_cast<Word>(OP_KERNEL) | static_cast<Word>(s_->dims) << kTypeShift |
                 static_cast<Word>(t_->row < 0 ? kNoDim : t_->row) << kDstShift |
                 static_cast<Word>(t_->column < 0 ? kNoDim : t_->column) << kAShift |
                 static_cast<Word>(real_.size()) << kBShift);
  out_.push_back(static_cast<Word>(k_->number));
  out_.push_back(0);
  out_.push_back(0);
  out_.push_back(static_cast<Word>(t_->rows));
  out_.push_back(static_cast<Word>(t_->columns));
  for (int d = 0; d < s_->dims; ++d) {
    out_.push_back(static_cast<Word>(s_->size[d]));
    out_.push_back(static_cast<Word>(span[d]));
  }
  int64_t offset = 0;
  for (const Real& r : real_) {
    int64_t bytes = register_size(r.kind, r.size);
    out_.push_back(static_cast<Word>(offset) | static_cast<Word>(bytes) << 32);
    offset += bytes;
  }
  if (offset >> 31) throw EncodeError("the registers of a kernel are too large");
  register_bytes = std::max(register_bytes, offset);
  std::vector<int64_t> loops;
  for (const std::vector<Draft>* code : {&prologue_, &body_}) {
    if (code == &body_) out_[start + 3] = out_.size() - start;
    for (const Draft& d : *code) {
      if (d.op == OP_LOOP) loops.push_back(static_cast<int64_t>(out_.size()));
      put(d, loops.empty() ? 0 : loops.back());
      if (d.op == OP_ENDLOOP) loops.pop_back();
    }
    out_.push_back(instruction(OP_DONE, 0, 0, 1));
  }
  out_[start + 2] = out_.size() - start;
}

}  // namespace vtc
