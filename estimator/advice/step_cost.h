// Counts what a step of training costs beside memory: arithmetic, and bytes between GPUs, to the host, and to
// the GPU's own memory. From first principles, with published rates of machines, to tell dear changes of a
// run from cheap ones: no prediction of a step's time. Nothing is taken to hide behind anything else.
#pragma once

#include <string>

#include "estimator/estimate.h"
#include "estimator/run.h"

namespace spillway::estimator {

// Published rates of one GPU, and of what is between GPUs.
struct Machine {
  const char* name;
  double flops;         // dense 16-bit products, a second
  double memory_bytes;  // a second
  double link_bytes;    // a second and direction between GPUs of one machine
};

// The machine of a GPU's name ("h100-80"); an A100 where only a size is known.
const Machine& machine_of(const std::string& gpu);

// Sizes of a model that a step's cost follows from. Elements, for one token.
struct ModelWork {
  double active_parameters = 0;  // that take part in the products of one token
  double parameters = 0;         // of the whole model
  double layers = 0;
  double attention_width = 0;  // heads x head size, summed over layers
  double key_value_width = 0;  // the same of keys and values, both
  double expert_tokens = 0;    // experts for each token, summed over layers
  double hidden = 0;
  double sequence = 0;
};
ModelWork model_work(const Model& model);

// Holds what decides a step's cost beside the model.
struct StepShape {
  Parallel parallel;
  Training training;
  Offload offload;
};

// Counts those of one rank and one step.
struct StepWork {
  double flops = 0;  // recomputation included
  double recomputed_flops = 0;
  double link_bytes = 0;    // between GPUs
  double host_bytes = 0;    // between device and host
  double memory_bytes = 0;  // weights read, gradients added to, once for each microbatch
  double idle_share = 0;    // of the arithmetic's time: a pipeline's bubble
};
StepWork step_work(const ModelWork& model, const StepShape& shape);

double step_seconds(const StepWork& work, const StepShape& shape, const Machine& machine);

}  // namespace spillway::estimator
