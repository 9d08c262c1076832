// PPO's passes on a tape, as TRL's PPOTrainer makes them (trl/experimental/ppo/ppo_trainer.py of TRL 1.12).
#pragma once

#include "estimator/tape/step.h"

namespace spillway::estimator {

// One microbatch: the value model and the model, forward and backward. `keeps_gradients` as in play_step().
PlayedStep play_policy_step(const TrainingRun& run, bool keeps_gradients);

// The most that a pass without gradients over `samples` sequences needs until the answers in them are scored.
double scoring_bytes(const TrainingRun& run, int64_t samples);

}  // namespace spillway::estimator
