// A whole program: order, barriers.

#include "encode.h"

#include <algorithm>
#include <stdexcept>

#include "arena.h"
#include "batches.h"
#include "pages.h"
#include "table.h"
#include "tiling.h"

namespace vtc {
namespace {

// Cycles from where help pays: a sleeping thread takes 20 to 30 us to come, and holds up the end of a
// shorter program.
constexpr int64_t kParallelCost = 200000;

std::vector<int64_t> extents_of(const IrModule& module, const std::vector<int64_t>& values) {
  std::vector<int64_t> extents;
  for (const IrBuffer& b : module.buffers)
    extents.push_back(std::max<int64_t>(values[b.extent], 0));
  return extents;
}

// What was read and written since the last barrier.
class Pending {
 public:
  explicit Pending(const Arena& arena) : arena_(arena) {}

  bool conflicts(int b, bool writes) const {
    for (auto [other, wrote] : seen_) {
      if (!writes && !wrote) continue;
      if (arena_.overlap(b, other)) return true;
    }
    return false;
  }
  void add(int b, bool writes) { seen_.push_back({b, writes}); }
  bool empty() const { return seen_.empty(); }
  void clear() { seen_.clear(); }

 private:
  const Arena& arena_;
  std::vector<std::pair<int, bool>> seen_;
};

class Writer {
 public:
  Writer(const IrModule& module, const std::vector<int64_t>& values, std::vector<Word>& out,
         bool device)
      : module_(module), values_(values), out_(out), device_(device),
        extents_(extents_of(module, values)), batches_(module, values, extents_, !device),
        arena_(module, extents_, batches_, !device), pending_(arena_),
        kernels_(module, values, out, device) {
    kernels_.arena_bytes = arena_.bytes();
  }

  void write() {
    out_.assign({kMagic, 0, 0, 0, 0});
    for (size_t b = 0; b < module_.buffers.size(); ++b) {
      const IrBuffer& buffer = module_.buffers[b];
      Arena::Place place;
      Word kind = BUFFER_CALLERS;
      if (buffer.kind == 2) {
        place = arena_.place(static_cast<int>(b));
        kind = place.host < 0 ? BUFFER_ARENA : BUFFER_HOSTED;
      }
      Word host = kind == BUFFER_HOSTED ? static_cast<Word>(place.host) : 0;
      out_.push_back(static_cast<Word>(buffer.type) | kind << 8 | host << 16);
      out_.push_back(static_cast<Word>(extents_[b]));
      out_.push_back(static_cast<Word>(place.offset));
    }
    used_.assign(module_.buffers.size(), 0);
    steps(module_.steps);
    // Nothing has to be there of inputs that no kernel reads at these sizes.
    for (size_t b = 0; b < module_.buffers.size(); ++b)
      if (module_.buffers[b].kind == 0 && !used_[b]) out_[kHeadWords + kBufferWords * b + 1] = 0;
    out_.push_back(OP_END | Word{1} << kLengthShift);
    out_[1] = out_.size();
    out_[2] = static_cast<Word>(kernels_.arena_bytes);
    out_[3] = static_cast<Word>(kernels_.register_bytes);
    out_[4] = static_cast<Word>(module_.buffers.size()) | static_cast<Word>(module_.params) << 16 |
              static_cast<Word>(module_.kernels.size()) << 32 |
              static_cast<Word>(cost_ > kParallelCost) << 48;
  }

 private:
  void barrier() {
    if (pending_.empty()) return;
    out_.push_back(OP_BARRIER | Word{1} << kLengthShift);
    pending_.clear();
  }

  void steps(const std::vector<IrStep>& list) {
    for (const IrStep& step : list) {
      if (step.kernel >= 0) {
        const Batch* batch = batches_.of(step.kernel);
        if (!batch)
          kernel(module_.kernels[step.kernel], nullptr);
        else if (step.kernel == batch->first)
          parts(*batch);
        continue;
      }
      barrier();
      used_[step.predicate] = 1;
      size_t branch = out_.size();
      out_.insert(out_.end(), {OP_BRANCH | Word{3} << kLengthShift,
                               static_cast<Word>(step.predicate), 0});
      arms(step, branch);
    }
  }

