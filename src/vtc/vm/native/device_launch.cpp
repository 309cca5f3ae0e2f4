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

// The argument of the kernel, as in cuda/launch.cuh.
struct Launch {
  uint64_t elsewhere = 0, place = 0, count = 0;
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
  int (*launch_together)(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                         unsigned by, unsigned bz, unsigned shared, void* stream, void** params);
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
    find(launch_together, "cuLaunchCooperativeKernel");
    find(copy, "cuMemcpyHtoDAsync_v2");
    find(capturing, "cuStreamIsCapturing");
    find(error_name, "cuGetErrorName");
  }
};

// Queues a kernel of padded.h.
void launch_padding(void* function, Padding& all, int64_t blocks, uintptr_t stream) {
  if (blocks <= 0 || blocks >> 31) throw DeviceError("matrices that cannot be padded");
  void* arguments[1] = {&all};
  const Driver& driver = Driver::get();
  driver.check(driver.launch(function, static_cast<unsigned>(blocks), 1, 1, kPadThreads, 1, 1, 0,
                             reinterpret_cast<void*>(stream), arguments, nullptr),
               "launching a kernel, or one before it");
}

int64_t pad_blocks(int64_t elements) {
  int64_t each = int64_t{kPadThreads} * kRun;
  return (elements + each - 1) / each;
}

}  // namespace

DeviceInterpreter::DeviceInterpreter(const void* cubin, int processors, uintptr_t fault,
                                     uintptr_t places, size_t count)
    : processors_(processors), fault_(fault), next_place_(places),
      places_end_(places + count * kPlaceBytes) {
  const Driver& driver = Driver::get();
  driver.check(driver.load(&module_, cubin), "loading the interpreter");
  driver.check(driver.function(&function_, module_, kName), kName);
  driver.check(driver.set_attribute(function_, kSharedAttribute, kMostShared), kName);
  for (int n = 0; n < kRowsFunctions; ++n)
    driver.check(driver.function(&rows_functions_[n], module_, kRowsNames[n]), kRowsNames[n]);
  driver.check(driver.function(&pad_, module_, "vtc_pad"), "vtc_pad");
  driver.check(driver.function(&unpad_, module_, "vtc_unpad"), "vtc_unpad");
}

DeviceInterpreter::~DeviceInterpreter() { Driver::get().unload(module_); }

void DeviceInterpreter::launch(std::span<const DeviceKernel> kernels,
                               std::span<const uintptr_t> pointers, std::span<const double> params,
                               uintptr_t arena, uintptr_t stream) {
  if (launch_together(kernels, pointers, params, arena, stream)) return;
  for (const DeviceKernel& kernel : kernels) launch_one(kernel, pointers, params, arena, stream);
}

void DeviceInterpreter::launch_one(const DeviceKernel& kernel, std::span<const uintptr_t> pointers,
                                   std::span<const double> params, uintptr_t arena,
                                   uintptr_t stream) {
  if (kernel.direct() && launch_rows(kernel, pointers, stream)) return;
  const Driver& driver = Driver::get();
  Launch launch;
  size_t n = kernel.words();
  if (n <= kLaunchWords) {
    launch.count = n;
    fill_kernel(kernel, pointers, params, arena, fault_, launch.words);
  } else {
    std::vector<Word> longer(n);
    fill_kernel(kernel, pointers, params, arena, fault_, longer.data());
    launch.elsewhere = arena + kernel.arena_offset;
    // From memory that may be paged: the driver has taken it when this returns. But for a capture,
    // whose graph takes it in each replay.
    bool keep = capturing(stream);
    driver.check(driver.copy(launch.elsewhere, longer.data(), n * sizeof(Word),
                             reinterpret_cast<void*>(stream)),
                 "copying a kernel");
    if (keep) captured_.push_back(std::move(longer));
  }
  run(&launch, std::min(kernel.tasks, resident(kernel.shared_bytes)), kernel.shared_bytes, stream);
}

// False where it has to be interpreted.
bool DeviceInterpreter::launch_rows(const DeviceKernel& kernel, std::span<const uintptr_t> pointers,
                                    uintptr_t stream) const {
  RowsLaunch own = launch_of(kernel.rows, pointers, processors_);
  if (!own.blocks) return false;
  void* arguments[1] = {const_cast<char*>(own.argument().data())};
  const Driver& driver = Driver::get();
  driver.check(driver.launch(rows_functions_[own.function], static_cast<unsigned>(own.blocks), 1, 1,
                             static_cast<unsigned>(own.threads()), 1, 1,
                             own.is_flat() ? 0 : kRowsSharedBytes,
                             reinterpret_cast<void*>(stream), arguments, nullptr),
               "launching a kernel, or one before it");
  return true;
}

