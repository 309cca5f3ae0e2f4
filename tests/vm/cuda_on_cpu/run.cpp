// The device's interpreter as a function of the host.
#include "host.h"

#include <sys/mman.h>

#include "../../../src/vtc/vm/cuda/interpreter.cuh"

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

// Runs a launch, whose blocks come one after another.
extern "C" void vtc_run_on_host(const uint64_t* words, int count, const uint64_t* elsewhere,
                                unsigned grid, int shared_bytes) {
  Shared shared(shared_bytes);
  auto launch = std::make_unique<vtc::Launch>();
  launch->elsewhere = elsewhere;
  launch->count = count;
  if (!elsewhere) std::memcpy(launch->words, words, count * sizeof *words);
  grid_size.x = grid;
  for (unsigned block = 0; block < grid; ++block) {
    block_index.x = block;
    std::memset(shared.data(), 0xa5, shared.size());
    auto own = std::make_unique<Block>();
    own->work = [&] {
      if (int n = vtc::take_block(*launch, shared.data())) vtc::interpret(shared.data(), n);
    };
    own->run();
  }
}
