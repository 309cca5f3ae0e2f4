// Whether dictionaries of Python's have changed since they were looked at.

#include "watch_dicts.h"

#include <algorithm>
#include <cstddef>

namespace vtc {
namespace {

// CPython 3.14 took the versions away.
#if PY_VERSION_HEX < 0x030E0000
constexpr bool kCounted = true;
uint64_t version_of(PyObject* dict) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#pragma GCC diagnostic pop
}
#else
constexpr bool kCounted = false;
uint64_t version_of(PyObject*) { return 0; }
#endif

constexpr size_t kAhead = 16;  // dictionaries that are fetched ahead

void fetch(PyObject* dict) {
  const char* at = reinterpret_cast<const char*>(dict);
  __builtin_prefetch(at + offsetof(PyDictObject, ma_used) + sizeof(Py_ssize_t));
}

}  // namespace

DictWatch::DictWatch(const std::vector<PyObject*>& dicts) {
  for (PyObject* dict : dicts) states_.push_back({dict, version_of(dict)});
}

bool DictWatch::counted() { return kCounted; }

bool DictWatch::unchanged() const {
  for (size_t i = 0; i < std::min(kAhead, states_.size()); ++i) fetch(states_[i].dict);
  for (size_t i = 0; i < states_.size(); ++i) {
    if (i + kAhead < states_.size()) fetch(states_[i + kAhead].dict);
    if (version_of(states_[i].dict) != states_[i].version) return false;
  }
  return true;
}

}  // namespace vtc
