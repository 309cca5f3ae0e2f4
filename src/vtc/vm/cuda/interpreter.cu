// The interpreter's entry point. The words of a launch come with it, or lie in memory where they are
// too many for that, or are to be replaced between replays; they are read from shared memory.
#include "ptx.cuh"

#include "launch.cuh"

extern "C" __global__ void __launch_bounds__(vtc::kThreads, vtc::kBlocks)
    vtc_run(const __grid_constant__ vtc::Launch launch) {
  vtc::run_launch(launch, vtc::shared_memory());
}