// Kernels that all have few tasks go in one launch, if it has room for their words, unless the device
// has kernels of its own for half of them.
bool DeviceInterpreter::launch_together(std::span<const DeviceKernel> kernels,
                                        std::span<const uintptr_t> pointers,
                                        std::span<const double> params, uintptr_t arena,
                                        uintptr_t stream) {
  if (kernels.size() < 2) return false;
  size_t words = 0, direct = 0;
  int shared_bytes = 0;
  for (const DeviceKernel& kernel : kernels) {
    direct += kernel.direct();
    words += kernel.words();
    shared_bytes = std::max(shared_bytes, kernel.shared_bytes);
  }
  int64_t most = resident(shared_bytes);
  if (words > kLaunchWords || 2 * direct >= kernels.size()) return false;
  for (const DeviceKernel& kernel : kernels)
    if (kernel.tasks > most) return false;
  Launch launch;
  launch.place = place_of(stream);
  if (!launch.place) return false;
  launch.count = words;
  Word* at = launch.words;
  for (const DeviceKernel& kernel : kernels) {
    fill_kernel(kernel, pointers, params, arena, fault_, at);
    at += kernel.words();
  }
  int64_t grid = share_blocks(kernels, most, launch.words);
  run(&launch, grid, shared_bytes, stream);
  return true;
}

// A place where the blocks of a launch meet. Launches of a stream come one after another; a graph may
// run beside anything. 0: there is none left.
uintptr_t DeviceInterpreter::place_of(uintptr_t stream) {
  bool keep = capturing(stream);
  auto found = place_of_stream_.find(stream);
  if (!keep && found != place_of_stream_.end()) return found->second;
  if (next_place_ == places_end_) return 0;
  uintptr_t own = next_place_;
  next_place_ += kPlaceBytes;
  if (!keep) place_of_stream_[stream] = own;
  return own;
}

bool DeviceInterpreter::capturing(uintptr_t stream) const {
  int status = 0;
  const Driver& driver = Driver::get();
  driver.check(driver.capturing(reinterpret_cast<void*>(stream), &status), "asking a stream");
  return status != 0;
}

void DeviceInterpreter::launch_slot(uintptr_t slot, int shared_bytes, uintptr_t stream) const {
  Launch launch;
  launch.elsewhere = slot;
  run(&launch, resident(shared_bytes), shared_bytes, stream);
}

void DeviceInterpreter::pad(std::vector<Padded> matrices, uintptr_t stream) const {
  if (matrices.size() > kMostPadded) throw DeviceError("too many matrices to pad");
  Padding all{};
  int64_t blocks = 0;
  for (const Padded& own : matrices) {
    all.own[all.count] = own;
    all.own[all.count++].first_block = static_cast<int>(blocks);
    blocks += pad_blocks(int64_t{own.to_rows} * own.to_columns);
  }
  launch_padding(pad_, all, blocks, stream);
}

void DeviceInterpreter::unpad(Padded matrix, uintptr_t stream) const {
  Padding all{{matrix}, 1};
  launch_padding(unpad_, all, pad_blocks(int64_t{matrix.rows} * matrix.columns), stream);
}

int64_t DeviceInterpreter::resident(int shared_bytes) const {
  int a_processor = std::min(kBlocks, kSharedOfProcessor / (shared_bytes + kSharedReserved));
  return int64_t{processors_} * std::max(a_processor, 1);
}

void DeviceInterpreter::run(void* launch, int64_t grid, int shared_bytes, uintptr_t stream) const {
  const Driver& driver = Driver::get();
  void* arguments[1] = {launch};
  unsigned blocks = static_cast<unsigned>(grid), bytes = static_cast<unsigned>(shared_bytes);
  void* queue = reinterpret_cast<void*>(stream);
  // Blocks that wait for each other have to be resident, which the driver then sees to.
  bool together = static_cast<Launch*>(launch)->place != 0;
  driver.check(together ? driver.launch_together(function_, blocks, 1, 1, kThreads, 1, 1, bytes,
                                                 queue, arguments)
                        : driver.launch(function_, blocks, 1, 1, kThreads, 1, 1, bytes, queue,
                                        arguments, nullptr),
               "launching a kernel, or one before it");
}

}  // namespace vtc
