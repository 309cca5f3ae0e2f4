// Whether dictionaries of Python's have changed since they were looked at.
#pragma once

#include <Python.h>

#include <cstdint>
#include <vector>

namespace vtc {

// The versions of dictionaries, which the caller keeps alive: CPython gives each dictionary a new one
// whenever anything is put in, replaced or taken out. Only where `counted()`.
class DictWatch {
 public:
  explicit DictWatch(const std::vector<PyObject*>& dicts);

  // Does this release of CPython count?
  static bool counted();
  // Is every dictionary at the version that it had?
  bool unchanged() const;

 private:
  struct State {
    PyObject* dict;
    uint64_t version;
  };

  std::vector<State> states_;
};

}  // namespace vtc
