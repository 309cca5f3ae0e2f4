// Whether tensors of PyTorch's have changed since they were looked at.
#pragma once

#include <cstdint>
#include <vector>

namespace vtc {

// Functions that libtorch exports, on a pointer to a tensor: that is, to the address of its
// TensorImpl. `version` is at::TensorBase::_version, which throws for a tensor that counts none;
// `data` aoti_torch_get_data_ptr, which gives 0 where it succeeds.
struct TorchFunctions {
  int64_t (*version)(const void* const*);
  int32_t (*data)(const void* const*, void**);
};

// The addresses and versions of tensors, which the caller keeps alive.
class TensorWatch {
 public:
  // tensors: addresses of TensorImpls. counted: for each, whether its version matters. Throws what
  // the functions throw.
  TensorWatch(TorchFunctions torch, const std::vector<uintptr_t>& tensors,
              const std::vector<bool>& counted);

  // Has every tensor the address and the version that it had?
  bool unchanged() const;

 private:
  struct State {
    const void* tensor;
    void* data;
    int64_t version;  // -1 where it does not matter
  };

  TorchFunctions torch_;
  std::vector<State> states_;
};

}  // namespace vtc
