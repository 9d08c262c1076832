// Answers what the observers of PyTorch's operators ask of tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>

namespace spillway::operands {

// Where the tensor's storage begins; 0 where there is nothing to touch, as for tensors without bytes of their
// own (fake ones, wrappers), which are not asked more than they answer without Python.
inline uint64_t base_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!impl.has_storage() || impl.has_symbolic_sizes_strides()) return 0;
  c10::StorageImpl* const storage = impl.unsafe_storage().unsafeGetStorageImpl();
  const void* const base = storage == nullptr ? nullptr : storage->_mutable_data_ptr_no_checks().get();
  return base == nullptr || tensor.numel() == 0 ? 0 : reinterpret_cast<uint64_t>(base);
}

// The same of tensors on a device alone.
inline uint64_t device_base_of(const at::Tensor& tensor) {
  const uint64_t base = base_of(tensor);
  return base != 0 && tensor.unsafeGetTensorImpl()->unsafe_storage().device().is_cuda() ? base : 0;
}

template <typename Visit>
void each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isList() && !value.isIntList()) {
    for (const c10::IValue& element : value.toListRef()) each_tensor(element, visit);
  }
}

}  // namespace spillway::operands
