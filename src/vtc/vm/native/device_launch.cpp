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
                               uintptr_t stream) const {
  const Driver& driver = Driver::get();
  size_t n = kernel.block.size();
  Launch launch;
  launch.count = n;
  launch.elsewhere = 0;
  std::vector<Word> longer(n > kLaunchWords ? n : 0);
  Word* words = longer.empty() ? launch.words : longer.data();
  std::copy(kernel.block.begin(), kernel.block.end(), words);
  words[0] = fault_;
  Word unaligned = 0;
  for (size_t b = 0; b < kernel.buffers.size(); ++b) {
    uintptr_t address = kernel.buffers[b] < 0 ? arena : pointers[kernel.buffers[b]];
    words[kBlockWords + 2 * b] = address;
    if (address % 16) unaligned |= Word{1} << b;
  }
  words[1] = unaligned;
  if (!params.empty())
    std::memcpy(words + kBlockWords + 2 * kernel.buffers.size(), params.data(), params.size_bytes());
  int resident = std::min(kBlocks, kSharedOfProcessor / (kernel.shared_bytes + kSharedReserved));
  int64_t grid = std::min<int64_t>(kernel.tasks, int64_t{processors_} * std::max(resident, 1));
  if (!longer.empty()) {
    // From memory that may be paged: the driver has taken it when this returns.
    launch.elsewhere = arena + kernel.arena_offset;
    driver.check(driver.copy(launch.elsewhere, words, n * sizeof(Word),
                             reinterpret_cast<void*>(stream)),
                 "copying a kernel");
  }
  void* arguments[1] = {&launch};
  driver.check(driver.launch(function_, static_cast<unsigned>(grid), 1, 1, kThreads, 1, 1,
                             static_cast<unsigned>(kernel.shared_bytes),
                             reinterpret_cast<void*>(stream), arguments, nullptr),
               "launching a kernel");
}

}  // namespace vtc
