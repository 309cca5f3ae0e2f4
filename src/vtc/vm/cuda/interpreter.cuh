// The DVM's interpreter: one kernel of a program a launch, in the form of layout.h.
//
// A block of threads takes tasks in turn. While it computes one, the loads of the next ones are on
// their way into shared memory, where each thread finds what it has itself asked for.
#pragma once

#include "even.cuh"

namespace vtc {

// A LOOP over dimension dst whose step is `step` begins. False if it has no pass.
__device__ __forceinline__ bool enter_loop(Tile& t, int d, int64_t step) {
  int64_t whole = t.extent(d, t.coordinate(0)[d]);
  t.set_extent(d, step < whole ? step : whole);
  return whole > 0;
}

// The next pass of a LOOP over dimension d, if there is one; else the coordinate is the task's again.
__device__ __forceinline__ bool next_pass(Tile& t, int d, int64_t step) {
  int64_t* at = t.coordinate(0);
  int64_t span = t.span(d), now = at[d], start = now / span * span, whole = t.extent(d, start);
  int64_t left = start + whole - (now + step);
  __syncwarp();
  if (t.thread % 32 == 0) at[d] = left > 0 ? now + step : start;
  t.set_extent(d, left > 0 ? (step < left ? step : left) : whole);
  __syncwarp();
  return left > 0;
}

__device__ __forceinline__ void start(Tile& t, Spots& s, unsigned char* shared, int count) {
  start(t, shared, count);
  s.distance = t.distance();
  s.live = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g)
    s.at[g] = static_cast<uint32_t>(t.i(g)) << 16 | static_cast<uint32_t>(t.j(g));
}

// The byte of a stage in shared memory.
__device__ __forceinline__ int stage_at(const Tile& t, int stage) {
  return static_cast<int>(t.words[t.head + 4] & 0xffffffff) +
         stage * static_cast<int>(t.words[t.head + 5] >> 32);
}

// The stage before it in turn: the one that is filled while a task of `stage` runs.
__device__ __forceinline__ int stage_before(int stage, int stages) {
  return stage ? stage - 1 : stages - 1;
}

// Tasks from the first on that have as many elements as any, where all are along one dimension.
__device__ __forceinline__ int even_tasks(const Tile& t) {
  int d = t.steady(), all = t.tasks();
  return t.size(d) == static_cast<int64_t>(all) * t.span(d) ? all : all - 1;
}

// Tasks of a block from `task` on, whose cursors are there, that `run_even` may run; 0: it may not.
__device__ __forceinline__ int count_even(const Tile& t, int task) {
  if (!t.plain() || t.steady() < 0 || t.groups != kGroups) return 0;
  int even = even_tasks(t);
  if (task + t.blocks() >= even) return 0;  // one task is not worth it
  int all = t.accesses() + t.copies();
  for (int n = 0; n < all; ++n)
    if (!(cursor_of_first(t, n).flags() & kWhole)) return 0;
  return (even - task + t.blocks() - 1) / t.blocks();
}

