// The DVM's interpreter: one kernel of a program a launch, in the form of layout.h.
//
// A block of threads takes tasks in turn. While it computes one, the loads of the next ones are on
// their way into shared memory, where each thread finds what it has itself asked for.
#pragma once

#include "folds.cuh"
#include "registers.cuh"

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
  const Word* words = reinterpret_cast<const Word*>(shared);
  t.words = Words{words};
  t.shared = shared + block_bytes(count);
  t.thread = threadIdx.x;
  t.head = static_cast<int>(words[2] >> 16 & 0xffff);
  int rows = static_cast<int>(words[t.head + 1] >> 32 & 0xffff);
  t.groups = (rows * t.slots() + kThreads - 1) / kThreads;
  t.r = t.c = -1;
  t.steps = 0;
  t.find_own();
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

// Which task a block is at, and the stage that its copies are in. prepared: the prologue and that task
// are done; even: `run_even` is to go on from there.
struct Progress {
  int task, stage;
  bool prepared = false, even = false;
};

// The stage before it in turn: the one that is filled while a task of `stage` runs.
__device__ __forceinline__ int stage_before(int stage, int stages) {
  return stage ? stage - 1 : stages - 1;
}

// Tasks from the first on that have as many elements as any, where all are along one dimension.
__device__ __forceinline__ int even_tasks(const Tile& t) {
  int d = t.steady(), all = t.tasks();
  return t.size(d) == static_cast<int64_t>(all) * t.span(d) ? all : all - 1;
}

// Are this task and the one ahead of it, if that is one, among the `even` ones?
__device__ __forceinline__ bool is_even(int task, int ahead, int even, int tasks) {
  return task < even && (ahead < even || ahead >= tasks);
}

// May `run_even` run the tasks whose cursors are there?
__device__ __forceinline__ bool all_whole(const Tile& t, bool copies) {
  int all = t.accesses() + (copies ? t.copies() : 0);
  bool whole = t.groups == kGroups;
  for (int n = 0; n < all; ++n) whole = whole && cursor_of_first(t, n).flags() & kWhole;
  return whole;
}

// What stays the same from task to task of `run_even`.
struct Steady {
  int even, grid, tasks, stages, body, first_stage, stage_bytes, accesses, copies;

  __device__ __forceinline__ explicit Steady(const Tile& t)
      : even(even_tasks(t)),
        grid(t.blocks()),
        tasks(t.tasks()),
        stages(t.stages()),
        body(static_cast<int>(t.words[t.head + 3] >> 32) / 2),
        first_stage(stage_at(t, 0)),
        stage_bytes(stage_at(t, 1) - stage_at(t, 0)),
        accesses(t.accesses()),
        copies(t.copies()) {}

  __device__ __forceinline__ int stage_at_byte(int stage) const {
    return first_stage + stage * stage_bytes;
  }
  __device__ __forceinline__ int ahead(int task) const {
    return stages ? task + (stages - 1) * grid : tasks;
  }

  // Starts the copies of the task ahead, if there is one, and waits for those of the task at hand.
  __device__ __forceinline__ void turn(const Tile& t, const Spots& s, Progress now) const {
    if (!stages) return;
    if (ahead(now.task) < tasks)
      copy_whole_ahead(t, s, accesses, accesses + copies,
                       stage_at_byte(stage_before(now.stage, stages)));
    commit_copies();
    wait_copies(stages - 1);
  }
};

