// What a call's arguments hold is taken, and the operator computed on it.
#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <stdexcept>

#include "../_operands/tensors.h"
#include "call.h"
#include "footprint.h"
#include "random.h"
#include "sizes.h"

namespace spillway::values {

using operands::each_tensor;

namespace {

// Numbers in place of those that nobody knows: the same for tensors of the same sizes, so that what is
// computed again comes out again.
void draw(at::Tensor& host) {
  uint64_t seed = 1;
  for (const int64_t size : host.sizes()) seed = seed * 1000003 + static_cast<uint64_t>(size);
  host = at::detail::empty_cpu(host.sizes(), host.scalar_type());
  host.normal_(0, 1, generator_of(seed));
}

}  // namespace

void Call::prepare(c10::Device device) {
  if (way_ == Way::kFollow) {
    level_ = level_read();
    return;
  }
  if (way_ != Way::kCompute) return;
  hosts_.resize(arguments_.size());
  try {
    const Unobserved unobserved;
    if (op_.random) seed_ = seed_of(op_, Arguments(arguments_.data(), arguments_.size()), device);
    if (op_.writes_any) take_what_is_written();
    if (op_.counts != Counts::kNothing) compute_counted();
  } catch (const std::exception& problem) {
    fail(problem.what());
    way_ = Way::kMark;
  }
}

// And what shares memory with it, which the kernels' own copies may change.
void Call::take_what_is_written() {
  std::vector<uint64_t> written;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (!op_.arguments[i].written) continue;
    each_tensor(arguments_[i],
                [&](const at::Tensor& tensor) { written.push_back(operands::base_of(tensor)); });
  }
  for (size_t i = 0; i < arguments_.size(); ++i) {
    bool shares = false;
    each_tensor(arguments_[i], [&](const at::Tensor& tensor) {
      const uint64_t base = operands::base_of(tensor);
      shares |= base != 0 && std::find(written.begin(), written.end(), base) != written.end();
    });
    if (shares) take_argument(i);
  }
}

void Call::take_argument(size_t index) {
  const Argument& argument = op_.arguments[index];
  if (argument.read) {
    each_tensor(arguments_[index], [&](const at::Tensor& tensor) {
      const Level level = reality.level_of(tensor);
      level_ = std::min(level_, level);
      if (!argument.written) level_of_others_ = std::min(level_of_others_, level);
      has_no_index_ |=
          level == Level::kUnknown && !argument.written && at::isIntegralType(tensor.scalar_type(), false);
    });
  }
  hosts_[index] = host_of(arguments_[index], argument);
}

IValue Call::host_of(const IValue& value, const Argument& argument) const {
  if (value.isDevice()) return at::Device(at::kCPU);
  if (op_.random && argument.is_generator) return generator_of(seed_);
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return value;
    if (argument.is_output) return at::detail::empty_cpu(tensor.sizes(), tensor.scalar_type());
    if (!tensor.is_cuda()) return argument.written ? tensor.clone() : value;
    at::Tensor host = mirror_of(tensor);
    if (!host.defined()) throw std::runtime_error("its memory cannot be read");
    if (draws_ && tensor.is_floating_point() && tensor.numel() > 1 && !reality.is_real(tensor)) draw(host);
    return host;
  }
  if (!value.isList()) return value;
  c10::List<IValue> list = value.toList().copy();
  for (size_t i = 0; i < list.size(); ++i) list.set(i, host_of(list.get(i), argument));
  return list;
}

Level Call::level_read() const {
  Level level = Level::kReal;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (!op_.arguments[i].read) continue;
    each_tensor(arguments_[i],
                [&](const at::Tensor& tensor) { level = std::min(level, reality.level_of(tensor)); });
  }
  return level;
}

// The host knows before the kernels what they would count.
void Call::compute_counted() {
  level_ = level_read();
  if (level_ != Level::kReal) report_read(op_, static_cast<int64_t>(bytes_of(arguments_).all));
  counted_ = compute(false);
  int64_t count = 0;
  if (op_.counts == Counts::kEqual) {
    count = counted_.at(0).toBool() ? 1 : 0;
  } else {
    count = counted_.at(0).toTensor().size(0);
  }
  is_counted_ = true;
  ++answered_;
  driver.answer(count, 1);
}

std::vector<IValue> Call::compute(bool gives_integers) {
  draws_ = gives_integers && settings.wanted == Wanted::kSmall;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (hosts_[i].isNone()) take_argument(i);
  }
  if (has_no_index_ && op_.counts == Counts::kNothing) return {};
  if (op_.recipe != nullptr) {
    const int dropout = op_.recipe->dropout;
    if (dropout >= 0 && arguments_[static_cast<size_t>(dropout)].toDouble() != 0) level_ = Level::kComputed;
    return op_.recipe->recipe(hosts_);
  }
  torch::jit::Stack stack = hosts_;
  const bool lends = op_.random && std::none_of(op_.arguments.begin(), op_.arguments.end(),
                                                [](const Argument& each) { return each.is_generator; });
  if (lends) {
    const DefaultGeneratorLent lent(seed_);
    op_.handle.callBoxed(stack);
  } else {
    op_.handle.callBoxed(stack);
  }
  return stack;
}

}  // namespace spillway::values
