// Adds up what the forward pass saves for the backward pass: each tensor of a layer, for one microbatch on
// one rank.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "estimator/run.h"

namespace spillway::estimator {

enum class Part {
  kNorms,      // block inputs, norm outputs, masks of hidden dropout
  kAttention,  // queries, keys, values, outputs
  kScores,     // softmax, its dropout mask and the dropped copy
  kMlp,
  kExperts,
  kMixers,
};
constexpr size_t kParts = 6;

struct SavedTensor {
  Part part;
  double bytes;
  MovedPart moved = MovedPart::kNone;  // to host memory, as soon as it has been used
  double copied = 0;                   // another copy there, of what another operator has saved too
};

struct SavedBytes {
  std::array<double, kParts> of = {};

  double operator[](Part part) const { return of[static_cast<size_t>(part)]; }
  void add(const SavedTensor& tensor, double times = 1) {
    of[static_cast<size_t>(tensor.part)] += times * tensor.bytes;
  }
};

// Appended to `out` in the order they are made. `source_sequence` is the length of the tower before, which
// cross attention reads.
void append_saved_tensors(const TrainingRun& run, const Tower& tower, const Layer& layer,
                          int64_t source_sequence, std::vector<SavedTensor>& out);

// Returns what the backward pass of a layer's attention scores makes where softmax is no single kernel, less
// what the layer has let go of by then: the gradient of the fp32 probabilities, its product with them and the
// gradient of the scores stand beside each other (PyTorch, SoftMax.cu), and the 16-bit probabilities are
// gone.
double score_gradient_bytes(const TrainingRun& run, const Tower& tower, const Layer& layer);

// The same under recomputation of operators: outputs of attention and of every second matrix product, from
// the first on (torchtitan, activation_checkpoint.py). The layer's input is not among them.
void append_operator_tensors(const TrainingRun& run, const Tower& tower, const Layer& layer,
                             std::vector<SavedTensor>& out);

// What the products between a tower and the next keep: their inputs, and the activation's.
void append_connector_tensors(const TrainingRun& run, const Tower& tower, std::vector<SavedTensor>& out);

double layer_input_bytes(const TrainingRun& run, const Tower& tower);

// A layer's input as it is kept where the layer is recomputed; under full recomputation nothing else is.
double checkpoint_bytes(const TrainingRun& run, const Tower& tower);

// Tokens of one microbatch on one rank.
double rank_tokens(const TrainingRun& run, const Tower& tower);

// Returns what an element of a saved tensor takes.
double activation_element_bytes(const TrainingRun& run);

}  // namespace spillway::estimator
