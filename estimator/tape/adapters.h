// Adapters beside a frozen product (PEFT's LoRA, DoRA and IA3), on a tape.
#pragma once

#include "estimator/run.h"
#include "estimator/tape/operators.h"

namespace spillway::estimator {

// The product's `result` with what an adapter of its matrix, `in` x `out` elements, adds for `x`.
Tensor adapted(const Operators& op, const Adapter& adapter, const Tensor& x, Tensor result, double in,
               double out);

// `x` times a trained factor for each of its `width` columns; elements of the result have `element` bytes.
Tensor scaled(const Operators& op, const Adapter& adapter, const Tensor& x, double element, double width);

}  // namespace spillway::estimator
