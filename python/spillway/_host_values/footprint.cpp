#include "footprint.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/_conj.h>
#include <ATen/ops/_neg_view.h>

#include "../_operands/tensors.h"

namespace spillway::values {

Driver driver;

bool is_dense(const at::Tensor& tensor) {
  return tensor.is_contiguous() || tensor.unsafeGetTensorImpl()->is_non_overlapping_and_dense();
}

uint64_t begin_of(const at::Tensor& tensor) {
  return operands::base_of(tensor) +
         static_cast<uint64_t>(tensor.storage_offset()) * static_cast<uint64_t>(tensor.itemsize());
}

uint64_t end_of(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return begin_of(tensor) + static_cast<uint64_t>(last + 1) * static_cast<uint64_t>(tensor.itemsize());
}

Runs runs_of(const at::Tensor& tensor) {
  if (operands::base_of(tensor) == 0) return {};
  if (is_dense(tensor)) return {{begin_of(tensor), tensor.nbytes(), 0, 0}};
  const auto item = static_cast<uint64_t>(tensor.itemsize());
  int64_t outer = tensor.dim();
  uint64_t run = 1;  // elements without a gap, of the inner dimensions
  while (outer > 0 &&
         (tensor.size(outer - 1) == 1 || tensor.stride(outer - 1) == static_cast<int64_t>(run))) {
    run *= static_cast<uint64_t>(tensor.size(--outer));
  }
  Runs runs;
  runs.reserve(static_cast<size_t>(tensor.numel()) / run);
  std::vector<int64_t> index(static_cast<size_t>(outer), 0);
  uint64_t at = begin_of(tensor);
  for (;;) {
    runs.push_back({at, run * item, 0, 0});
    int64_t i = outer - 1;
    for (; i >= 0; --i) {
      const uint64_t step = static_cast<uint64_t>(tensor.stride(i)) * item;
      at += step;
      if (++index[static_cast<size_t>(i)] < tensor.size(i)) break;
      at -= step * static_cast<uint64_t>(tensor.size(i));
      index[static_cast<size_t>(i)] = 0;
    }
    if (i < 0) return runs;
  }
}

namespace {

at::Tensor copy_of_bytes(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  at::Tensor host = is_dense(tensor) ? at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(), type)
                                     : at::detail::empty_cpu(tensor.sizes(), type);
  if (tensor.numel() == 0) return host;
  const Runs runs = runs_of(tensor);
  const bool read = driver.peek(runs.data(), runs.size(), host.mutable_data_ptr()) == 0;
  return read ? host : at::Tensor();
}

// The tensor without what is only repeated.
at::Tensor unexpanded(const at::Tensor& tensor) {
  at::Tensor once = tensor;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1 && tensor.stride(i) == 0) once = once.narrow(i, 0, 1);
  }
  return once;
}

}  // namespace

at::Tensor mirror_of(const at::Tensor& tensor) {
  const at::Tensor once = unexpanded(tensor);
  at::Tensor host = copy_of_bytes(once);
  if (!host.defined()) return host;
  if (!once.sizes().equals(tensor.sizes())) host = host.expand(tensor.sizes());
  if (tensor.is_conj()) host = at::_conj(host);
  if (tensor.is_neg()) host = at::_neg_view(host);
  return host;
}

bool write_back(const at::Tensor& tensor, const at::Tensor& values) {
  if (!values.defined() || !values.sizes().equals(tensor.sizes())) return false;
  if (tensor.is_conj() || tensor.is_neg()) return false;
  if (tensor.numel() == 0) return true;
  if (operands::device_base_of(tensor) == 0) return false;
  at::Tensor bytes = values;
  if (is_dense(tensor)) {
    const bool as_it_is = values.scalar_type() == tensor.scalar_type() &&
                          values.strides().equals(tensor.strides()) && !values.is_conj() && !values.is_neg();
    if (!as_it_is) {
      bytes = at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(), tensor.scalar_type());
      bytes.copy_(values);
    }
  } else {
    bytes = values.resolve_conj().resolve_neg().to(tensor.scalar_type()).contiguous();
  }
  const Runs runs = runs_of(tensor);
  return driver.poke(runs.data(), runs.size(), bytes.const_data_ptr()) == 0;
}

}  // namespace spillway::values
