// What comes out of a call is written, or known not to be real.
#include <algorithm>
#include <exception>

#include "../_operands/tensors.h"
#include "call.h"
#include "footprint.h"
#include "parts.h"
#include "sizes.h"

namespace spillway::values {

using operands::device_base_of;
using operands::each_tensor;

namespace {

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

}  // namespace

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

}  // namespace spillway::values
