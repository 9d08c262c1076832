// What the forward pass saves for the backward pass, for one microbatch, in bytes on one rank.
#pragma once

#include "estimator/run.h"

namespace spillway::estimator {

struct SavedBytes {
  double norms = 0;             // block inputs, norm outputs, masks of hidden dropout
  double attention = 0;         // queries, keys, values, outputs
  double attention_scores = 0;  // softmax, its dropout mask and the dropped copy
  double mlp = 0;
  double experts = 0;
  double mamba = 0;

  double total() const { return norms + attention + attention_scores + mlp + experts + mamba; }
  void add(const SavedBytes& more, double times);
};

// The length of keys and values where they come from another tower; 0 elsewhere.
SavedBytes saved_bytes(const Run& run, const Tower& tower, const Layer& layer, int64_t source_sequence);

// Under full recomputation a layer's input is kept and nothing else.
double layer_input_bytes(const Run& run, const Tower& tower);

// Tokens of one microbatch on one rank.
double rank_tokens(const Run& run, const Tower& tower);

// Of a saved tensor.
double activation_element_bytes(const Run& run);

}  // namespace spillway::estimator
