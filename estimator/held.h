// Adds up what is held at the end of the forward pass, where activations are most: what layers keep, and the
// largest of what the turn to the backward pass needs beside it.
#pragma once

#include <vector>

#include "estimator/buckets/activations.h"
#include "estimator/buckets/bucket.h"
#include "estimator/buckets/offload.h"
#include "estimator/stages.h"

namespace spillway::estimator {

struct HeldActivations {
  Buckets buckets = {};              // by part, of all microbatches in flight
  double expert_bytes = 0;           // what routed experts keep of it
  ActivationBytes bytes = {};        // the same, summed, and the largest layer's share
  std::vector<double> tensors = {};  // one by one in the order they are made
  double segment_bytes = 0;          // the largest that recomputation brings back
  double moved_bytes = 0;            // what waits in host memory
};

HeldActivations held_activations(const TrainingRun& run, const Stage& stage);

}  // namespace spillway::estimator
