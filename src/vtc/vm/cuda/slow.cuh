// Instructions on shared memory.
#pragma once

#include "runs.cuh"
#include "slow_folds.cuh"

namespace vtc {

// An instruction on shared memory. Not inlined; A and B hold nothing when it is called.
VTC_OUT_OF_LINE __device__ void slow(const Tile t, Word head, int pc, int task) {
  Instruction own{head};
  int op = static_cast<int>(t.words[pc++]);
  switch (op) {
    case OP_LOAD: return slow_load(t, own, pc);
    case OP_STORE: return slow_store(t, own, pc);
    case OP_CAST: return slow_cast(t, own, pc);
    case OP_MOVE: return slow_move(t, own, pc);
    case OP_PARAM: {
      int buffers = static_cast<int>(t.words[2] & 0xffff);
      double x = as_double(t.words[kBlockWords + 2 * buffers + static_cast<int>(t.words[pc])]);
      return with_type(own.type(), [&](auto zero) {
        using T = decltype(zero);
        for (int g = 0; g < kGroups; ++g) *narrow_at<T>(t, own.dst(), g) = static_cast<T>(x);
      });
    }
    case OP_IOTA: return iota(t, own, pc);
    case OP_ACCUM: return slow_accumulate(t, own, pc);
    case OP_FINISH: return finish(t, own, pc);
    case OP_SPILL: return spill(t, own, pc, task);
    case OP_MERGE: return merge(t, own, pc, task);
    default: return slow_scalar(t, op, own, pc);
  }
}

}  // namespace vtc