// Runs instructions from `pc` on: all tasks, or up to where `run_even` may go on.
__device__ __forceinline__ Progress run(Tile& t, Spots& s, Progress progress, int pc) {
  int task = progress.task, stage = progress.stage, stages = t.stages();
  bool prepared = false;
  Values a, b;
  forget(a);
  forget(b);
  Scratch scratch;
  const Pair* code = reinterpret_cast<const Pair*>(t.words.p);
  for (;;) {
    Pair now = code[pc++];
    Instruction own{now.head};
    switch (own.op()) {
      case D_NARROW: narrow_scalar(t, own, now.argument); break;
      case D_STORE: store(t, s, own, a); break;
      case D_KEEP_A: keep(t, own.dst(), a); break;
      case D_KEEP_B: keep(t, own.dst(), b); break;
      case D_REDUCE: reduce(t, s, scratch, own, now.argument, a); break;
      case D_ACCUM: accumulate(t, s, own, static_cast<int>(now.argument), a); break;
      case D_LOAD_A: load(t, s, own, a); break;
      case D_LOAD_B: load(t, s, own, b); break;
      case D_STAGED_A: load_staged(t, s, own, stage_at(t, stage), now.argument, a); break;
      case D_STAGED_B: load_staged(t, s, own, stage_at(t, stage), now.argument, b); break;
      case D_FETCH_A: fetch(t, own.a(), now.argument, a); break;
      case D_FETCH_B: fetch(t, own.a(), now.argument, b); break;
      case D_B_TO_A: move(a, b); break;
      case D_A_TO_B: move(b, a); break;
      case D_SELECT:
        each_of_three(t, own.a(), now.argument, a, b, [](float x, float y, float z) {
          return __float_as_uint(x) ? y : z;
        });
        break;
      case D_CHOOSE_A:
        each_of_three(t, own.a(), now.argument, a, b, [](float x, float y, float z) {
          return __float_as_uint(z) ? x : y;
        });
        break;
      case D_CHOOSE_B:
        each_of_three(t, own.a(), now.argument, a, b, [](float x, float y, float z) {
          return __float_as_uint(z) ? y : x;
        });
        break;
      case D_FMA:
        each_of_three(t, own.a(), now.argument, a, b,
                      [](float x, float y, float z) { return fmaf(x, y, z); });
        break;
      case D_BF16: round_bf16(a); break;
      case D_F16: round_f16(a); break;
#define VTC_CASE(OP, RESULT) \
  case OP: each(a, [](float x) { return RESULT; }); break;
        VTC_UNARY(VTC_CASE)
#undef VTC_CASE
#define VTC_CASE(OP, RESULT)                                                  \
  case OP: each(a, b, [](float x, float y) { return RESULT; }); break;        \
  case OP + kScalarForm:                                                      \
    each(a, scalar_at(t, own.a(), now.argument),                              \
         [](float x, float y) { return RESULT; });                            \
    break;
        VTC_BINARY(VTC_CASE)
#undef VTC_CASE
      case D_DONE: {
        int grid = t.blocks(), last = t.tasks() - 1;
        if (prepared) {
          task += grid;
          stage = stage + 1 < stages ? stage + 1 : 0;
          if (task > last) return {task, stage};
        }
        forget(a);
        forget(b);
        // Cursors are those of a task before, of copies too, where tasks are along one dimension; the
        // last one may have less.
        int ahead = stages ? task + (stages - 1) * grid : last + 1, steps = 0;
        bool steady = t.steady() >= 0;
        bool there = prepared ? steady && t.r >= 0 && task < last : steady || stages <= 1;
        if (!prepared && there)
          if (int even = count_even(t, task)) return {task, stage, 0, even};
        if (there && !(stages > 1 && ahead == last)) {
          t.steps += prepared;
          steps = t.steps + stages - 1;
        } else {
          int r = t.r, c = t.c;
          take_task(t, task, ahead);
          if (t.r != r || t.c != c) s.set_live(t);
        }
        if (stages) {
          bool started = !prepared && stages == 1;
          if (ahead <= last && !started)
            copy_ahead(t, s, stage_at(t, stage_before(stage, stages)), steps);
          commit_copies();
          wait_copies(stages - 1);
        }
        prepared = true;
        pc = static_cast<int>(t.words[t.head + 3] >> 32) / 2;
        break;
      }
      case D_LOOP: {
        int more = static_cast<int>(now.argument);
        if (!enter_loop(t, own.dst(), t.words.number(more)))
          pc = static_cast<int>(t.words[more + 1]) / 2;
        forget(a);
        forget(b);
        point_all(t);
        s.set_live(t);
        break;
      }
      case D_ENDLOOP: {
        int more = static_cast<int>(now.argument);
        if (next_pass(t, own.dst(), t.words.number(more)))
          pc = static_cast<int>(t.words[more + 2]) / 2;
        forget(a);
        forget(b);
        point_all(t);
        s.set_live(t);
        break;
      }
      case D_SLOW:
        slow(t, now.head, static_cast<int>(now.argument), task);
        forget(a);
        forget(b);
        break;
      default: __builtin_unreachable();
    }
  }
}

// Leaves the tile at a block's first task, and starts the copies of that one and of those behind it, but
// for the last stage.
__device__ __forceinline__ void start_copies(Tile& t, const Spots& s, Progress from) {
  int stages = t.stages(), last = t.tasks() - 1;
  bool steady = t.steady() >= 0, moved = false;
  take_task(t, from.task, stages ? from.task : last + 1);
  for (int n = 0; stages && (n == 0 || n < stages - 1); ++n) {
    int ahead = from.task + n * t.blocks(), stage = from.stage + n;
    bool other = n && (!steady || ahead == last);
    if (ahead <= last) {
      if (other) take_task(t, from.task, ahead);
      moved |= other;
      copy_ahead(t, s, stage_at(t, stage < stages ? stage : stage - stages), other ? 0 : n);
    }
    commit_copies();
  }
  if (moved && steady) take_task(t, from.task, from.task);
}

// The general case from task `now` on, which is the first one, or where `run_even` has left off. A
// function of its own, so that its registers are.
VTC_OUT_OF_LINE __device__ Progress run_any(int count, Progress now) {
  Tile t;
  Spots s;
  start(t, s, shared_memory(), count);
  Word code = t.words[t.head + 3];
  // What the prologue computes is the same at the coordinates of all tasks. Once it is done, from the
  // instruction before the body on, which ends a task.
  int pc = static_cast<int>(code & 0xffffffff) / 2;
  if (now.steps) pc = static_cast<int>(code >> 32) / 2 - 1;
  start_copies(t, s, now);
  s.set_live(t);
  return run(t, s, now, pc);
}

// Runs the block of `count` words at the start of shared memory.
__device__ __forceinline__ void interpret(unsigned char* shared, int count) {
  Tile t;
  start(t, shared, count);
  Progress now{t.first(), 0};
  int tasks = t.tasks();
  bool pairs = t.own_bytes();
  if (now.task >= tasks) return;
  now = run_any(count, now);
  if (!now.even) return;
  if (pairs && now.even > 1) now = run_even<2>(count, now);
  if (now.steps < now.even) {
    if (now.steps) wait_copies(0);
    now = run_even<1>(count, now);
  }
  if (now.task < tasks) run_any(count, now);  // the last one, which differs
}

}  // namespace vtc
