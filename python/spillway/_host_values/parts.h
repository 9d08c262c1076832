// Tells which elements are real where an operator wrote real values to some of a tensor that is not.
#pragma once

#include <vector>

#include "operators.h"

namespace spillway::values {

// `tensor` is the first argument on the device, `hosts` the arguments as they were computed with.
void set_parts(const Operator& op, const std::vector<IValue>& hosts, const at::Tensor& tensor);

}  // namespace spillway::values
