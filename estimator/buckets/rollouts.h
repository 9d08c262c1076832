// What TRL's PPOTrainer holds beside the passes of its models (trl/experimental/ppo/ppo_trainer.py of
// TRL 1.12, the last release that has it): the answers that the model writes.
#pragma once

#include "estimator/run.h"

namespace spillway::estimator {

// Keys and values of a token in all layers, or what they are made of where the code caches that. Elements.
double cached_elements(const TrainingRun& run);

inline int64_t answers_of_step(const Training& training) {
  return training.micro_batch * training.microbatches;
}

struct RolloutBytes {
  double scores = 0;   // fp32 logits of all answers of a step, which stay until the next ones are there
  double writing = 0;  // the most beside them while answers are written
};
RolloutBytes rollout_bytes(const TrainingRun& run);

}  // namespace spillway::estimator
