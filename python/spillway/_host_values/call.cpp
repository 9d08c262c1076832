#include "call.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <exception>
#include <stdexcept>

#include "../_operands/tensors.h"
#include "footprint.h"
#include "parts.h"
#include "random.h"

namespace spillway::values {

using operands::device_base_of;
using operands::each_tensor;

Settings settings;
Reality reality;
Totals totals;
thread_local int Call::answered_ = 0;

namespace {

c10::DispatchKeySet all_but_kernels() {
  using Key = c10::DispatchKey;
  return c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset | c10::python_ks |
         c10::DispatchKeySet({Key::ADInplaceOrView, Key::Functionalize, Key::PythonTLSSnapshot,
                              Key::PreDispatch, Key::PythonDispatcher, Key::FuncTorchDynamicLayerFrontMode,
                              Key::FuncTorchDynamicLayerBackMode, Key::FuncTorchVmapMode, Key::VmapMode,
                              Key::FuncTorchBatched, Key::FuncTorchGradWrapper});
}

bool is_integer(const IValue& value) {
  bool found = false;
  bool only = true;
  each_tensor(value, [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    found = true;
    only &= at::isIntegralType(tensor.scalar_type(), true);
  });
  return found && only;
}

struct Bytes {
  uint64_t all = 0;
  uint64_t largest = 0;

  void add(const IValue& value) {
    each_tensor(value, [this](const at::Tensor& tensor) {
      if (operands::base_of(tensor) == 0) return;
      all += tensor.nbytes();
      largest = std::max<uint64_t>(largest, tensor.nbytes());
    });
  }
};

Bytes bytes_of(const std::vector<IValue>& values) {
  Bytes bytes;
  for (const IValue& value : values) bytes.add(value);
  return bytes;
}

// Visits the tensors of two values of one shape in pairs, as far as both have them.
template <typename Visit>
void each_pair(const IValue& left, const IValue& right, const Visit& visit) {
  std::vector<at::Tensor> others;
  each_tensor(right, [&](const at::Tensor& tensor) { others.push_back(tensor); });
  size_t next = 0;
  each_tensor(left, [&](const at::Tensor& tensor) {
    visit(tensor, next < others.size() ? others[next] : at::Tensor());
    ++next;
  });
}

// Numbers in place of those that nobody knows: the same for tensors of the same sizes, so that what is
// computed again comes out again.
void draw(at::Tensor& host) {
  uint64_t seed = 1;
  for (const int64_t size : host.sizes()) seed = seed * 1000003 + static_cast<uint64_t>(size);
  host = at::detail::empty_cpu(host.sizes(), host.scalar_type());
  host.normal_(0, 1, generator_of(seed));
}

}  // namespace

void report_read(const Operator& op, int64_t bytes) {
  if (const auto report = settings.report_read.load()) report(op.handle.schema().name().c_str(), bytes);
}

void report_failure(const Operator& op, const char* why) {
  if (const auto report = settings.report_failure.load()) report(op.handle.schema().name().c_str(), why);
}

Unobserved::Unobserved() : exclude_(all_but_kernels()) {}

Call::Call(const Operator& op, Way way, Arguments arguments)
    : op_(op), way_(way), exceptions_(std::uncaught_exceptions()) {
  if (way != Way::kMark || op.writes_any || op.kind == Kind::kTalks)
    arguments_.assign(arguments.begin(), arguments.end());
}

Call::~Call() {
  if (is_counted_ && --answered_ == 0) driver.answer(0, 0);
}

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

bool Call::is_wanted(const std::vector<IValue>& outputs, bool gives_integers) const {
  if (settings.wanted == Wanted::kAll || is_counted_) return true;
  Bytes bytes = bytes_of(arguments_);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (i >= op_.result_of.size() || op_.result_of[i] < 0) bytes.add(outputs[i]);
  }
  return bytes.all <= settings.small_bytes || (gives_integers && bytes.largest <= settings.integer_bytes);
}

// Where the first call did not tell, as where the program chooses the type of the results, a later one does.
void Call::note_type(const std::vector<IValue>& outputs) const {
  if (!notes_type_ || outputs.empty() || op_.makes_integers == 1) return;
  op_.makes_integers = is_integer(outputs[0]) ? 1 : 0;
}

