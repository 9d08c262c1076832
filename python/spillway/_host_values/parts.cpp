#include "parts.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include "call.h"

namespace spillway::values {
namespace {

// The operator writes ones to zeros, and so shows where it writes.
at::Tensor written_elements(const Operator& op, const std::vector<IValue>& hosts) {
  torch::jit::Stack stack = hosts;
  stack[0] = at::zeros_like(hosts[0].toTensor());
  IValue& values = stack[static_cast<size_t>(op.partial_values)];
  values = values.isTensor() ? IValue(at::ones_like(values.toTensor())) : IValue(c10::Scalar(1));
  const at::Tensor marks = stack[0].toTensor();
  op.handle.callBoxed(stack);
  return marks.ne(0);
}

bool accumulates(const Operator& op, const std::vector<IValue>& hosts) {
  return op.handle.schema().name() == "aten::_index_put_impl_" && hosts[3].toBool();
}

}  // namespace

void set_parts(const Operator& op, const std::vector<IValue>& hosts, const at::Tensor& tensor) {
  if (accumulates(op, hosts)) return reality.set(tensor, Level::kComputed);
  const at::Tensor written = written_elements(op, hosts).flatten();
  if (written.all().item<bool>()) return reality.set(tensor, Level::kReal);
  if (!tensor.is_contiguous()) return reality.set(tensor, Level::kComputed);
  // The rest stays what it was.
  const at::Tensor elements = tensor.view({-1});
  const auto* const marks = written.const_data_ptr<bool>();
  const int64_t count = written.numel();
  for (int64_t begin = 0; begin < count;) {
    int64_t end = begin + 1;
    while (end < count && marks[end] == marks[begin]) ++end;
    if (marks[begin]) reality.set(elements.narrow(0, begin, end - begin), Level::kReal);
    begin = end;
  }
}

}  // namespace spillway::values
