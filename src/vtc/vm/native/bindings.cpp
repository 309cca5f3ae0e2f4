// The module `vtc.vm._native`.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>

#include "device_launch.h"
#include "encode.h"
#include "helpers.h"
#include "pages.h"
#include "run.h"
#include "table.h"
#include "validate.h"
#include "watch.h"
#include "watch_dicts.h"
#include "watch_words.h"

namespace nb = nanobind;

namespace {

using vtc::Program;
using vtc::Word;

using WordArray = nb::ndarray<nb::numpy, Word, nb::ndim<1>>;

WordArray array_of(const std::vector<Word>& words) {
  size_t n = words.size();
  Word* copy = new Word[n];
  std::copy(words.begin(), words.end(), copy);
  nb::capsule owner(copy, [](void* p) noexcept { delete[] static_cast<Word*>(p); });
  return WordArray(copy, {n}, owner);
}

vtc::ProgramView view_of(const Program& program) { return {program.words->data()}; }

// Temporaries of any type may be in an output.
void check_host(uintptr_t pointer) {
  if (pointer % sizeof(Word))
    throw nb::value_error("run() got an output that is not aligned to 8 bytes");
}

void check(const Program& program, const std::vector<uintptr_t>& pointers,
           const std::vector<double>& params) {
  vtc::ProgramView view = view_of(program);
  if (static_cast<int>(pointers.size()) != view.buffers())
    throw nb::value_error("run() needs one pointer a buffer");
  if (static_cast<int>(params.size()) != view.params())
    throw nb::value_error("run() needs one value a runtime scalar");
  for (int b = 0; b < view.buffers(); ++b)
    if (!pointers[b] && view.callers(b) && view.extent(b) > 0)
      throw nb::value_error("run() got no pointer for a buffer of the caller's");
  for (int b = 0; b < view.buffers(); ++b)
    if (view.hosted(b)) check_host(pointers[view.host(b)]);
}

uint64_t run(const Program& program, const std::vector<uintptr_t>& pointers,
             const std::vector<double>& params, int threads) {
  check(program, pointers, params);
  nb::gil_scoped_release release;
  vtc::ProgramView view = view_of(program);
  for (int b : program.fresh)
    vtc::want_huge_pages(reinterpret_cast<void*>(pointers[b]),
                         program.extents[b] * vtc::kItemsize[view.type(b)]);
  return vtc::run_program(program.words, pointers.data(), params.data(), threads);
}

// A program most of whose buffers stay where they are from run to run.
class BoundProgram {
 public:
  BoundProgram(const Program& program, std::vector<uintptr_t> pointers, std::vector<int> open)
      : words_(program.words), pointers_(std::move(pointers)), open_(std::move(open)) {
    vtc::ProgramView view = view_of(program);
    std::vector<uintptr_t> filled(pointers_);
    for (int b : open_) {
      if (b < 0 || b >= static_cast<int>(filled.size())) throw nb::value_error("bind() got no buffer");
      filled[b] = sizeof(Word);
    }
    check(program, filled, {});
    std::vector<bool> host(filled.size());
    for (int b = 0; b < view.buffers(); ++b)
      if (view.hosted(b)) host[view.host(b)] = true;
    for (int b : open_) {
      needed_.push_back(view.callers(b) && view.extent(b) > 0);
      host_.push_back(host[b]);
    }
    for (int b : program.fresh)
      fresh_.push_back({b, program.extents[b] * vtc::kItemsize[view.type(b)]});
  }

  // pointers: of the open buffers.
  uint64_t run(const std::vector<uintptr_t>& pointers, int threads) const {
    if (pointers.size() != open_.size()) throw nb::value_error("run() needs one pointer a buffer");
    std::vector<uintptr_t> at(pointers_);
    for (size_t i = 0; i < open_.size(); ++i) {
      if (needed_[i] && !pointers[i])
        throw nb::value_error("run() got no pointer for a buffer of the caller's");
      if (host_[i]) check_host(pointers[i]);
      at[open_[i]] = pointers[i];
    }
    nb::gil_scoped_release release;
    for (const Fresh& f : fresh_) vtc::want_huge_pages(reinterpret_cast<void*>(at[f.buffer]), f.bytes);
    return vtc::run_program(words_, at.data(), nullptr, threads);
  }

 private:
  struct Fresh {
    int buffer;
    int64_t bytes;
  };