void Unknown::finish(const std::vector<IValue>& outputs) {
  totals.too_large.fetch_add(op_.kind == Kind::kComputes ? 1 : 0, std::memory_order_relaxed);
  if (op_.makes_integers == 0 && !outputs.empty() && is_integer(outputs[0])) op_.makes_integers = 1;
  for (const IValue& output : outputs) {
    each_tensor(output, [](const at::Tensor& tensor) {
      if (device_base_of(tensor) != 0) reality.set(tensor, Level::kUnknown);
    });
  }
}

void Call::finish(const std::vector<IValue>& outputs) {
  if (std::uncaught_exceptions() > exceptions_) return;  // the operator's own: nothing was written
  note_type(outputs);
  switch (way_) {
    case Way::kMark:
      totals.too_large.fetch_add(op_.kind == Kind::kComputes ? 1 : 0, std::memory_order_relaxed);
      mark(outputs, Level::kUnknown);
      if (op_.kind == Kind::kCopies) follow_copy();
      if (op_.assumed >= 0)
        reality.set(arguments_[static_cast<size_t>(op_.assumed)].toTensor(), Level::kComputed);
      return;
    case Way::kFollow:
      mark(outputs, level_);
      return;
    case Way::kCompute:
      compute_and_write(outputs);
  }
}

void Call::compute_and_write(const std::vector<IValue>& outputs) {
  const bool gives_integers = op_.picks || (!outputs.empty() && is_integer(outputs[0]));
  if (!is_wanted(outputs, gives_integers)) {
    totals.too_large.fetch_add(1, std::memory_order_relaxed);
    mark(outputs, Level::kUnknown);
    return;
  }
  try {
    const Unobserved unobserved;
    const std::vector<IValue> results = is_counted_ ? counted_ : compute(gives_integers);
    if (has_no_index_ && !is_counted_) return mark(outputs, Level::kUnknown);
    write(outputs, results);
    op_.successes.fetch_add(1, std::memory_order_relaxed);
    totals.computed.fetch_add(1, std::memory_order_relaxed);
  } catch (const std::exception& problem) {
    fail(problem.what());
    mark(outputs, Level::kUnknown);
  }
}

void Call::write(const std::vector<IValue>& outputs, const std::vector<IValue>& results) {
  const auto put = [&](const at::Tensor& tensor, const at::Tensor& host) {
    if (device_base_of(tensor) != 0) {
      set_written(tensor, write_back(tensor, host));
    } else {
      reality.set(tensor, level_);  // the host's own, which the operator has written
    }
  };
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (op_.arguments[i].written) each_pair(arguments_[i], hosts_[i], put);
  }
  for (size_t i = 0; i < outputs.size() && i < op_.result_of.size(); ++i) {
    if (op_.result_of[i] < 0) each_pair(outputs[i], i < results.size() ? results[i] : IValue(), put);
  }
}

void Call::set_written(const at::Tensor& tensor, bool is_written) const {
  const bool is_partial =
      op_.partial_values >= 0 && level_ < level_of_others_ && level_of_others_ == Level::kReal;
  if (is_written && is_partial) return set_parts(op_, hosts_, tensor);
  reality.set(tensor, is_written ? std::max(level_, Level::kComputed) : Level::kUnknown);
}

void Call::mark(const std::vector<IValue>& outputs, Level level) {
  const auto set = [&](const at::Tensor& tensor) {
    if (way_ == Way::kFollow || device_base_of(tensor) != 0) reality.set(tensor, level);
  };
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (op_.kind == Kind::kTalks || op_.arguments[i].written) each_tensor(arguments_[i], set);
  }
  for (size_t i = 0; i < outputs.size() && i < op_.result_of.size(); ++i) {
    if (op_.result_of[i] < 0) each_tensor(outputs[i], set);
  }
}

// Where elements are copied as they are the driver has moved them. What comes from the host lies as it is
// needed by then.
void Call::follow_copy() {
  const at::Tensor& to = arguments_[0].toTensor();
  const at::Tensor& from = arguments_[1].toTensor();
  if (to.layout() != at::kStrided || from.layout() != at::kStrided) return;
  const Level level = reality.level_of(from);
  if (!to.is_cuda()) return reality.set(to, level);
  if (!is_dense(to)) return;
  const bool is_moved = to.scalar_type() == from.scalar_type() && to.sizes().equals(from.sizes()) &&
                        to.strides().equals(from.strides());
  if (is_moved || !from.is_cuda()) reality.set(to, level);
}

void Call::fail(const char* why) const {
  totals.failed.fetch_add(1, std::memory_order_relaxed);
  op_.failures.fetch_add(1, std::memory_order_relaxed);
  report_failure(op_, why);
}

}  // namespace spillway::values
