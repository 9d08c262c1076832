// Model states: weights, gradients, fp32 copies and what the optimizer keeps, on one rank.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/run.h"
#include "estimator/stages.h"

namespace spillway::estimator {

// Equal weights as a rank holds them, in the order they are made.
struct RankWeight {
  int64_t elements = 0;
  bool expert = false;
  int64_t count = 1;
  int64_t buffer = 0;    // a distributed optimizer shards each buffer by itself
  bool product = false;  // multiplied with activations by the layer's own kernels
  bool frozen = false;   // without a gradient
};
std::vector<RankWeight> rank_weights(const TrainingRun& run, const Stage& stage);

// Matrices of the whole model's layers that are trained, as nn.Linear has them: what an optimizer sees.
std::vector<MatrixShape> trained_matrices(const TrainingRun& run);

// Elements on one rank, by the group of ranks that holds the same ones.
struct RankParameters {
  int64_t dense = 0;
  int64_t expert = 0;
  int64_t products = 0;         // of both, in matrices of layers
  int64_t expert_products = 0;  // of experts
  int64_t product_tensors = 0;  // such matrices
  int64_t frozen = 0;           // of `dense`
  int64_t frozen_products = 0;  // of both
};
RankParameters rank_parameters(const std::vector<RankWeight>& weights);

// Ranks that the optimizer's shard of dense and of expert weights is one of.
double dense_optimizer_ranks(const Parallel& parallel);
double expert_optimizer_ranks(const Parallel& parallel);

// Bytes for each element before any sharding over data-parallel ranks.
struct ElementBytes {
  double weight = 0;
  double gradient = 0;
  double master = 0;
  double moments = 0;          // created by the first optimizer step
  double master_gradient = 0;  // fp32 copies that live from one step to the next forward pass
};
ElementBytes element_bytes(const Training& training, Framework framework);

struct StateBytes {
  double weights = 0;
  double gradients = 0;
  double master = 0;
  double moments = 0;
  double master_gradients = 0;
  double fp8_copies = 0;
};
StateBytes state_bytes(const TrainingRun& run, const RankParameters& parameters);

// Weights of one sharding unit, gathered for use in the dtype of activations: the embedding with the head,
// and a layer.
double gathered_root_bytes(const TrainingRun& run);
double gathered_layer_bytes(const TrainingRun& run);

}  // namespace spillway::estimator
