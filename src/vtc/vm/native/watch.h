// Whether tensors of PyTorch's, or dictionaries, have changed since they were looked at.
#pragma once

#include <cstdint>
#include <vector>

namespace vtc {

// Functions that libtorch exports, on a pointer to a tensor: that is, to the address of its
// TensorImpl. `version` is at::TensorBase::_version, which throws for a tensor that counts none; the
// others are of the stable interface (aoti_torch_get_...), and give 0 where they succeed.
// `requires_grad` is c10::TensorImpl::requires_grad, on the TensorImpl itself; null where it does not
// matter.
struct TorchFunctions {
  int64_t (*version)(const void* const*);
  int32_t (*data)(const void* const*, void**);
  int32_t (*dims)(const void* const*, int64_t*);
  int32_t (*sizes)(const void* const*, int64_t**);
  int32_t (*strides)(const void* const*, int64_t**);
  int32_t (*dtype)(const void* const*, int32_t*);
  bool (*requires_grad)(const void*);
};

// What is known of a tensor to be watched.
struct WatchedTensor {
  const void* tensor;   // its TensorImpl
  const void* storage;  // its StorageImpl, which is only fetched ahead
  bool counted;         // does its version matter?
};

// The addresses, layouts, dtypes and versions of tensors, which the caller keeps alive.
class TensorWatch {
 public:
  // Throws what the functions throw.
  TensorWatch(TorchFunctions torch, const std::vector<WatchedTensor>& tensors);

  // Has every tensor what it had?
  bool unchanged() const;

 private:
  struct State {
    const void* tensor;
    const void* storage;
    void* data;
    int64_t version;  // -1 where it does not matter
    int32_t dtype, dims;
    bool requires_grad;
  };

  bool same(const State& s, const int64_t* layout) const;

  TorchFunctions torch_;
  std::vector<State> states_;
  std::vector<int64_t> layouts_;  // of each tensor in turn, its sizes and strides
};

}  // namespace vtc
