// Launches through the CUDA driver, which is found when the first interpreter is loaded: the module
// itself is linked to no CUDA library.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "device.h"

namespace vtc {

struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The interpreter on one device, whose context is current when it is made and when it is used.
class DeviceInterpreter {
 public:
  // cubin: machine code of cuda/interpreter.cu. processors: of the device. fault: address of a word
  // that host and device see. Throws DeviceError.
  DeviceInterpreter(const void* cubin, int processors, uintptr_t fault);
  ~DeviceInterpreter();
  DeviceInterpreter(const DeviceInterpreter&) = delete;
  DeviceInterpreter& operator=(const DeviceInterpreter&) = delete;

  // Queues the launch of a kernel. pointers: an address a buffer of the program.
  void launch(const DeviceKernel& kernel, std::span<const uintptr_t> pointers,
              std::span<const double> params, uintptr_t arena, uintptr_t stream);

  // Queues a launch of whatever kernel lies in a slot of device memory when it runs, in the form of
  // layout.h's slots; one of at most `shared_bytes`.
  void launch_slot(uintptr_t slot, int shared_bytes, uintptr_t stream) const;

  // What a kernel that has run found wrong, once: kernel + 1 (32 bits), buffer (24), term (8).
  uint64_t take_fault() const {
    auto* word = reinterpret_cast<volatile uint64_t*>(fault_);
    uint64_t found = *word;
    if (found) *word = 0;
    return found;
  }

 private:
  // Blocks that fit the device at once.
  int64_t resident(int shared_bytes) const;
  void run(void* launch, int64_t grid, int shared_bytes, uintptr_t stream) const;

  void* module_ = nullptr;
  void* function_ = nullptr;
  int processors_;
  uintptr_t fault_;
  std::vector<std::vector<Word>> captured_;  // what graphs copy
};

}  // namespace vtc
