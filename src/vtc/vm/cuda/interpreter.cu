// The interpreter's entry point. A block of words comes with the launch, or lies in memory where it
// is too long for that; it is read from shared memory.
#include "ptx.cuh"

#include "interpreter.cuh"

struct Launch {
  const uint64_t* elsewhere;  // null: in `words`
  uint64_t count;
  uint64_t words[vtc::kLaunchWords];
};

extern "C" __global__ void __launch_bounds__(vtc::kThreads, vtc::kBlocks)
    vtc_run(const __grid_constant__ Launch launch) {
  extern __shared__ __align__(16) unsigned char shared[];
  uint64_t* words = reinterpret_cast<uint64_t*>(shared);
  int count = static_cast<int>(launch.count);
  for (int n = threadIdx.x; n < count; n += vtc::kThreads)
    words[n] = launch.elsewhere ? launch.elsewhere[n] : launch.words[n];
  __syncthreads();
  vtc::interpret(shared, count);
}
