// The interpreter: steps of a program, tasks of a kernel, instructions of a task.

#include "run.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "helpers.h"
#include "state.h"
#include "team.h"

namespace vtc {
namespace {

using Clock = std::chrono::steady_clock;

void set_extent(State& s, int d, int64_t extent) {
  if (d == s.row) s.r = extent;
  if (d == s.column) s.c = extent;
}

int64_t task_extent(const State& s, int d) {
  return std::min(s.kernel.span(d), s.kernel.size(d) - s.start[d]);
}

// A prologue or body, up to its DONE.
void execute(State& s, const Word* w) {
  for (;;) {
    switch (op_of(*w)) {
      case OP_DONE: return;
      case OP_LOOP: {
        int d = dst_of(*w);
        int64_t extent = task_extent(s, d);
        if (extent <= 0) {
          w += w[2];
          continue;
        }
        set_extent(s, d, std::min(static_cast<int64_t>(w[1]), extent));
        w += 3;
        continue;
      }
      case OP_ENDLOOP: {
        const Word* loop = w - w[1];
        int d = dst_of(*loop);
        int64_t step = static_cast<int64_t>(loop[1]), extent = task_extent(s, d);
        int64_t left = s.start[d] + extent - (s.coordinate[d] + step);
        if (left > 0) {
          s.coordinate[d] += step;
          set_extent(s, d, std::min(step, left));
          w = loop + 3;
        } else {
          s.coordinate[d] = s.start[d];
          set_extent(s, d, extent);
          w += 2;
        }
        continue;
      }
      case OP_CONST: constant(s, w); break;
      case OP_PARAM: param(s, w); break;
      case OP_IOTA: iota(s, w); break;
      case OP_MOVE: move(s, w); break;
      case OP_LOAD:
        if (const Word* next = fold_loads(s, w)) {
          w = next;
          continue;
        }
        load(s, w);
        break;
      case OP_STORE: store(s, w); break;
      case OP_BIND: bind(s, w); break;
      case OP_CAST: cast(s, w); break;
      case OP_REDUCE: reduce(s, w); break;
      case OP_INIT: init(s, w); break;
      case OP_ACCUM: accumulate(s, w); break;
      case OP_FINISH: finish(s, w); break;
      case OP_SCAN: scan(s, w); break;
      case OP_SPILL: spill(s, w); break;
      case OP_MERGE: merge(s, w); break;
      case OP_MATMUL: matmul(s, w); break;
      case OP_ATTENTION: attention(s, w); break;
      case OP_CONVOLUTION: w = convolution(s, w); continue;
      default: w = map(s, w); continue;
    }
    w += words_of(w);
  }
}

void set_task(State& s, int64_t task) {
  s.task = task;
  s.r = s.c = 1;
  for (int d = s.kernel.dims() - 1; d >= 0; --d) {
    int64_t n = s.kernel.tasks(d);
    s.start[d] = s.coordinate[d] = task % n * s.kernel.span(d);
    task /= n;
    set_extent(s, d, std::max<int64_t>(task_extent(s, d), 0));
  }
}

int64_t tasks_of(KernelView kernel) {
  int64_t tasks = 1;
  for (int d = 0; d < kernel.dims(); ++d) tasks *= kernel.tasks(d);
  return tasks;
}

// Readies a thread for tasks of a kernel.
void begin_kernel(State& s, const Word* w) {
  s.kernel = {w};
  s.row = s.kernel.row();
  s.column = s.kernel.column();
  s.packed_base = s.left_base = nullptr;
  char* memory = s.registers.get(s.run->program.register_bytes());
  for (int i = 0; i < s.kernel.registers(); ++i)
    s.home[i] = s.reg[i] = memory + (s.kernel.reg(i) & 0xffffffff);
  set_task(s, 0);
  execute(s, s.kernel.prologue());
}

void run_tasks(State& s, int64_t first, int64_t last) {
  for (int64_t task = first; task < last; ++task) {
    set_task(s, task);
    execute(s, s.kernel.body());
  }
}

// The steps of a program as one of its threads takes them.
class Walk {
 public:
  Walk(State& s, int thread)
      : s_(s), sharing_(s.run->sharing), thread_(thread), timed_(s.run->times && thread == 0) {}

  void run() {
    const Word* program = s_.run->program.w;
    for (const Word* w = s_.run->program.steps();; ++step_) {
      switch (op_of(*w)) {
        case OP_END: return end();
        case OP_BARRIER:
          barrier();
          w += 1;
          break;
        case OP_BRANCH: w = branch(w) ? w + 3 : program + w[2]; break;
        case OP_JUMP: w = program + w[1]; break;
        default:
          kernel(w);
          w += w[2];
      }
    }
  }

 private:
  void barrier() {
    if (!sharing_) return;
    sharing_->finish(step_, mine_, all_);
    mine_ = all_ = 0;
    if (last_ >= 0) charge();
  }

  // The first thread is the caller: it returns when everything is done. Nobody waits for helpers.
  void end() {
    if (!sharing_) return;
    if (thread_ == 0)
      sharing_->finish(step_, mine_, all_);
    else
      sharing_->add(step_, mine_, all_);
    if (last_ >= 0) charge();
  }

  bool branch(const Word* w) const {
    const char* predicate = s_.run->pointers[w[1]];
    return sharing_ ? sharing_->decide(step_, predicate) : *predicate != 0;
  }

