// One step of a transformers model on a tape: the most that is live beside the model's states.
#pragma once

#include "estimator/run.h"
#include "estimator/tape/tape.h"

namespace spillway::estimator {

struct PlayedStep {
  double forward_bytes = 0;     // live when the loss is there
  double peak_bytes = 0;        // of the whole forward and backward pass
  PurposeBytes at_peak = {};    // what they are for
  double trained_elements = 0;  // of the weights that have gradients
  double trained_bytes = 0;
  double kept_bytes = 0;  // live after it beside gradients: what the program still holds
};

// What a tape holds once its backward pass is over; without `forward_bytes`.
PlayedStep played_of(const Tape& tape);

// Says whether each block of the model is one that is written down operator by operator.
bool can_play(const Model& model, const ModelCode& code);

// `keeps_gradients`: those of weights are made by this step and stay until the optimizer has used them.
PlayedStep play_step(const TrainingRun& run, bool keeps_gradients);

}  // namespace spillway::estimator
