// Logits and loss: the largest tensors of a model with a large vocabulary, all of the last stage.
#pragma once

#include "estimator/run.h"

namespace spillway::estimator {

// While the loss is computed.
struct LossBytes {
  double logits = 0;   // as the output projection makes them
  double working = 0;  // their fp32 copy and what the loss keeps

  double kept = 0;  // by earlier losses of the same microbatch

  double total() const { return logits + working + kept; }
};
LossBytes loss_bytes(const TrainingRun& run);

// Input and output of the final norm, and of what else stands before the output projection.
double head_bytes(const TrainingRun& run);

// Logit gradients and head inputs kept until the pipeline drains.
double deferred_gradient_bytes(const TrainingRun& run);

}  // namespace spillway::estimator