// Runs instructions from `pc` on. kEven: tasks of whole tiles that are alike, up to the last such one,
// with instructions that leave nothing to be worked out from task to task but addresses; what it
// returns is the last task done. Else all tasks, or up to where `run_even` may go on.
template <bool kEven>
__device__ __forceinline__ Progress run(Tile& t, Spots& s, Progress progress, int pc) {
  int task = progress.task, stage = progress.stage, stages = t.stages();
  Values a, b;
  forget(a);
  forget(b);
  Scratch scratch;
  Steady steady(t);  // of kEven alone; else nothing of it is used
  int staged = steady.stage_at_byte(stage);
  if constexpr (kEven) steady.turn(t, s, progress);
  bool prepared = progress.prepared;
  const Pair* code = reinterpret_cast<const Pair*>(t.words.p);
  // Of kEven, read while the instruction before it runs; behind the last one it is not used.
  Pair following;
  if constexpr (kEven) following = code[pc++];
  auto fetch_instruction = [&] {
    if constexpr (!kEven) return code[pc++];
    Pair own = following;
    following = code[pc++];
    return own;
  };
  for (;;) {
    // Loops in loops: instructions that leave A, or B, alone have not even to move its registers.
    Pair now;
    for (;;) {
      now = fetch_instruction();
      while (Instruction{now.head}.op() < kFirstOfA) {
        Instruction own{now.head};
        switch (own.op()) {
          case D_NARROW: narrow_scalar(t, own, now.argument); break;
          case D_STORE: store<kEven>(t, s, own, a); break;
          case D_KEEP_A: keep(t, own.dst(), a); break;
          case D_KEEP_B: keep(t, own.dst(), b); break;
          case D_REDUCE: reduce(t, s, scratch, own, static_cast<int>(now.argument), a); break;
          default:
            if constexpr (!kEven) accumulate(t, s, own, static_cast<int>(now.argument), a);
            break;
        }
        now = fetch_instruction();
      }
      Instruction own{now.head};
      if (own.op() >= kFirstOfB) break;
      switch (own.op()) {
        case D_LOAD_A: load<kEven>(t, s, own, a); break;
        case D_STAGED_A:
          load_staged<kEven>(t, s, own, kEven ? staged : stage_at(t, stage), now.argument, a);
          break;
        case D_FETCH_A: fetch(t, own.a(), now.argument, a); break;
        case D_B_TO_A: a = b; break;
        case D_SELECT:
          each_of_three(t, own.a(), now.argument, a, b, [](float x, float y, float z) {
            return __float_as_uint(x) ? y : z;
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
        default: break;
      }
    }
    Instruction own{now.head};
    switch (own.op()) {
      case D_LOAD_B: load<kEven>(t, s, own, b); break;
      case D_STAGED_B:
        load_staged<kEven>(t, s, own, kEven ? staged : stage_at(t, stage), now.argument, b);
        break;
      case D_FETCH_B: fetch(t, own.a(), now.argument, b); break;
      case D_A_TO_B: b = a; break;
      case D_DONE: {
        if constexpr (kEven) {
          if (!is_even(task + steady.grid, steady.ahead(task + steady.grid), steady.even,
                       steady.tasks))
            return {task, stage, true};
          task += steady.grid;
          stage = stage + 1 < steady.stages ? stage + 1 : 0;
          staged = steady.stage_at_byte(stage);
          ++t.steps;
          forget(a);
          forget(b);
          pc = steady.body;
          following = code[pc++];
          steady.turn(t, s, {task, stage});
          break;
        }
        int grid = t.blocks(), last = t.tasks() - 1;
        if (prepared) {
          task += grid;
          stage = stage + 1 < stages ? stage + 1 : 0;
          if (task > last) return {task, stage};
        }
        forget(a);
        forget(b);
        int ahead = stages ? task + (stages - 1) * grid : last + 1;
        if (prepared && t.r >= 0 && t.steady() >= 0 && task < last && ahead != last) {
          ++t.steps;
        } else {
          int r = t.r, c = t.c;
          take_task(t, task, ahead);
          if (t.r != r || t.c != c) s.set_live(t);
        }
        if (!prepared && t.plain() && t.steady() >= 0 &&
            is_even(task, ahead, even_tasks(t), last + 1) && all_whole(t, ahead <= last))
          return {task, stage, false, true};
        prepared = true;
        if (stages) {
          if (ahead <= last) copy_ahead(t, s, stage_at(t, stage_before(stage, stages)));
          commit_copies();
          wait_copies(stages - 1);
        }
        pc = static_cast<int>(t.words[t.head + 3] >> 32) / 2;
        break;
      }
      case D_LOOP: {
        if constexpr (!kEven) {
          int more = static_cast<int>(now.argument);
          if (!enter_loop(t, own.dst(), t.words.number(more)))
            pc = static_cast<int>(t.words[more + 1]) / 2;
          forget(a);
          forget(b);
          point_all(t);
          s.set_live(t);
        }
        break;
      }
      case D_ENDLOOP: {
        if constexpr (!kEven) {
          int more = static_cast<int>(now.argument);
          if (next_pass(t, own.dst(), t.words.number(more)))
            pc = static_cast<int>(t.words[more + 2]) / 2;
          forget(a);
          forget(b);
          point_all(t);
          s.set_live(t);
        }
        break;
      }
      case D_SLOW:
        if constexpr (!kEven) slow(t, now.head, static_cast<int>(now.argument), task);
        forget(a);
        forget(b);
        break;
      default: return {task, stage};
    }
  }
}

// From a task on whose cursors, and those of the copies ahead, are there. A function of its own, so that
// its registers are: what the general case needs does not burden it.
VTC_OUT_OF_LINE __device__ Progress run_even(int count, Progress now) {
  Tile t;
  Spots s;
  start(t, s, shared_memory(), count);
  t.groups = kGroups;
  s.live = static_cast<uint32_t>((uint64_t{1} << kElements) - 1);
  __syncthreads();  // the scratch is used from its start again, here and behind
  Progress done = run<true>(t, s, now, static_cast<int>(t.words[t.head + 3] >> 32) / 2);
  __syncthreads();
  return done;
}

// Runs the block of `count` words at the start of shared memory.
__device__ __forceinline__ void interpret(unsigned char* shared, int count) {
  Tile t;
  Spots s;
  start(t, s, shared, count);
  int task = t.first(), stages = t.stages();
  if (task >= t.tasks()) return;
  // The prologue runs at the coordinates of task 0.
  for (int n = 0, first = stages ? stages - 1 : 1; n < first; ++n) {
    int ahead = stages ? task + n * t.blocks() : t.tasks();
    take_task(t, 0, ahead);
    if (ahead < t.tasks()) copy_ahead(t, s, stage_at(t, n));
    commit_copies();
  }
  s.set_live(t);
  Progress now{task, 0};
  int pc = static_cast<int>(t.words[t.head + 3] & 0xffffffff) / 2;
  for (;;) {
    now = run<false>(t, s, now, pc);
    if (!now.even) return;
    now = run_even(count, now);
    // From the instruction before the body on, which ends a task; no registers are kept meanwhile.
    start(t, s, shared, count);
    pc = static_cast<int>(t.words[t.head + 3] >> 32) / 2 - 1;
  }
}

}  // namespace vtc
