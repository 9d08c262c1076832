// A training step of a pipeline's denoiser, and the making of images with all of it, on a tape.
#pragma once

#include <vector>

#include "estimator/run.h"
#include "estimator/tape/step.h"

namespace spillway::estimator {

// As diffusers' scripts train: images and texts are encoded first, where that is not done before; then noise
// is predicted, and compared in fp32.
PlayedStep play_denoising_step(const TrainingRun& run, bool keeps_gradients);

// A part of making images: what it needs beside the weights that stay, and the weights of the part that
// works.
struct GenerationPhase {
  const char* name = "";
  double part_bytes = 0;  // weights of the part
  double more_bytes = 0;  // of them, where the part is cast up while it works
  double peak_bytes = 0;  // what is made meanwhile
  PurposeBytes at_peak = {};
};
std::vector<GenerationPhase> play_generation(const TrainingRun& run);

// Bytes of the parts that a training step does not train: those of the autoencoder and of the text encoders.
struct FrozenParts {
  double coder = 0;
  double encoders = 0;
};
FrozenParts frozen_parts(const TrainingRun& run);

// Bytes of tables that are no parameters.
double denoiser_buffer_bytes(const TrainingRun& run);

}  // namespace spillway::estimator
