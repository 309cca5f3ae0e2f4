// The interpreter's entry point. The words of a launch come with it, or lie in memory where they are
// too many for that, or are to be replaced between replays; they are read from shared memory.
#include "ptx.cuh"

#include "launch.cuh"
#include "rows.cuh"

extern "C" __global__ void __launch_bounds__(vtc::kThreads, vtc::kBlocks)
    vtc_run(const __grid_constant__ vtc::Launch launch) {
  vtc::run_launch(launch, vtc::shared_memory());
}

// Kernels that are one operation on rows (rows.h). Those of `_halves` have elements of 16 bits alone,
// which are moved in groups.
extern "C" __global__ void __launch_bounds__(vtc::kMostRowThreads, 4)
    vtc_map(const __grid_constant__ vtc::Rows rows) {
  vtc::map_rows(rows, blockIdx.x);
}

extern "C" __global__ void __launch_bounds__(vtc::kMostRowThreads, 6)
    vtc_map_halves(const __grid_constant__ vtc::Rows rows) {
  vtc::map_halves(rows, blockIdx.x);
}

extern "C" __global__ void __launch_bounds__(vtc::kMostRowThreads, 3)
    vtc_rotary(const __grid_constant__ vtc::Rows rows) {
  vtc::rotary_rows(rows, blockIdx.x);
}

#define VTC_ROWS(NAME, FUNCTION, THREADS)                                                  \
  extern "C" __global__ void __launch_bounds__(THREADS, 1)                                 \
      NAME(const __grid_constant__ vtc::Rows rows) {                                       \
    FUNCTION(rows, blockIdx.x, gridDim.x, reinterpret_cast<float*>(vtc::shared_memory())); \
  }
// So many threads that the registers are those that `launch_of` counts with.
VTC_ROWS(vtc_norm, vtc::norm_rows<false>, 512)
VTC_ROWS(vtc_norm_halves, vtc::norm_rows<true>, 768)
VTC_ROWS(vtc_softmax, vtc::softmax_rows<false>, 768)
VTC_ROWS(vtc_softmax_halves, vtc::softmax_rows<true>, 1024)
#undef VTC_ROWS
