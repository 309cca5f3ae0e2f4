// The interpreter's entry point. The words of a launch come with it, or lie in memory where they are
// too many for that, or are to be replaced between replays; they are read from shared memory.
#include "ptx.cuh"

#include "dense.cuh"
#include "flat.cuh"
#include "launch.cuh"
#include "padded.cuh"
#include "rows.cuh"

extern "C" __global__ void __launch_bounds__(vtc::kThreads, vtc::kBlocks)
    vtc_run(const __grid_constant__ vtc::Launch launch) {
  vtc::run_launch(launch, vtc::shared_memory());
}

// Kernels that are one operation on rows (rows.h). Those of `_halves` have elements of 16 bits alone,
// which are moved in groups.
extern "C" __global__ void __launch_bounds__(vtc::kMostRowThreads, 3)
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

#define VTC_ROWS(NAME, FUNCTION, THREADS, BLOCKS)                                          \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                            \
      NAME(const __grid_constant__ vtc::Rows rows) {                                       \
    FUNCTION(rows, blockIdx.x, gridDim.x, reinterpret_cast<float*>(vtc::shared_memory())); \
  }
VTC_ROWS(vtc_norm, vtc::norm_rows<vtc::RowElements>, 512, 1)
VTC_ROWS(vtc_softmax, vtc::softmax_rows<vtc::RowElements>, 768, 1)

// So many threads that the registers are those that `launch_of` counts with.
#define VTC_NORM(NAME, TYPE, GROUPS, ANY)                                              \
  VTC_ROWS(vtc_norm_##NAME, (vtc::norm_rows<vtc::RowGroups<vtc::TYPE, GROUPS, ANY>>), \
           (GROUPS == 1 ? !ANY : ANY || vtc::TYPE == vtc::T_F32) ? 512 : 768,          \
           GROUPS == 1 && !ANY ? 2 : 1)
VTC_ROW_GROUPS(VTC_NORM)
#undef VTC_NORM
#define VTC_SOFTMAX(NAME, TYPE, GROUPS, ANY)                                                 \
  VTC_ROWS(vtc_softmax_##NAME, (vtc::softmax_rows<vtc::RowGroups<vtc::TYPE, GROUPS, ANY>>), \
           vtc::TYPE == vtc::T_F32 ? 768 : 1024, 1)
VTC_ROW_GROUPS(VTC_SOFTMAX)
#undef VTC_SOFTMAX
#undef VTC_ROWS

// Pointwise kernels on tensors without gaps (flat.h).
#define VTC_FLAT_KERNEL(NAME, TYPE, FORM, OP)                              \
  extern "C" __global__ void __launch_bounds__(vtc::kMostRowThreads, 6)    \
      vtc_flat_##NAME(const __grid_constant__ vtc::Flat flat) {            \
    vtc::run_flat<vtc::TYPE, vtc::FORM, vtc::OP>(flat, blockIdx.x);        \
  }
VTC_FLAT(VTC_FLAT_KERNEL)
#undef VTC_FLAT_KERNEL
#define VTC_SINGLE_KERNEL(NAME, TYPE, FORM, OP)                         \
  extern "C" __global__ void __launch_bounds__(vtc::kMostRowThreads)    \
      vtc_single_##NAME(const __grid_constant__ vtc::Flat flat) {       \
    vtc::run_single<vtc::TYPE, vtc::FORM, vtc::OP>(flat, blockIdx.x);   \
  }
VTC_SINGLE(VTC_SINGLE_KERNEL)
#undef VTC_SINGLE_KERNEL

// Norms and softmax of rows without gaps (dense.h).
#define VTC_DENSE_KERNEL(KIND, NAME, TYPE, COUNT, GROUPED)                             \
  extern "C" __global__ void __launch_bounds__(vtc::kMostTeamThreads, COUNT > 8 ? 1 : 2) \
      vtc_dense_##KIND##_##NAME(const __grid_constant__ vtc::Dense rows) {             \
    vtc::dense_##KIND<vtc::TYPE, COUNT, GROUPED>(                                      \
        rows, blockIdx.x, reinterpret_cast<float*>(vtc::shared_memory()));             \
  }
#define VTC_DENSE_NORM(...) VTC_DENSE_KERNEL(norm, __VA_ARGS__)
#define VTC_DENSE_SOFTMAX(...) VTC_DENSE_KERNEL(softmax, __VA_ARGS__)
VTC_DENSE(VTC_DENSE_NORM)
VTC_DENSE(VTC_DENSE_SOFTMAX)
#undef VTC_DENSE_NORM
#undef VTC_DENSE_SOFTMAX
#undef VTC_DENSE_KERNEL

// Copies around the library's products (padded.h).
extern "C" __global__ void __launch_bounds__(vtc::kPadThreads)
    vtc_pad(const __grid_constant__ vtc::Padding all) {
  vtc::pad_rows(all, blockIdx.x);
}
extern "C" __global__ void __launch_bounds__(vtc::kPadThreads)
    vtc_unpad(const __grid_constant__ vtc::Padding all) {
  vtc::unpad_rows(all, blockIdx.x);
}
