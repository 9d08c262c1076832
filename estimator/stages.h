// Pipeline stages: which layers a rank class holds and how many microbatches of each are in flight at its
// peak.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/run.h"

namespace spillway::estimator {

struct Chunk {
  int64_t first_layer = 0;  // of the last tower
  int64_t layers = 0;
  int64_t in_flight = 0;  // microbatches whose activations are held when the first backward pass begins
};

struct Stage {
  int64_t rank = 0;  // in the pipeline
  bool first = true;
  bool last = true;
  std::vector<Chunk> chunks = {};
};

// In flight: 1F1B holds min(m, p-r); the interleaved schedule min(m v, 2(p-r-1) + (v-1) G + 1) chunks, G
// microbatches of one chunk at a time (Megatron-LM, pipeline_parallel/schedules.py).
Stage pipeline_stage(const TrainingRun& run, int64_t rank);

}  // namespace spillway::estimator
