// Kernels that go through the batch in parts.
#pragma once

#include <cstdint>
#include <vector>

#include "shape.h"

namespace vtc {

// Consecutive kernels whose first dimension is the batch, and of which no item needs another's
// results: all of them run on one part of it, then on the next, while what they hand on to each
// other is in the caches.
struct Batch {
  int first, last;     // kernels [first, last) of the module
  int64_t size, part;  // items of the batch, and of a part, which divides it
};

// Which kernels of a module do so at given sizes. Arithmetic on the shape alone.
class Batches {
 public:
  // `wanted`: else there are none. `extents` of the buffers, in elements: of a temporary that no
  // other kernel needs only a part's items are kept.
  Batches(const IrModule& module, const std::vector<int64_t>& values,
          std::vector<int64_t>& extents, bool wanted);

  // The batch that a kernel is in, or null.
  const Batch* of(int kernel) const { return of_[kernel] < 0 ? nullptr : &found_[of_[kernel]]; }
  // Does each part find its items at the beginning of the buffer?
  const std::vector<char>& local() const { return local_; }

 private:
  // What a kernel touches of a buffer: items `stride` apart, each in [low, high] from its beginning.
  struct Use {
    int buffer;
    int64_t stride, low, high;
    bool stored;
  };
  struct Kernel {
    int64_t size = 0;          // of the batch; 0 where it is none
    int64_t moving = 0;        // bytes of an item
    int64_t fixed = 0;         // bytes that all items share
    std::vector<Use> uses;     // one a buffer and stride
  };

  Kernel read(const IrKernel& kernel, const std::vector<int64_t>& values) const;
  void find(const std::vector<IrStep>& steps);
  bool joins(int first, int kernel);
  void choose(int first, int last);
  int64_t part_of(const Kernel& kernel) const;
  void keep_local(std::vector<int64_t>& extents);

  const IrModule& module_;
  std::vector<Kernel> kernels_;
  std::vector<Use> seen_;      // of the kernels at hand, one a buffer
  std::vector<Batch> found_;
  std::vector<int> of_;
  std::vector<char> local_;
};

}  // namespace vtc
