// Bytecode -> the device's form of it: reading, emitting, and the block that is launched.

#include <algorithm>
#include <cstring>

#include "device_emit.h"

namespace vtc {
namespace {

constexpr int kSharedBytes = 112 << 10;  // of a block where two are to be resident
// Kernels of so few tasks run one in a block: what they load is copied at once, but nothing ahead.
constexpr int64_t kFewTasks = 264;
constexpr int kMostStages = 4;        // of a task
constexpr int kMostPairedStages = 6;  // of a task, where two are run at once

// Copies ahead: which loads, and in how many stages. second: where the second of two tasks that are run
// at once has its own values; 0: one task is run at a time.
struct Pipeline {
  int copies = 0, stages = 0, stage_bytes = 0;
  int second = 0;
};

int copy_bytes(int type, int held) { return held * (kItemsize[type] == 2 ? 16 : 32); }

int64_t task_count(const KernelView& kernel) {
  int64_t n = 1;
  for (int d = 0; d < kernel.dims(); ++d) n *= kernel.tasks(d);
  return n;
}

// The only dimension with more than one task, or any where there is one task, if accesses have no masks
// and the kernel no loops; else -1.
int steady_dimension(const KernelView& kernel, const DeviceCode& read) {
  int found = -1;
  for (int d = 0; d < kernel.dims(); ++d) {
    if (kernel.tasks(d) == 1) continue;
    if (found >= 0) return -1;
    found = d;
  }
  if (found < 0 && kernel.dims()) found = 0;
  if (read.looped) return -1;
  for (const DeviceInstruction& r : read.code)
    if (r.access && AccessView{r.access}.masks()) return -1;
  return found;
}

bool is_load_or_store(int op) {
  return op == D_STORE || op == D_LOAD_A || op == D_LOAD_B || op == D_STAGED_A || op == D_STAGED_B;
}

Pipeline choose_stages(const DeviceWords& words, int held, int before, int64_t tasks) {
  Pipeline p;
  int least = tasks <= kFewTasks ? 1 : 2;
  for (const Copyable& c : words.copyable) {
    int size = copy_bytes(c.type, held);
    if (before + least * (p.stage_bytes + size) > kSharedBytes) break;
    p.stage_bytes += size;
    ++p.copies;
  }
  if (p.copies)
    p.stages = least == 1 ? 1 : std::min(kMostStages, (kSharedBytes - before) / p.stage_bytes);
  return p;
}

class Assembler {
 public:
  Assembler(const ProgramView& program, const KernelView& kernel, const DeviceCode& read,
            const DeviceEmitter& emitter, DeviceWords& words)
      : program_(program), kernel_(kernel), read_(read), emitter_(emitter), words_(words) {}