  void parts(const Batch& batch) {
    for (int64_t at = 0; at < batch.size; at += batch.part) {
      Slice slice{at, batch.part, &batches_.local()};
      for (int k = batch.first; k < batch.last; ++k) kernel(module_.kernels[k], &slice);
    }
  }

  // BRANCH jumps over the first arm, whose end jumps over the second.
  void arms(const IrStep& step, size_t branch) {
    // A slow thread still reads the predicate when others are in an arm.
    pending_.add(step.predicate, false);
    steps(step.then);
    barrier();
    size_t jump = out_.size();
    out_.insert(out_.end(), {OP_JUMP | Word{2} << kLengthShift, 0});
    out_[branch + 2] = out_.size();
    pending_.add(step.predicate, false);
    steps(step.otherwise);
    barrier();
    out_[jump + 1] = out_.size();
  }

  void kernel(const IrKernel& k, const Slice* slice) {
    make_shape(k, values_, shape_, slice);
    if (shape_.empty()) return;
    check_bounds(extents_, values_, k, shape_);
    Tiling tiling;
    if (device_)
      choose_device_tiles(k, shape_, tiling);
    else
      choose_tiles(k, values_, shape_, tiling);
    auto each = [&](auto visit) {
      for (const IrInstr& i : k.body)
        if (i.access >= 0 && i.op == OP_STORE) visit(k.accesses[i.access].buffer, true);
      for (const IrAccess& a : k.accesses) visit(a.buffer, false);
    };
    bool wait = false;
    each([&](int b, bool writes) { wait |= pending_.conflicts(b, writes); });
    if (wait) barrier();
    each([&](int b, bool writes) { pending_.add(b, writes); });
    kernels_.write(k, shape_, tiling);
    for (const Access& a : shape_.accesses) used_[a.buffer] = 1;
    cost_ += tiling.points * k.cost / 16;
    if (k.anchor < 0) return;
    const IrInstr& anchor = k.body[k.anchor];
    if (anchor.op == OP_MATMUL) cost_ += tiling.points * values_[anchor.constant] / 16;
    if (anchor.op == OP_CONVOLUTION) {
      const IrConvolution& c = k.convolutions[anchor.constant];
      int64_t depth = 0;
      for (int part : c.k) depth += values_[part];
      for (const IrWindow& w : c.windows) depth *= values_[w.taps];
      cost_ += tiling.points * depth / 16;
    }
  }

  const IrModule& module_;
  const std::vector<int64_t>& values_;
  std::vector<Word>& out_;
  bool device_;
  std::vector<int64_t> extents_;  // of the buffers, in elements
  Batches batches_;
  Arena arena_;
  Pending pending_;
  KernelWriter kernels_;
  Shape shape_;
  std::vector<char> used_;  // buffers
  int64_t cost_ = 0;
};

}  // namespace

std::unique_ptr<Program> Encoder::encode(std::span<const int64_t> sizes, bool device) const {
  if (static_cast<int>(sizes.size()) != module_.symbols)
    throw std::invalid_argument("encode() needs one size a symbol of the module");
  thread_local std::vector<int64_t> values;
  module_.evaluate(sizes, values);
  auto program = std::make_unique<Program>();
  std::vector<Word> words;
  words.reserve(256);
  Writer(module_, values, words, device).write();
  if (device) program->launches = lower_device(words);
  program->words = std::make_shared<const std::vector<Word>>(std::move(words));
  for (const IrBuffer& b : module_.buffers) {
    int64_t extent = std::max<int64_t>(values[b.extent], 0);
    if (b.kind == 1 && static_cast<size_t>(extent * kItemsize[b.type]) >= kHugeBytes)
      program->fresh.push_back(static_cast<int>(program->extents.size()));
    program->extents.push_back(extent);
  }
  return program;
}

}  // namespace vtc
