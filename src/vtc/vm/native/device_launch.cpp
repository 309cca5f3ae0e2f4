#include "device_launch.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "../cuda/layout.h"
#include "module.h"

namespace vtc {
namespace {

constexpr int kSharedOfProcessor = 233472;
constexpr int kSharedReserved = 1024;  // of each block
constexpr int kMostShared = 232448;
constexpr int kSharedAttribute = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr const char* kName = "vtc_run";

// The argument of the kernel.
struct Launch {
  uint64_t elsewhere, count;
  Word words[kLaunchWords];
};

// Functions of libcuda.so.1, by the names and signatures of cuda.h.
struct Driver {
  int (*load)(void** module, const void* image);
  int (*unload)(void* module);
  int (*function)(void** function, void* module, const char* name);
  int (*set_attribute)(void* function, int attribute, int value);
  int (*launch)(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                unsigned bz, unsigned shared, void* stream, void** params, void** extra);
  int (*copy)(uint64_t to, const void* from, size_t bytes, void* stream);
  int (*capturing)(void* stream, int* status);
  int (*error_name)(int error, const char** name);

  static const Driver& get() {
    static const Driver driver;
    return driver;
  }

  void check(int error, const char* what) const {
    if (!error) return;
    const char* name = "an unknown error";
    error_name(error, &name);
    throw DeviceError(std::string(what) + ": " + name);
  }

 private:
  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) throw DeviceError("libcuda.so.1 does not load");
    auto find = [&](auto& function, const char* name) {
      void* found = dlsym(library, name);
      if (!found) throw DeviceError(std::string("libcuda.so.1 has no ") + name);
      std::memcpy(&function, &found, sizeof found);
    };
    find(load, "cuModuleLoadData");
    find(unload, "cuModuleUnload");
    find(function, "cuModuleGetFunction");
    find(set_attribute, "cuFuncSetAttribute");
    find(launch, "cuLaunchKernel");
    find(copy, "cuMemcpyHtoDAsync_v2");
    find(capturing, "cuStreamIsCapturing");
    find(error_name, "cuGetErrorName");
  }
};

}  // namespace

DeviceInterpreter::DeviceInterpreter(const void* cubin, int processors, uintptr_t fault)
    : processors_(processors), fault_(fault) {
  const Driver& driver = Driver::get();
  driver.check(driver.load(&module_, cubin), "loading the interpreter");
  driver.check(driver.function(&function_, module_, kName), kName);
  driver.check(driver.set_attribute(function_, kSharedAttribute, kMostShared), kName);
}

DeviceInterpreter::~DeviceInterpreter() { Driver::get().unload(module_); }

void DeviceInterpreter::launch(const DeviceKernel& kernel, std::span<const uintptr_t> pointers,
                               std::span<const double> params, uintptr_t arena,
                               uintptr_t stream) {
  const Driver& driver = Driver::get();
  size_t n = kernel.block.size();
  Launch launch;
  launch.count = n;
  launch.elsewhere = 0;
  if (n <= kLaunchWords) {
    fill_block(kernel, pointers, params, arena, fault_, launch.words);
  } else {
    std::vector<Word> longer(kLengthWords + n);
    longer[0] = n;
    fill_block(kernel, pointers, params, arena, fault_, longer.data() + kLengthWords);
    launch.elsewhere = arena + kernel.arena_offset;
    // From memory that may be paged: the driver has taken it when this returns. But for a capture,
    // whose graph takes it in each replay.
    int capturing = 0;
    driver.check(driver.capturing(reinterpret_cast<void*>(stream), &capturing), "a stream");
    driver.check(driver.copy(launch.elsewhere, longer.data(), longer.size() * sizeof(Word),
                             reinterpret_cast<void*>(stream)),
                 "copying a kernel");
    if (capturing) captured_.push_back(std::move(longer));
  }
  run(&launch, std::min(kernel.tasks, resident(kernel.shared_bytes)), kernel.shared_bytes, stream);
}

void DeviceInterpreter::launch_slot(uintptr_t slot, int shared_bytes, uintptr_t stream) const {
  Launch launch;
  launch.count = 0;
  launch.elsewhere = slot;
  run(&launch, resident(shared_bytes), shared_bytes, stream);
}

int64_t DeviceInterpreter::resident(int shared_bytes) const {
  int a_processor = std::min(kBlocks, kSharedOfProcessor / (shared_bytes + kSharedReserved));
  return int64_t{processors_} * std::max(a_processor, 1);
}

void DeviceInterpreter::run(void* launch, int64_t grid, int shared_bytes, uintptr_t stream) const {
  const Driver& driver = Driver::get();
  void* arguments[1] = {launch};
  driver.check(driver.launch(function_, static_cast<unsigned>(grid), 1, 1, kThreads, 1, 1,
                             static_cast<unsigned>(shared_bytes), reinterpret_cast<void*>(stream),
                             arguments, nullptr),
               "launching a kernel");
}

}  // namespace vtc
