// The device's interpreter as a function of the host.
#include "host.h"

#include <sys/mman.h>

#include <algorithm>

#include "../../../src/vtc/vm/cuda/dense.cuh"
#include "../../../src/vtc/vm/cuda/flat.cuh"
#include "../../../src/vtc/vm/cuda/launch.cuh"
#include "../../../src/vtc/vm/cuda/padded.cuh"
#include "../../../src/vtc/vm/cuda/rows.cuh"

// Shared memory that ends at a page that nothing may touch.
class Shared {
 public:
  explicit Shared(size_t bytes) : used_((bytes + 15) / 16 * 16) {
    size_t whole = (used_ + kPage - 1) / kPage * kPage;
    mapped_ = whole + kPage;
    base_ = static_cast<char*>(
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + whole, kPage, PROT_NONE);
    start_ = base_ + whole - used_;
  }
  ~Shared() { munmap(base_, mapped_); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  unsigned char* data() const { return reinterpret_cast<unsigned char*>(start_); }
  size_t size() const { return used_; }

 private:
  static constexpr size_t kPage = 4096;
  size_t used_, mapped_;
  char *base_, *start_;
};

// Runs the first `there` blocks of a launch of `grid`, in turns. words: `count`, or those of one kernel
// in memory if it is negative.
extern "C" void vtc_run_on_host(const uint64_t* words, int count, unsigned* place, unsigned grid,
                                unsigned there, int shared_bytes) {
  auto launch = std::make_unique<vtc::Launch>();
  launch->elsewhere = count < 0 ? words : nullptr;
  launch->count = count < 0 ? 0 : count;
  launch->place = place;
  if (count > 0) std::memcpy(launch->words, words, count * sizeof *words);
  grid_size.x = grid;
  std::vector<std::unique_ptr<Shared>> shared;
  std::vector<std::unique_ptr<Block>> blocks;
  for (unsigned n = 0; n < there; ++n) {
    shared.push_back(std::make_unique<Shared>(shared_bytes));
    std::memset(shared.back()->data(), 0xa5, shared.back()->size());
    blocks.push_back(std::make_unique<Block>());
    blocks.back()->shared = shared.back()->data();
    blocks.back()->work = [&launch] { vtc::run_launch(*launch, vtc::shared_memory()); };
    blocks.back()->start();
  }
  for (bool going = true; going;) {
    going = false;
    for (block_index.x = 0; block_index.x < there; ++block_index.x)
      going |= blocks[block_index.x]->step();
  }
}

using Kernel = std::function<void(const void* argument, unsigned block, unsigned blocks)>;

template <class Memory>
Kernel norm_kernel() {
  return [](const void* rows, unsigned block, unsigned blocks) {
    float* kept = reinterpret_cast<float*>(vtc::shared_memory());
    vtc::norm_rows<Memory>(*static_cast<const vtc::Rows*>(rows), block, blocks, kept);
  };
}

template <class Memory>
Kernel softmax_kernel() {
  return [](const void* rows, unsigned block, unsigned blocks) {
    float* kept = reinterpret_cast<float*>(vtc::shared_memory());
    vtc::softmax_rows<Memory>(*static_cast<const vtc::Rows*>(rows), block, blocks, kept);
  };
}

template <int kType, int kForm, int kOp>
Kernel flat_kernel() {
  return [](const void* flat, unsigned block, unsigned) {
    vtc::run_flat<kType, kForm, kOp>(*static_cast<const vtc::Flat*>(flat), block);
  };
}

template <int kType, int kForm, int kOp>
Kernel single_kernel() {
  return [](const void* flat, unsigned block, unsigned) {
    vtc::run_single<kType, kForm, kOp>(*static_cast<const vtc::Flat*>(flat), block);
  };
}

template <bool kNorm, int kType, int kCount, bool kGrouped>
Kernel dense_kernel() {
  return [](const void* rows, unsigned block, unsigned) {
    const vtc::Dense& own = *static_cast<const vtc::Dense*>(rows);
    float* kept = reinterpret_cast<float*>(vtc::shared_memory());
    if constexpr (kNorm)
      vtc::dense_norm<kType, kCount, kGrouped>(own, block, kept);
    else
      vtc::dense_softmax<kType, kCount, kGrouped>(own, block, kept);
  };
}

Kernel rows_kernel(void (*run)(const vtc::Rows&, unsigned)) {
  return [=](const void* rows, unsigned block, unsigned) {
    run(*static_cast<const vtc::Rows*>(rows), block);
  };
}

// In the order of RowsFunction (device_rows.h).
const std::vector<Kernel>& row_kernels() {
#define VTC_NORM(NAME, TYPE, GROUPS, ANY) norm_kernel<vtc::RowGroups<vtc::TYPE, GROUPS, ANY>>(),
#define VTC_SOFTMAX(NAME, TYPE, GROUPS, ANY) softmax_kernel<vtc::RowGroups<vtc::TYPE, GROUPS, ANY>>(),
#define VTC_FLAT_KERNEL(NAME, TYPE, FORM, OP) flat_kernel<vtc::TYPE, vtc::FORM, vtc::OP>(),
#define VTC_SINGLE_KERNEL(NAME, TYPE, FORM, OP) single_kernel<vtc::TYPE, vtc::FORM, vtc::OP>(),
#define VTC_DENSE_NORM(NAME, TYPE, COUNT, GROUPED) dense_kernel<true, vtc::TYPE, COUNT, GROUPED>(),
#define VTC_DENSE_SOFTMAX(NAME, TYPE, COUNT, GROUPED) dense_kernel<false, vtc::TYPE, COUNT, GROUPED>(),
  static const std::vector<Kernel> all{
      rows_kernel([](const vtc::Rows& d, unsigned block) { vtc::map_rows(d, block); }),
      rows_kernel([](const vtc::Rows& d, unsigned block) { vtc::map_halves(d, block); }),
      norm_kernel<vtc::RowElements>(),
      softmax_kernel<vtc::RowElements>(),
      rows_kernel([](const vtc::Rows& d, unsigned block) { vtc::rotary_rows(d, block); }),
      VTC_ROW_GROUPS(VTC_NORM) VTC_ROW_GROUPS(VTC_SOFTMAX) VTC_FLAT(VTC_FLAT_KERNEL)
      VTC_SINGLE(VTC_SINGLE_KERNEL) VTC_DENSE(VTC_DENSE_NORM) VTC_DENSE(VTC_DENSE_SOFTMAX)};
#undef VTC_NORM
#undef VTC_SOFTMAX
#undef VTC_FLAT_KERNEL
#undef VTC_SINGLE_KERNEL
#undef VTC_DENSE_NORM
#undef VTC_DENSE_SOFTMAX
  return all;
}

void run_blocks(unsigned grid, int threads, const std::function<void(unsigned)>& kernel) {
  grid_size.x = grid;
  for (block_index.x = 0; block_index.x < grid; ++block_index.x) {
    Shared shared(vtc::kRowsSharedBytes);
    std::memset(shared.data(), 0xa5, shared.size());
    Block block;
    block.shared = shared.data();
    block.threads = threads;
    block.work = [&] { kernel(block_index.x); };
    block.start();
    while (block.step()) {
    }
  }
}

// Runs a kernel that is an operation on rows, by the function that `launch_of` names, a block after another.
extern "C" void vtc_rows_on_host(const void* argument, int function, unsigned grid, int threads) {
  const Kernel& kernel = row_kernels()[function];
  run_blocks(grid, threads, [&](unsigned block) { kernel(argument, block, grid); });
}

// One of the copies of padded.h.
extern "C" void vtc_pad_on_host(const vtc::Padded* matrices, int count, int unpad, unsigned grid) {
  vtc::Padding all{};
  all.count = count;
  std::copy(matrices, matrices + count, all.own);
  run_blocks(grid, vtc::kPadThreads, [&](unsigned block) {
    unpad ? vtc::unpad_rows(all, block) : vtc::pad_rows(all, block);
  });
}
