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

// Runs the block of `count` words at the start of shared memory.
__device__ __forceinline__ void interpret(unsigned char* shared, int count) {
  Tile t;
  Spots s;
  start(t, s, shared, count);
  int task = t.first(), stages = t.stages(), stage = 0;
  if (task >= t.tasks()) return;
  // The prologue runs at the coordinates of task 0.
  for (int n = 0, first = stages ? stages - 1 : 1; n < first; ++n) {
    int ahead = stages ? task + n * t.blocks() : t.tasks();
    take_task(t, 0, ahead);
    if (ahead < t.tasks()) copy_ahead(t, s, stage_at(t, n));
    commit_copies();
  }
  s.set_live(t);

  Values a, b;
  forget(a);
  forget(b);
  Scratch scratch;
  bool prepared = false;
  const Pair* code = reinterpret_cast<const Pair*>(t.words.p);
  int pc = static_cast<int>(t.words[t.head + 3] & 0xffffffff) / 2;
  for (;;) {
    // Loops in loops: instructions that leave A, or B, alone have not even to move its registers.
    Pair now;
    for (;;) {
      now = code[pc++];
      while (Instruction{now.head}.op() < kFirstOfA) {
        Instruction own{now.head};
        switch (own.op()) {
          case D_NARROW: narrow_scalar(t, own, now.argument); break;
          case D_STORE: store(t, s, own, a); break;
          case D_KEEP_A: keep(t, own.dst(), a); break;
          case D_KEEP_B: keep(t, own.dst(), b); break;
          case D_REDUCE: reduce(t, s, scratch, own, static_cast<int>(now.argument), a); break;
          default: accumulate(t, s, own, static_cast<int>(now.argument), a); break;
        }
        now = code[pc++];
      }
      Instruction own{now.head};
      if (own.op() >= kFirstOfB) break;
      switch (own.op()) {
        case D_LOAD_A: load(t, s, own, a); break;
        case D_STAGED_A: load_staged(t, s, own, stage_at(t, stage), now.argument, a); break;
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
      case D_LOAD_B: load(t, s, own, b); break;
      case D_STAGED_B: load_staged(t, s, own, stage_at(t, stage), now.argument, b); break;
      case D_FETCH_B: fetch(t, own.a(), now.argument, b); break;
      case D_A_TO_B: b = a; break;
      case D_DONE: {
        int grid = t.blocks(), last = t.tasks() - 1;
        if (prepared) {
          task += grid;
          stage = stage + 1 < stages ? stage + 1 : 0;
          if (task > last) return;
        }
        forget(a);
        forget(b);
        int ahead = stages ? task + (stages - 1) * grid : last + 1;
        if (prepared && t.steady() >= 0 && task < last && ahead != last) {
          step_task(t, ahead, grid);
        } else {
          int r = t.r, c = t.c;
          take_task(t, task, ahead);
          if (t.r != r || t.c != c) s.set_live(t);
        }
        prepared = true;
        if (stages) {
          if (ahead <= last) copy_ahead(t, s, stage_at(t, stage ? stage - 1 : stages - 1));
          commit_copies();
          wait_copies(stages - 1);
        }
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
      default: return;
    }
  }
}

}  // namespace vtc
