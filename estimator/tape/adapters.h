// Adapters beside a frozen product (PEFT's LoRA and DoRA), on a tape.
#pragma once

#include "estimator/run.h"
#include "estimator/tape/operators.h"

namespace spillway::estimator {

// The product's `result` with what an adapter of its matrix, `in` x `out` elements, adds for `x`.
Tensor adapted(const Operators& op, const Adapter& adapter, const Tensor& x, Tensor result, double in,
               double out);

}  // namespace spillway::estimator
