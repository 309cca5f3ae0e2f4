// The interpreter: steps of a program, tasks of a kernel, instructions of a task.

#include "run.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "state.h"

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
      case OP_LOAD: load(s, w); break;
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
      case OP_CONVOLUTION: convolution(s, w); break;
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

void run_kernel(State& s, const Word* w, int thread, int threads) {
  s.kernel = {w};
  s.row = s.kernel.row();
  s.column = s.kernel.column();
  s.packed_base = s.left_base = nullptr;
  int64_t tasks = 1;
  for (int d = 0; d < s.kernel.dims(); ++d) tasks *= s.kernel.tasks(d);
  int64_t first = tasks * thread / threads, last = tasks * (thread + 1) / threads;
  if (first == last) return;
  char* memory = s.registers.get(s.run->program.register_bytes());
  for (int i = 0; i < s.kernel.registers(); ++i)
    s.home[i] = s.reg[i] = memory + (s.kernel.reg(i) & 0xffffffff);
  set_task(s, 0);
  execute(s, s.kernel.prologue());
  for (int64_t task = first; task < last; ++task) {
    set_task(s, task);
    execute(s, s.kernel.body());
  }
}

// Charges the time since `from` to a kernel, and starts again.
void charge(const State& s, int64_t kernel, Clock::time_point& from) {
  Clock::time_point now = Clock::now();
  s.run->times[kernel] += std::chrono::nanoseconds(now - from).count();
  from = now;
}

void run_steps(State& s, int thread, int threads) {
  const Word* program = s.run->program.w;
  bool timed = s.run->times && thread == 0;
  Clock::time_point from = Clock::now();
  int64_t last = -1;
  for (const Word* w = s.run->program.steps();;) {
    switch (op_of(*w)) {
      case OP_END: return;
      case OP_BARRIER:
        if (threads > 1) {
          s.run->barrier.wait(threads);
          if (timed && last >= 0) charge(s, last, from);
        }
        w += 1;
        break;
      case OP_BRANCH: w = *s.run->pointers[w[1]] ? w + 3 : program + w[2]; break;
      case OP_JUMP: w = program + w[1]; break;
      default:
        // An exception may not leave the parallel region, nor keep a thread from its barriers.
        try {
          run_kernel(s, w, thread, threads);
          last = s.kernel.number();
          if (timed) charge(s, last, from);
        } catch (const std::bad_alloc&) {
          s.run->out_of_memory = true;
        }
        w += w[2];
    }
  }
}

// Threads keep their memory from one run to the next.
State& thread_state() {
  thread_local State state{};
  return state;
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

Scratch& thread_arena() {
  thread_local Scratch arena;
  return arena;
}

}  // namespace

uint64_t run_program(const Word* words, const uintptr_t* pointers, const double* params,
                     int64_t* times) {
  ProgramView program{words};
  char* arena = thread_arena().get(program.arena_bytes() + 64);
  thread_local std::vector<char*> at;
  at.resize(program.buffers());
  for (int b = 0; b < program.buffers(); ++b)
    at[b] = program.in_arena(b) ? arena + program.offset(b) : reinterpret_cast<char*>(pointers[b]);
  Run run{program, at.data(), params, arena, times};
  Running running;
  int threads = program.parallel() ? running.share(omp_get_max_threads()) : 1;
  auto work = [&run](int thread, int count) {
    State& s = thread_state();
    s.run = &run;
    s.table = &table();
    run_steps(s, thread, count);
  };
  if (threads == 1) {
    work(0, 1);
  } else {
#pragma omp parallel num_threads(threads)
    work(omp_get_thread_num(), omp_get_num_threads());
  }
  if (run.out_of_memory) throw std::bad_alloc();
  return run.fault.load();
}

}  // namespace vtc