  vtc::Words words_;
  std::vector<uintptr_t> pointers_;
  std::vector<int> open_;
  std::vector<bool> needed_, host_;  // of the open buffers
  std::vector<Fresh> fresh_;
};

std::unique_ptr<BoundProgram> bind(const Program& program, std::vector<uintptr_t> pointers,
                                   std::vector<int> open) {
  return std::make_unique<BoundProgram>(program, std::move(pointers), std::move(open));
}

// functions: addresses in the order of TorchFunctions. tensors, storages: of TensorImpls and of their
// StorageImpls.
void watch_tensors(vtc::TensorWatch* self, const std::vector<uintptr_t>& functions,
                   const std::vector<uintptr_t>& tensors, const std::vector<uintptr_t>& storages,
                   const std::vector<bool>& counted) {
  if (functions.size() != 7 || storages.size() != tensors.size() ||
      counted.size() != tensors.size())
    throw nb::value_error("a watch needs seven functions, and as much of each tensor");
  vtc::TorchFunctions torch{
      reinterpret_cast<decltype(vtc::TorchFunctions::version)>(functions[0]),
      reinterpret_cast<decltype(vtc::TorchFunctions::data)>(functions[1]),
      reinterpret_cast<decltype(vtc::TorchFunctions::dims)>(functions[2]),
      reinterpret_cast<decltype(vtc::TorchFunctions::sizes)>(functions[3]),
      reinterpret_cast<decltype(vtc::TorchFunctions::strides)>(functions[4]),
      reinterpret_cast<decltype(vtc::TorchFunctions::dtype)>(functions[5]),
      reinterpret_cast<decltype(vtc::TorchFunctions::requires_grad)>(functions[6])};
  std::vector<vtc::WatchedTensor> watched;
  for (size_t i = 0; i < tensors.size(); ++i)
    watched.push_back({reinterpret_cast<const void*>(tensors[i]),
                       reinterpret_cast<const void*>(storages[i]), counted[i]});
  new (self) vtc::TensorWatch(torch, watched);
}

void watch_dicts(vtc::DictWatch* self, nb::list dicts) {
  std::vector<PyObject*> watched;
  for (nb::handle dict : dicts) {
    if (!PyDict_Check(dict.ptr())) throw nb::type_error("only dictionaries have versions");
    watched.push_back(dict.ptr());
  }
  new (self) vtc::DictWatch(watched);
}

std::vector<int64_t> timed(const Program& program, const std::vector<uintptr_t>& pointers,
                           const std::vector<double>& params, int threads) {
  check(program, pointers, params);
  std::vector<int64_t> times(view_of(program).kernels(), 0);
  nb::gil_scoped_release release;
  vtc::run_program(program.words, pointers.data(), params.data(), threads, times.data());
  return times;
}

std::unique_ptr<Program> from_words(nb::ndarray<const Word, nb::ndim<1>, nb::c_contig> words) {
  auto program = std::make_unique<Program>();
  std::vector<Word> copy(words.data(), words.data() + words.shape(0));
  if (auto problem = vtc::validate(copy)) throw nb::value_error(problem->c_str());
  program->words = std::make_shared<const std::vector<Word>>(std::move(copy));
  vtc::ProgramView view = view_of(*program);
  for (int b = 0; b < view.buffers(); ++b) program->extents.push_back(view.extent(b));
  return program;
}

// The address of each buffer.
std::vector<uintptr_t> addresses(const Program& program, const std::vector<uintptr_t>& pointers,
                                 uintptr_t arena) {
  vtc::ProgramView view = view_of(program);
  std::vector<uintptr_t> at(pointers);
  for (int b = 0; b < view.buffers(); ++b)
    if (!view.callers(b)) at[b] = arena + view.offset(b);
  return at;
}

// The kernels of a program, each in a slot of `words` words, as captured launches read them; slots
// that are left are empty.
WordArray slots(const Program& program, const std::vector<uintptr_t>& pointers,
                const std::vector<double>& params, uintptr_t arena, uintptr_t fault, size_t count,
                size_t words) {
  check(program, pointers, params);
  std::vector<uintptr_t> at = addresses(program, pointers, arena);
  if (program.launches.size() > count) throw nb::value_error("the program has too many kernels");
  std::vector<Word> found(count * words);
  for (size_t n = 0; n < program.launches.size(); ++n) {
    const vtc::DeviceKernel& kernel = program.launches[n];
    if (kernel.words() > words) throw nb::value_error("a kernel of the program is too long");
    vtc::fill_kernel(kernel, at, params, arena, fault, found.data() + n * words);
  }
  return array_of(found);
}

// All kernels of a program as one launch of at most `most` blocks has them, and how many it has.
nb::tuple together(const Program& program, const std::vector<uintptr_t>& pointers,
                   const std::vector<double>& params, uintptr_t arena, uintptr_t fault,
                   int64_t most) {
  check(program, pointers, params);
  std::vector<uintptr_t> at = addresses(program, pointers, arena);
  size_t words = 0;
  for (const vtc::DeviceKernel& kernel : program.launches) words += kernel.words();
  std::vector<Word> found(words);
  words = 0;
  for (const vtc::DeviceKernel& kernel : program.launches) {
    vtc::fill_kernel(kernel, at, params, arena, fault, found.data() + words);
    words += kernel.words();
  }
  int64_t grid = vtc::share_blocks(program.launches, most, found.data());
  return nb::make_tuple(array_of(found), grid);
}

// Launches a program that was encoded for a device, unless a kernel before it has found a fault,
// which is then given.
uint64_t launch(const Program& program, vtc::DeviceInterpreter& interpreter,
                const std::vector<uintptr_t>& pointers, const std::vector<double>& params,
                uintptr_t arena, uintptr_t stream) {
  check(program, pointers, params);
  if (uint64_t fault = interpreter.take_fault()) return fault;
  std::vector<uintptr_t> at = addresses(program, pointers, arena);
  interpreter.launch(program.launches, at, params, arena, stream);
  return 0;
}

// from, to, rows, columns, pitch, to_rows, to_columns (cuda/padded.h).
using PaddedMatrix = std::tuple<uintptr_t, uintptr_t, int, int, int, int, int>;

vtc::Padded padded(const PaddedMatrix& own) {
  auto [from, to, rows, columns, pitch, to_rows, to_columns] = own;
  return {from, to, rows, columns, pitch, to_rows, to_columns, 0};
}

void pad(const vtc::DeviceInterpreter& interpreter, const std::vector<PaddedMatrix>& matrices,
         uintptr_t stream) {
  std::vector<vtc::Padded> all;
  for (const PaddedMatrix& own : matrices) all.push_back(padded(own));
  interpreter.pad(std::move(all), stream);
}

// Of each kernel that is an operation on rows: the bytes of its argument, the numbers of its function, of
// its blocks and of a block's threads; else None.
nb::list rows(const Program& program, const std::vector<uintptr_t>& pointers, uintptr_t arena,
              int processors) {
  std::vector<uintptr_t> at = addresses(program, pointers, arena);
  nb::list found;
  for (const vtc::DeviceKernel& kernel : program.launches) {
    if (!kernel.direct()) {
      found.append(nb::none());
      continue;
    }
    vtc::RowsLaunch own = vtc::launch_of(kernel.rows, at, processors);
    if (!own.blocks) {
      found.append(nb::none());
      continue;
    }
    std::span<const char> argument = own.argument();
    found.append(nb::make_tuple(nb::bytes(argument.data(), argument.size()), own.function,
                                own.blocks, own.threads()));
  }
  return found;
}

// (number of words, tasks, bytes of shared memory) of each kernel.
nb::list launches(const Program& program) {
  nb::list found;
  for (const vtc::DeviceKernel& kernel : program.launches)
    found.append(nb::make_tuple(kernel.words(), kernel.tasks, kernel.shared_bytes));
  return found;
}

}  // namespace