  DeviceKernel assemble() {
    DeviceKernel own;
    own.tasks = task_count(kernel_);
    if (own.tasks >> 31) throw EncodeError("a kernel has too many tasks for the device");
    int accesses = static_cast<int>(words_.accesses.size());
    int scratch = words_.shared_bytes, warps = scratch + scratch_bytes();
    int copyable = static_cast<int>(words_.copyable.size());
    int behind = warps + kMostWarps * warp_bytes(accesses + copyable);
    steady_ = steady_dimension(kernel_, read_);
    plain_ = plain();
    // A tile that lacks elements lands, on its way to or from A and B, where the values of a second
    // task lie: of such tiles one is run at a time.
    int landing = land(behind);
    int own_bytes = words_.shared_bytes - words_.prologue_bytes;
    int before = behind + std::max(landing, own_bytes);
    Pipeline p = pair_stages(before, own.tasks);
    if (!p.second) {
      before = behind + landing;
      p = choose_stages(words_, held_(), before, own.tasks);
    } else {
      p.second = behind - words_.prologue_bytes;
    }

    int buffers = static_cast<int>(words_.buffers.size());
    int head = kBlockWords + 2 * buffers + program_.params();
    size_t table = head + kHeadFixed + 3 * kernel_.dims();
    size_t pool = table + accesses + p.copies;
    size_t code = (pool + words_.pool.size() + 1) / 2 * 2;
    resolve(p, pool, code);

    std::vector<Word>& out = own.block;
    out.resize(code + words_.code.size());
    out[2] = static_cast<Word>(buffers) | static_cast<Word>(head) << 16 |
             static_cast<Word>(program_.params()) << 32 |
             static_cast<Word>(kernel_.number()) << 48;
    for (int b = 0; b < buffers; ++b)
      if (int n = words_.buffers[b]; n >= 0)
        out[kBlockWords + 2 * b + 1] =
            static_cast<Word>(program_.extent(n)) | static_cast<Word>(n) << kExtentBits;
    write_head(out.data() + head, p, own.tasks, code, before);
    for (int n = 0; n < accesses; ++n) out[table + n] = words_.accesses[n] + pool;
    for (int n = 0, at = 0; n < p.copies; ++n) {
      const Copyable& c = words_.copyable[n];
      out[table + accesses + n] =
          static_cast<Word>(c.access) | static_cast<Word>(at) << 32;
      at += copy_bytes(c.type, held_());
    }
    std::copy(words_.pool.begin(), words_.pool.end(), out.begin() + pool);
    std::copy(words_.code.begin(), words_.code.end(), out.begin() + code);
    own.buffers = words_.buffers;
    own.shared_bytes = block_bytes(static_cast<int>(out.size())) + before + p.stages * p.stage_bytes;
    if (own.shared_bytes > kMostSharedBytes)
      throw EncodeError("the values of a kernel do not fit the device");
    return own;
  }

 private:
  int scratch_bytes() const { return read_.places ? 2 * kScratchBytes : kScratchBytes; }

  int held_() const { return emitter_.held; }

  // Two tasks at once, if there are some that are alike and their values and copies fit.
  Pipeline pair_stages(int before, int64_t tasks) const {
    Pipeline p;
    if (!plain_ || steady_ < 0 || tasks <= kFewTasks || held_() != kSlots) return p;
    for (const Copyable& c : words_.copyable) p.stage_bytes += copy_bytes(c.type, held_());
    p.copies = static_cast<int>(words_.copyable.size());
    if (before + 4 * p.stage_bytes > kSharedBytes) return p;
    if (p.copies)
      p.stages = std::min(kMostPairedStages, (kSharedBytes - before) / p.stage_bytes / 2 * 2);
    p.second = 1;
    return p;
  }

  // The place of tiles at `byte`, in the instructions that need it; its bytes.
  int land(int byte) {
    bool any = false;
    for (size_t at = 0; at < words_.code.size(); at += 2) {
      Word& head = words_.code[at];
      if (!is_load_or_store(static_cast<int>(head & 0xff))) continue;
      head |= static_cast<Word>(kShared | byte / 16) << 16;
      any = true;
    }
    return any ? wide_bytes(held_(), 4) : 0;
  }

  // Has the body no loops, no operators on shared memory, no accumulators?
  bool plain() const {
    for (size_t at = words_.body; at < words_.code.size(); at += 2) {
      int op = static_cast<int>(words_.code[at] & 0xff);
      if (op > D_DONE || op == D_ACCUM) return false;
    }
    return true;
  }

  // Words of the pool and of the code become words of the block; loads that are copied ahead find
  // what has been copied.
  void resolve(const Pipeline& p, size_t pool, size_t code) {
    for (size_t at : words_.pool_arguments) words_.code[at] += pool;
    for (size_t at : words_.code_targets) words_.pool[at] += code;
    Word at = 0;
    for (int n = 0; n < p.copies; ++n) {
      const Copyable& c = words_.copyable[n];
      words_.code[c.at] += D_STAGED_A - D_LOAD_A;  // or of B
      words_.code[c.at + 1] = at;
      at += static_cast<Word>(copy_bytes(c.type, held_()));
    }
  }

