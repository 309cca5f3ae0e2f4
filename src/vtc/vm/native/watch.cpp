// Whether tensors of PyTorch's have changed since they were looked at.

#include "watch.h"

#include <cstddef>

namespace vtc {
namespace {

constexpr size_t kAhead = 8;  // tensors that are fetched ahead: between calls they leave the caches

}  // namespace

TensorWatch::TensorWatch(TorchFunctions torch, const std::vector<uintptr_t>& tensors,
                         const std::vector<bool>& counted)
    : torch_(torch) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    State s{reinterpret_cast<const void*>(tensors[i]), nullptr, -1};
    if (torch_.data(&s.tensor, &s.data) != 0) s.data = nullptr;
    if (counted[i]) s.version = torch_.version(&s.tensor);
    states_.push_back(s);
  }
}

bool TensorWatch::unchanged() const {
  for (size_t i = 0; i < states_.size(); ++i) {
    if (i + kAhead < states_.size()) {
      const char* next = static_cast<const char*>(states_[i + kAhead].tensor);
      __builtin_prefetch(next);
      __builtin_prefetch(next + 64);
    }
    const State& s = states_[i];
    void* data = nullptr;
    if (torch_.data(&s.tensor, &data) != 0 || data != s.data) return false;
    if (s.version >= 0 && torch_.version(&s.tensor) != s.version) return false;
  }
  return true;
}

}  // namespace vtc
