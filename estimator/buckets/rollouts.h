// PPO as TRL's PPOTrainer has it: the models beside the one that is trained, and what answers take that it
// writes itself (trl/experimental/ppo/ppo_trainer.py of TRL 1.12, the last release that has it).
#pragma once

#include "estimator/run.h"

namespace spillway::estimator {

// Elements of a value model or a reward model: the model with one score for each token in the place of
// logits.
double scorer_parameters(const TrainingRun& run);

// Keys and values of a token in all layers, as transformers' cache has them. Elements.
double cached_elements(const Model& model);

struct RolloutBytes {
  double scores = 0;   // fp32 logits of all answers of a step, which stay until the next ones are there
  double writing = 0;  // the most beside them while answers are written
};
RolloutBytes rollout_bytes(const TrainingRun& run);

}  // namespace spillway::estimator