  void write_head(Word* head, const Pipeline& p, int64_t tasks, size_t code, int stages_at) const {
    *head++ = static_cast<Word>(kernel_.dims()) | static_cast<Word>(kernel_.row()) << 8 |
              static_cast<Word>(kernel_.column()) << 16 | static_cast<Word>(p.copies) << 24 |
              static_cast<Word>(p.stages) << 32 |
              static_cast<Word>(words_.accesses.size()) << 40 |
              static_cast<Word>(steady_ + 1) << 48 | static_cast<Word>(plain_) << 56;
    *head++ = static_cast<Word>(read_.slots) | static_cast<Word>(emitter_.distance) << 16 |
              static_cast<Word>(kernel_.rows()) << 32 |
              static_cast<Word>(std::min<int64_t>(kernel_.columns(), 65535)) << 48;
    *head++ = static_cast<Word>(tasks);
    *head++ = code | (code + words_.body) << 32;
    *head++ = static_cast<Word>(stages_at) | static_cast<Word>(words_.shared_bytes) << 32;
    *head++ = static_cast<Word>(words_.shared_bytes + scratch_bytes()) |
              static_cast<Word>(p.stage_bytes) << 32;
    *head++ = static_cast<Word>(words_.prologue_bytes / 16) | static_cast<Word>(p.second) << 32;
    for (int d = 0; d < kernel_.dims(); ++d) {
      *head++ = static_cast<Word>(kernel_.size(d));
      *head++ = static_cast<Word>(kernel_.span(d));
      *head++ = static_cast<Word>(kernel_.tasks(d));
    }
  }

  const ProgramView& program_;
  const KernelView& kernel_;
  const DeviceCode& read_;
  const DeviceEmitter& emitter_;
  DeviceWords& words_;
  int steady_ = -1;
  bool plain_ = false;
};

void clear(DeviceWords& words) {
  words.code.clear(), words.pool.clear(), words.accesses.clear(), words.copyable.clear();
  words.code_targets.clear(), words.pool_arguments.clear(), words.buffers.clear();
  words.body = 0, words.shared_bytes = words.prologue_bytes = 0;
}

DeviceKernel lower(const ProgramView& program, const KernelView& kernel) {
  thread_local DeviceCode read;
  thread_local DeviceWords words;
  clear(words);
  read.read(kernel);
  DeviceEmitter emitter(program, kernel, read, words);
  emitter.emit();
  DeviceKernel own = Assembler(program, kernel, read, emitter, words).assemble();
  own.rows = find_rows(program, kernel, read);
  return own;
}

}  // namespace

namespace {

// The steps of a program one behind another: what is in an arm of a branch has conditions.
class StepWalk {
 public:
  StepWalk(std::vector<Word>& words, std::vector<DeviceKernel>& kernels)
      : words_(words), program_{words.data()}, kernels_(kernels) {}

  void run() {
    const Word* w = program_.steps();
    while (op_of(*w) != OP_END) {
      leave_arms(w);
      switch (op_of(*w)) {
        case OP_BARRIER:
          waits_ = true;
          w += 1;
          break;
        case OP_BRANCH: w = branch(w); break;
        case OP_JUMP: w = jump(w); break;
        default: {
          KernelView kernel{w};
          add(lower(program_, kernel));
          w += kernel.words();
        }
      }
    }
  }

 private:
  struct Arm {
    const Word* end;
    DeviceCondition condition;
  };

  void add(DeviceKernel kernel) {
    kernel.waits = waits_ && !kernels_.empty();
    waits_ = false;
    for (const Arm& arm : arms_) kernel.conditions.push_back(arm.condition);
    kernels_.push_back(std::move(kernel));
  }

  // An arm ends where the other one, or what follows, begins.
  void leave_arms(const Word* w) {
    while (!arms_.empty() && arms_.back().end == w) arms_.pop_back();
  }

