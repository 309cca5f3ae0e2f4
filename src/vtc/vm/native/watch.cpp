// Whether tensors of PyTorch's have changed since they were looked at.

#include "watch.h"

#include <algorithm>
#include <cstddef>

namespace vtc {
namespace {

// Tensors that are fetched ahead: between calls they leave the caches.
constexpr size_t kAhead = 8;
// Bytes of a TensorImpl and of a StorageImpl that are looked at.
constexpr size_t kTensorBytes = 192, kStorageBytes = 128, kLine = 64;

void fetch(const void* at, size_t bytes) {
  for (size_t b = 0; b < bytes; b += kLine) __builtin_prefetch(static_cast<const char*>(at) + b);
}

}  // namespace

TensorWatch::TensorWatch(TorchFunctions torch, const std::vector<WatchedTensor>& tensors)
    : torch_(torch) {
  for (const WatchedTensor& t : tensors) {
    State s{t.tensor, t.storage, nullptr, -1, -1, 0, false};
    int64_t dims = 0, *sizes = nullptr, *strides = nullptr;
    if (torch_.data(&s.tensor, &s.data) != 0) s.data = nullptr;
    if (torch_.dims(&s.tensor, &dims) == 0 && torch_.sizes(&s.tensor, &sizes) == 0 &&
        torch_.strides(&s.tensor, &strides) == 0) {
      s.dims = static_cast<int32_t>(dims);
      layouts_.insert(layouts_.end(), sizes, sizes + dims);
      layouts_.insert(layouts_.end(), strides, strides + dims);
    }
    torch_.dtype(&s.tensor, &s.dtype);
    if (t.counted) s.version = torch_.version(&s.tensor);
    if (torch_.requires_grad) s.requires_grad = torch_.requires_grad(s.tensor);
    states_.push_back(s);
  }
}

bool TensorWatch::unchanged() const {
  for (size_t i = 0; i < std::min(kAhead, states_.size()); ++i) {
    fetch(states_[i].tensor, kTensorBytes);
    fetch(states_[i].storage, kStorageBytes);
  }
  const int64_t* layout = layouts_.data();
  for (size_t i = 0; i < states_.size(); ++i) {
    if (i + kAhead < states_.size()) {
      fetch(states_[i + kAhead].tensor, kTensorBytes);
      fetch(states_[i + kAhead].storage, kStorageBytes);
    }
    if (!same(states_[i], layout)) return false;
    layout += 2 * states_[i].dims;
  }
  return true;
}

bool TensorWatch::same(const State& s, const int64_t* layout) const {
  void* data = nullptr;
  if (torch_.data(&s.tensor, &data) != 0 || data != s.data) return false;
  int64_t dims = 0, *sizes = nullptr, *strides = nullptr;
  if (torch_.dims(&s.tensor, &dims) != 0 || dims != s.dims) return false;
  if (torch_.sizes(&s.tensor, &sizes) != 0 || torch_.strides(&s.tensor, &strides) != 0)
    return false;
  if (!std::equal(sizes, sizes + dims, layout) || !std::equal(strides, strides + dims, layout + dims))
    return false;
  int32_t dtype = 0;
  if (torch_.dtype(&s.tensor, &dtype) != 0 || dtype != s.dtype) return false;
  if (torch_.requires_grad && torch_.requires_grad(s.tensor) != s.requires_grad) return false;
  return s.version < 0 || torch_.version(&s.tensor) == s.version;
}

}  // namespace vtc
