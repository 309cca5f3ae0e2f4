// Launches through the CUDA driver, which is found when the first interpreter is loaded: the module
// itself is linked to no CUDA library.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "../cuda/layout.h"
#include "../cuda/padded.h"
#include "device.h"

namespace vtc {

struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr size_t kPlaceBytes = 64;

// The interpreter on one device, whose context is current when it is made and when it is used.
class DeviceInterpreter {
 public:
  // cubin: machine code of cuda/interpreter.cu. processors: of the device. fault: address of a word
  // that host and device see. places: device memory that holds zeros, `count` times kPlaceBytes.
  // Throws DeviceError.
  DeviceInterpreter(const void* cubin, int processors, uintptr_t fault, uintptr_t places,
                    size_t count);
  ~DeviceInterpreter();
  DeviceInterpreter(const DeviceInterpreter&) = delete;
  DeviceInterpreter& operator=(const DeviceInterpreter&) = delete;

  // Queues the launches of a program. pointers: an address a buffer of the program.
  void launch(std::span<const DeviceKernel> kernels, std::span<const uintptr_t> pointers,
              std::span<const double> params, uintptr_t arena, uintptr_t stream);

  // Queues a launch of whatever kernel lies in a slot of device memory when it runs, in the form of
  // `fill_kernel`; one of at most `shared_bytes`.
  void launch_slot(uintptr_t slot, int shared_bytes, uintptr_t stream) const;

  // Queues copies of matrices of 16-bit elements into larger ones, whose rows begin at multiples of 16
  // bytes (cuda/padded.h). Fields but first_block are set.
  void pad(std::vector<Padded> matrices, uintptr_t stream) const;

  // Queues the copy of the columns of such a matrix into one without gaps.
  void unpad(Padded matrix, uintptr_t stream) const;

  // What a kernel that has run found wrong, once: kernel + 1 (32 bits), buffer (24), term (8); or
  // kGaveUp in place of the last two, where blocks have waited for others in vain: launches are no
  // longer put together then.
  uint64_t take_fault() {
    auto* word = reinterpret_cast<volatile uint64_t*>(fault_);
    uint64_t found = *word;
    if (!found) return 0;
    *word = 0;
    if (static_cast<uint32_t>(found) == kGaveUp) {
      place_of_stream_.clear();
      next_place_ = places_end_;
    }
    return found;
  }

 private:
  void launch_one(const DeviceKernel& kernel, std::span<const uintptr_t> pointers,
                  std::span<const double> params, uintptr_t arena, uintptr_t stream);
  bool launch_rows(const DeviceKernel& kernel, std::span<const uintptr_t> pointers,
                   uintptr_t stream) const;
  bool launch_together(std::span<const DeviceKernel> kernels, std::span<const uintptr_t> pointers,
                       std::span<const double> params, uintptr_t arena, uintptr_t stream);
  uintptr_t place_of(uintptr_t stream);
  bool capturing(uintptr_t stream) const;
  // Blocks that fit the device at once.
  int64_t resident(int shared_bytes) const;
  void run(void* launch, int64_t grid, int shared_bytes, uintptr_t stream) const;

  void* module_ = nullptr;
  void* function_ = nullptr;
  std::array<void*, kRowsFunctions> rows_functions_{};
  void *pad_ = nullptr, *unpad_ = nullptr;
  int processors_;
  uintptr_t fault_;
  uintptr_t next_place_, places_end_;
  std::unordered_map<uintptr_t, uintptr_t> place_of_stream_;
  std::vector<std::vector<Word>> captured_;  // what graphs copy
};

}  // namespace vtc