NB_MODULE(_native, m) {
  // Caches of encoded programs may live as long as the interpreter, whose end frees no objects.
  nb::set_leak_warnings(false);
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const vtc::EncodeError& e) {
      // A program that is beyond what this machine does, which callers run otherwise.
      PyErr_SetString(PyExc_NotImplementedError, e.what());
    } catch (const vtc::DeviceError& e) {
      PyErr_SetString(PyExc_RuntimeError, e.what());
    }
  });
  nb::class_<Program>(m, "Program")
      .def_static("from_words", &from_words, nb::arg("words"))
      .def("words", [](const Program& p) { return array_of(*p.words); })
      .def_prop_ro("arena_bytes",
                   [](const Program& p) { return view_of(p).arena_bytes(); })
      .def_ro("extents", &Program::extents)
      .def_prop_ro("types",
                   [](const Program& p) {
                     vtc::ProgramView view = view_of(p);
                     std::vector<int> types;
                     for (int b = 0; b < view.buffers(); ++b) types.push_back(view.type(b));
                     return types;
                   })
      .def_prop_ro("used",
                   [](const Program& p) {
                     vtc::ProgramView view = view_of(p);
                     std::vector<bool> used;
                     for (int b = 0; b < view.buffers(); ++b) used.push_back(view.extent(b) > 0);
                     return used;
                   })
      .def_prop_ro("launches", &launches)
      .def("slots", &slots, nb::arg("pointers"), nb::arg("params"), nb::arg("arena"),
           nb::arg("fault"), nb::arg("count"), nb::arg("words"))
      .def("rows", &rows, nb::arg("pointers"), nb::arg("arena"), nb::arg("processors"))
      .def("together", &together, nb::arg("pointers"), nb::arg("params"), nb::arg("arena"),
           nb::arg("fault"), nb::arg("most"))
      .def("launch", &launch, nb::arg("interpreter"), nb::arg("pointers"), nb::arg("params"),
           nb::arg("arena"), nb::arg("stream"))
      .def("run", &run, nb::arg("pointers"), nb::arg("params"), nb::arg("threads"))
      .def("bind", &bind, nb::arg("pointers"), nb::arg("open"))
      .def("timed", &timed, nb::arg("pointers"), nb::arg("params"), nb::arg("threads"));
  nb::class_<BoundProgram>(m, "BoundProgram")
      .def("run", &BoundProgram::run, nb::arg("pointers"), nb::arg("threads"));
  nb::class_<vtc::Encoder>(m, "Encoder")
      .def("__init__",
           [](vtc::Encoder* self, const std::vector<int64_t>& image) {
             new (self) vtc::Encoder(image);
           })
      .def(
          "encode",
          [](const vtc::Encoder& e, const std::vector<int64_t>& sizes, bool device) {
            return e.encode(sizes, device);
          },
          nb::arg("sizes"), nb::arg("device") = false);
  nb::class_<vtc::DeviceInterpreter>(m, "DeviceInterpreter")
      .def(
          "__init__",
          [](vtc::DeviceInterpreter* self, nb::bytes cubin, int processors, uintptr_t fault,
             uintptr_t places, size_t count) {
            new (self) vtc::DeviceInterpreter(cubin.c_str(), processors, fault, places, count);
          },
          nb::arg("cubin"), nb::arg("processors"), nb::arg("fault"), nb::arg("places"),
          nb::arg("count"))
      .def("launch_slot", &vtc::DeviceInterpreter::launch_slot, nb::arg("slot"),
           nb::arg("shared_bytes"), nb::arg("stream"))
      .def("pad", &pad, nb::arg("matrices"), nb::arg("stream"))
      .def("unpad", [](const vtc::DeviceInterpreter& self, const PaddedMatrix& own,
                       uintptr_t stream) { self.unpad(padded(own), stream); },
           nb::arg("matrix"), nb::arg("stream"))
      .def("take_fault", &vtc::DeviceInterpreter::take_fault);
  nb::class_<vtc::TensorWatch>(m, "TensorWatch")
      .def("__init__", &watch_tensors, nb::arg("functions"), nb::arg("tensors"),
           nb::arg("storages"), nb::arg("counted"))
      .def("unchanged", &vtc::TensorWatch::unchanged);
  nb::class_<vtc::DictWatch>(m, "DictWatch")
      .def("__init__", &watch_dicts, nb::arg("dicts"))
      .def("unchanged", &vtc::DictWatch::unchanged);
  nb::class_<vtc::WordWatch>(m, "WordWatch")
      .def(nb::init<const std::vector<uintptr_t>&>(), nb::arg("places"))
      .def("unchanged", &vtc::WordWatch::unchanged);
  m.def("dicts_are_counted", &vtc::DictWatch::counted);
  m.def("helpers_started", &vtc::helpers_started);
  m.def("take_workspace_peak", &vtc::take_workspace_peak);
  m.def("panel_width", [] { return vtc::table().gemm.panel; });
  m.def("pairs_bf16", [] { return vtc::table().gemm.multiply_pairs != nullptr; });
  m.def("instruction_set", [] { return std::string(vtc::table().name); });
}
