// The interpreter's entry point. A block of words comes with the launch, or lies in memory where it
// is too long for that, or is to be replaced between replays; it is read from shared memory.
#include "ptx.cuh"

#include "interpreter.cuh"

extern "C" __global__ void __launch_bounds__(vtc::kThreads, vtc::kBlocks)
    vtc_run(const __grid_constant__ vtc::Launch launch) {
  extern __shared__ __align__(16) unsigned char shared[];
  if (int count = vtc::take_block(launch, shared)) vtc::interpret(shared, count);
}
