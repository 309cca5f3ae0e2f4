// Which kernels go through the batch in parts, and how large a part is.

#include "batches.h"

#include <algorithm>

#include "table.h"

namespace vtc {
namespace {

// What a kernel moves of a part: a few times the second caches of two threads, since a smaller part
// would give the threads too little to share.
constexpr int64_t kPartBytes = 4 << 20;
constexpr int64_t kMostParts = 8;
// Operands that all items share, and each part reads anew, are not to outweigh its items.
constexpr int64_t kFewBytes = 64 << 10;

// The largest part of `size` items that divides it and has at most `most` of them, or as few as there
// may be parts.
int64_t divisor_below(int64_t size, int64_t most) {
  int64_t least = (size + kMostParts - 1) / kMostParts;
  for (int64_t part = std::clamp<int64_t>(most, least, size); part >= least; --part)
    if (size % part == 0) return part;
  for (int64_t part = least; part < size; ++part)
    if (size % part == 0) return part;
  return size;
}

// May the first dimension be divided, as far as the kernel's instructions go?
bool divides(const IrKernel& k, const std::vector<int64_t>& values) {
  int dims = static_cast<int>(k.sizes.size());
  if (dims < 2 || k.reduced & 1) return false;
  for (const IrInstr& i : k.body) {
    if (i.op == OP_IOTA && i.constant == 0) return false;
    if (i.op == OP_ATTENTION && dims < 3) return false;
    if (i.op != OP_CONVOLUTION) continue;
    for (const IrWindow& w : k.convolutions[i.constant].windows)
      if (w.dim == 0) return false;
  }
  for (const IrAccess& a : k.accesses) {
    if (!a.terms.empty()) return false;
    for (const IrMask& m : a.masks)
      if (m.dim == 0 && (values[m.low] > 0 || values[m.high] < values[k.sizes[0]])) return false;
  }
  return true;
}

// What a branch reads is not of one batch alone.
void no_predicates(const std::vector<IrStep>& steps, std::vector<int>& batch) {
  for (const IrStep& step : steps) {
    if (step.kernel >= 0) continue;
    batch[step.predicate] = -1;
    no_predicates(step.then, batch);
    no_predicates(step.otherwise, batch);
  }
}

}  // namespace

Batches::Batches(const IrModule& module, const std::vector<int64_t>& values,
                 std::vector<int64_t>& extents, bool wanted)
    : module_(module),
      of_(module.kernels.size(), -1),
      local_(module.buffers.size(), 0) {
  int64_t bytes = 0;
  for (size_t b = 0; b < extents.size(); ++b)
    if (module.buffers[b].kind == 2) bytes += extents[b] * kItemsize[module.buffers[b].type];
  if (!wanted || bytes <= kPartBytes) return;
  for (const IrKernel& k : module.kernels) kernels_.push_back(read(k, values));
  find(module.steps);
  keep_local(extents);
}

Batches::Kernel Batches::read(const IrKernel& kernel, const std::vector<int64_t>& values) const {
  Kernel found;
  if (kernel.sizes.empty() || values[kernel.sizes[0]] <= 1 || !divides(kernel, values)) return found;
  Shape shape;
  Slice slice{0, 1, &local_};
  make_shape(kernel, values, shape, &slice);
  if (shape.empty()) return found;
  found.size = values[kernel.sizes[0]];
  each_reach(values, kernel, shape, [&](const Access& a, int64_t low, int64_t high) {
    bool stored = false;
    for (const IrInstr& i : kernel.body)
      stored |= i.op == OP_STORE && &shape.accesses[i.access] == &a;
    found.uses.push_back({a.buffer, a.item, low, high, stored});
  });
  std::vector<int> counted;
  for (const Use& u : found.uses) {
    if (std::find(counted.begin(), counted.end(), u.buffer) != counted.end()) continue;
    counted.push_back(u.buffer);
    int64_t bytes = (u.high - u.low + 1) * kItemsize[module_.buffers[u.buffer].type];
    (u.stride ? found.moving : found.fixed) += bytes;
  }
  return found;
}

void Batches::find(const std::vector<IrStep>& steps) {
  int first = -1, last = -1;  // kernels [first, last), which go together
  auto close = [&] {
    if (first >= 0) choose(first, last);
    first = -1;
  };
  for (const IrStep& step : steps) {
    if (step.kernel < 0) {
      close();
      find(step.then);
      find(step.otherwise);
    } else if (first >= 0 && joins(first, step.kernel)) {
      last = step.kernel + 1;
    } else {
      close();
      seen_.clear();
      if (joins(step.kernel, step.kernel)) first = step.kernel, last = first + 1;
    }
  }
  close();
}

// Can a kernel go together with those from `first` on? Items of what they store lie apart, each where
// all of them look for it.
bool Batches::joins(int first, int kernel) {
  const Kernel& own = kernels_[kernel];
  if (own.size == 0 || own.size != kernels_[first].size) return false;
  std::vector<Use> seen = seen_;
  for (const Use& u : own.uses) {
    auto at = std::find_if(seen.begin(), seen.end(), [&](Use& s) { return s.buffer == u.buffer; });
    if (at == seen.end()) {
      seen.push_back(u);
      continue;
    }
    if (at->stride != u.stride) at->stride = -1;
    at->low = std::min(at->low, u.low);
    at->high = std::max(at->high, u.high);
    at->stored |= u.stored;
  }
  for (const Use& s : seen)
    if (s.stored && (s.stride <= 0 || s.low < 0 || s.high >= s.stride)) return false;
  seen_ = std::move(seen);
  return true;
}

int64_t Batches::part_of(const Kernel& kernel) const {
  return divisor_below(kernel.size, kPartBytes / std::max<int64_t>(kernel.moving, 1));
}

// Divides kernels [first, last) into parts, where it pays.
void Batches::choose(int first, int last) {
  // At the ends only kernels that move too much.
  while (first < last && part_of(kernels_[first]) == kernels_[first].size) ++first;
  while (first < last && part_of(kernels_[last - 1]) == kernels_[first].size) --last;
  if (last - first < 2) return;
  int64_t part = kernels_[first].size;
  for (int k = first; k < last; ++k) part = std::min(part, part_of(kernels_[k]));
  for (int k = first; k < last; ++k) {
    if (kernels_[k].fixed <= std::max(kernels_[k].moving * part, kFewBytes)) continue;
    choose(first, k);
    return choose(k + 1, last);
  }
  std::fill(of_.begin() + first, of_.begin() + last, static_cast<int>(found_.size()));
  found_.push_back({first, last, kernels_[first].size, part});
}

// Temporaries that the kernels of one batch alone touch.
void Batches::keep_local(std::vector<int64_t>& extents) {
  std::vector<int> batch(extents.size(), -2);  // -2: of no kernel yet, -1: not of one batch alone
  for (size_t k = 0; k < kernels_.size(); ++k)
    for (const IrAccess& a : module_.kernels[k].accesses)
      batch[a.buffer] = batch[a.buffer] == -2 || batch[a.buffer] == of_[k] ? of_[k] : -1;
  no_predicates(module_.steps, batch);
  for (size_t k = 0; k < kernels_.size(); ++k) {
    if (of_[k] < 0) continue;
    for (const Use& u : kernels_[k].uses) {
      if (!u.stored || batch[u.buffer] != of_[k] || module_.buffers[u.buffer].kind != 2) continue;
      local_[u.buffer] = 1;
      extents[u.buffer] = u.stride * found_[of_[k]].part;
    }
  }
}

}  // namespace vtc