  const Word* branch(const Word* w) {
    DeviceKernel decision;
    decision.block.resize(kDecisionWords);
    decision.buffers = {static_cast<int>(w[1])};
    decision.tasks = 1;
    decision.shared_bytes = 16;
    decision.decision = program_.arena_bytes();
    words_[2] += 64;
    int64_t at = decision.decision;
    add(std::move(decision));
    waits_ = true;
    arms_.push_back({words_.data() + w[2], {at, true}});
    return w + 3;
  }

  // At the end of a first arm: the second one is here, up to where it would have jumped.
  const Word* jump(const Word* w) {
    int64_t at = arms_.back().condition.offset;
    arms_.pop_back();
    arms_.push_back({words_.data() + w[1], {at, false}});
    waits_ = true;
    return w + 2;
  }

  std::vector<Word>& words_;
  ProgramView program_;
  std::vector<DeviceKernel>& kernels_;
  std::vector<Arm> arms_;
  bool waits_ = false;
};

}  // namespace

size_t DeviceKernel::words() const { return kPrefixWords + conditions.size() + block.size(); }

void fill_kernel(const DeviceKernel& kernel, std::span<const uintptr_t> pointers,
                 std::span<const double> params, uintptr_t arena, uintptr_t fault, Word* to) {
  *to++ = static_cast<Word>(kernel.block.size()) | static_cast<Word>(kernel.conditions.size()) << 32;
  *to++ = static_cast<Word>(kernel.decision >= 0) << kDecisionShift;
  for (const DeviceCondition& own : kernel.conditions)
    *to++ = (arena + own.offset) | static_cast<Word>(!own.wanted) << kUnlessShift;
  std::copy(kernel.block.begin(), kernel.block.end(), to);
  to[0] = fault;
  if (kernel.decision >= 0) {
    to[1] = pointers[kernel.buffers[0]];
    to[3] = arena + kernel.decision;
    return;
  }
  Word unaligned = 0;
  for (size_t b = 0; b < kernel.buffers.size(); ++b) {
    uintptr_t address = kernel.buffers[b] < 0 ? arena : pointers[kernel.buffers[b]];
    to[kBlockWords + 2 * b] = address;
    if (address % 16) unaligned |= Word{1} << b;
  }
  to[1] = unaligned;
  if (!params.empty())
    std::memcpy(to + kBlockWords + 2 * kernel.buffers.size(), params.data(), params.size_bytes());
}

int64_t share_blocks(std::span<const DeviceKernel> kernels, int64_t most, Word* words) {
  int64_t grid = 1;
  for (size_t first = 0; first < kernels.size();) {
    size_t last = first + 1;
    int64_t tasks = kernels[first].tasks;
    for (; last < kernels.size() && !kernels[last].waits; ++last) tasks += kernels[last].tasks;
    bool beside = tasks <= most;
    int64_t from = 0;
    for (size_t n = first; n < last; ++n) {
      const DeviceKernel& kernel = kernels[n];
      Word& range = words[1];
      range |= static_cast<Word>(kernel.waits) << kWaitShift;
      if (beside) range |= static_cast<Word>(from) | static_cast<Word>(kernel.tasks) << kBlocksShift;
      from += kernel.tasks;
      grid = std::max(grid, std::min(beside ? from : kernel.tasks, most));
      words += kernel.words();
    }
    first = last;
  }
  return grid;
}

std::vector<DeviceKernel> lower_device(std::vector<Word>& words) {
  ProgramView program{words.data()};
  std::vector<DeviceKernel> kernels;
  kernels.reserve(program.kernels());
  StepWalk(words, kernels).run();
  for (DeviceKernel& kernel : kernels) {
    size_t n = kernel.words();
    if (kernel.block.size() > kMostWords) throw EncodeError("a kernel is too long for the device");
    if (n <= kLaunchWords) continue;
    kernel.arena_offset = program.arena_bytes();
    words[2] += (n * sizeof(Word) + 63) / 64 * 64;
  }
  return kernels;
}

}  // namespace vtc
