// Bytes that lie below the device, what their way costs on the device and in host memory, and how long it
// takes. The device keeps what is in use: gathered units of weights (buckets/communication.h), the largest
// layer's activations twice, one layer's gradients.
#pragma once

#include "estimator/buckets/states.h"
#include "estimator/estimate.h"

namespace spillway::estimator {

// Saved activations of all microbatches in flight, and the largest layer's share of one.
struct ActivationBytes {
  double all = 0;
  double layer = 0;
};

// Takes the offloaded part out of `states`; the buckets and times are left in `out`.
void offload(const TrainingRun& run, const ActivationBytes& activations, StateBytes& states, RankClass& out);

}  // namespace spillway::estimator
