// Says what two runs must share for the measurements of one to speak for the other, as text that people can
// read.
#pragma once

#include <string>

#include "estimator/run.h"

namespace spillway::estimator {

// Counts up whenever a formula changes what it predicts: factors learned against the old one are void.
constexpr int kFormulaVersion = 7;

struct Signature {
  std::string hardware;  // the device's name, as its dumps have it
  std::string model;     // widths and layers, without the sequence length
  std::string parallel;
  std::string states;   // framework, precision, optimizer, allocator: what the model states follow from
  std::string kernels;  // attention, loss, recomputation, dropout: what activations follow from
  std::string shape;    // micro-batch, microbatches, sequence length

  // 128 bits of code version, hardware, model, parallel and states, in hexadecimal digits. Kernels and shape
  // may differ between runs of one key.
  std::string key() const;
};

Signature signature_of(const TrainingRun& run, const std::string& hardware);

}  // namespace spillway::estimator