  void kernel(const Word* w) {
    KernelView kernel{w};
    int64_t tasks = tasks_of(kernel), first = 0, last = tasks;
    bool begun = false;
    all_ += tasks;
    while (sharing_ ? sharing_->claim(step_, tasks, thread_, first, last) : first < last) {
      mine_ += last - first;
      // An exception may not leave a helper; others wait for what was claimed.
      try {
        if (!begun && !s_.run->out_of_memory) begin_kernel(s_, w);
        begun = true;
        if (!s_.run->out_of_memory) run_tasks(s_, first, last);
      } catch (const std::bad_alloc&) {
        s_.run->out_of_memory = true;
      }
      first = last;
    }
    last_ = kernel.number();
    charge();
  }

  // Charges the time since the last charge to the last kernel.
  void charge() {
    if (!timed_) return;
    Clock::time_point now = Clock::now();
    s_.run->times[last_] += std::chrono::nanoseconds(now - from_).count();
    from_ = now;
  }

  State& s_;
  Sharing* sharing_;
  int thread_;
  bool timed_;
  Clock::time_point from_ = Clock::now();
  int64_t step_ = 0;            // along the path that all threads take
  int64_t mine_ = 0, all_ = 0;  // tasks of this phase: done by this thread, by whomever
  int64_t last_ = -1;           // the last kernel
};

constexpr int kMostThreads = 1024;

// Threads keep their memory from one run to the next.
State& thread_state() {
  thread_local State state{};
  return state;
}

// No path through a program has more steps.
int64_t count_steps(ProgramView program) {
  int64_t steps = 1;
  for (const Word* w = program.steps(); op_of(*w) != OP_END; ++steps) {
    switch (op_of(*w)) {
      case OP_BARRIER: w += 1; break;
      case OP_BRANCH: w += 3; break;
      case OP_JUMP: w += 2; break;
      default: w += w[2];
    }
  }
  return steps;
}

// Programs that run at the same time, called from several threads, share the processors. Results do
// not depend on how many threads compute them.
class Running {
 public:
  Running() : others_(count_.fetch_add(1, std::memory_order_relaxed)) {}
  ~Running() { count_.fetch_sub(1, std::memory_order_relaxed); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  int share(int threads) const { return std::max(1, threads / (others_ + 1)); }

 private:
  inline static std::atomic<int> count_{0};
  int others_;
};

void take_part(Run& run, int thread) {
  State& s = thread_state();
  s.run = &run;
  s.table = &table();
  Walk(s, thread).run();
}

// A run that several threads take part in. It owns what a helper that comes late reads.
class SharedRun : public Job {
 public:
  void start(Words words, char** at, const double* params, char* arena, int64_t* times,
             int threads) {
    words_ = std::move(words);
    ProgramView program{words_->data()};
    pointers_.assign(at, at + program.buffers());
    sharing_.start(count_steps(program), threads);
    run_.emplace(program, pointers_.data(), params, arena, times, &sharing_);
  }

  void help(int thread) override { take_part(*run_, thread); }

  Run& run() { return *run_; }

 private:
  Words words_;
  std::vector<char*> pointers_;
  Sharing sharing_;
  std::optional<Run> run_;
};

// The caller's own, used again unless a helper that is late still has it.
std::shared_ptr<SharedRun> thread_run() {
  thread_local std::shared_ptr<SharedRun> own;
  if (!own || own.use_count() > 1) own = std::make_shared<SharedRun>();
  std::atomic_thread_fence(std::memory_order_acquire);
  return own;
}

// Where an empty buffer without an address is said to be: tiles that lie outside of it, and are masked
// off, are still given one.
alignas(64) char nowhere[64];

Scratch& thread_arena() {
  thread_local Scratch arena;
  return arena;
}

// Memory beside the caller's buffers that running programs have, in bytes, and the most there was.
std::atomic<int64_t> workspace{0}, workspace_peak{0};

class Workspace {
 public:
  explicit Workspace(int64_t bytes) : bytes_(bytes) {
    int64_t now = workspace.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    int64_t peak = workspace_peak.load(std::memory_order_relaxed);
    while (now > peak && !workspace_peak.compare_exchange_weak(peak, now)) {
    }
  }
  ~Workspace() { workspace.fetch_sub(bytes_, std::memory_order_relaxed); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

 private:
  int64_t bytes_;
};

}  // namespace

uint64_t run_program(const Words& words, const uintptr_t* pointers, const double* params,
                     int threads, int64_t* times) {
  ProgramView program{words->data()};
  char* arena = thread_arena().get(program.arena_bytes() + 64);
  thread_local std::vector<char*> at;
  at.resize(program.buffers());
  for (int b = 0; b < program.buffers(); ++b) {
    switch (program.kind(b)) {
      case BUFFER_ARENA: at[b] = arena + program.offset(b); break;
      case BUFFER_HOSTED:
        at[b] = reinterpret_cast<char*>(pointers[program.host(b)]) + program.offset(b);
        break;
      default: at[b] = pointers[b] ? reinterpret_cast<char*>(pointers[b]) : nowhere;
    }
  }
  Running running;
  threads = program.parallel() ? running.share(std::min(threads, kMostThreads)) : 1;
  Workspace held(program.arena_bytes() + threads * program.register_bytes());
  auto done = [](const Run& run) {
    if (run.out_of_memory) throw std::bad_alloc();
    return run.fault.load();
  };
  if (threads == 1) {
    Run run{program, at.data(), params, arena, times, nullptr};
    take_part(run, 0);
    return done(run);
  }
  std::shared_ptr<SharedRun> shared = thread_run();
  shared->start(words, at.data(), params, arena, times, threads);
  if (Team& team = Team::own(); team.ready(threads)) {
    team.run(threads, [&](int thread) { shared->help(thread); });
  } else {
    Offer offer(shared, threads - 1);
    shared->help(0);
  }
  return done(shared->run());
}

int64_t take_workspace_peak() { return workspace_peak.exchange(workspace.load()); }

}  // namespace vtc
