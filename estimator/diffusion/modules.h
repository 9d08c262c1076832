// Layers of diffusers' networks, on a tape: convolutions, norms over groups of channels, residual blocks and
// transformers over the places of an image. Each function follows the Python class of its name, line by line,
// in diffusers 0.42. A convolution's workspace is the library's choice and not counted.
#pragma once

#include <cstdint>

#include "estimator/run.h"
#include "estimator/tape/operators.h"

namespace spillway::estimator {

// Places of a batch of feature maps.
struct Grid {
  double samples = 1;
  double height = 0;
  double width = 0;

  double of_sample() const { return height * width; }
  double all() const { return samples * of_sample(); }
  // Convolutions of stride 2 round up.
  Grid halved() const;
  Grid doubled() const { return {samples, 2 * height, 2 * width}; }
};

// How a network's weights are held and used.
struct ModuleSettings {
  double element = 2;                // bytes of a weight
  bool trained = false;              // whole
  bool recompute = false;            // blocks are checkpointed
  bool autocast = false;             // products run in 16 bits whatever comes in
  const Adapter* adapter = nullptr;  // beside frozen weights; null: none
};

class Modules {
 public:
  Modules(Tape& tape, const ModuleSettings& settings);

  Tape& tape() const { return op_.tape(); }
  const Operators& op() const { return op_; }
  const ModuleSettings& settings() const { return settings_; }
  // Elements of the weights that were used so far, each as often as it was used.
  int64_t parameters() const { return static_cast<int64_t>(parameters_); }

  Tensor weight(double elements);
  // `name`: as an adapter's targets have it.
  Tensor linear(const char* name, const Tensor& x, double in, double out, bool bias = true);
  // Over `out_places` places of the result.
  Tensor convolution(const Tensor& x, double in, double out, double kernel, double out_places);
  Tensor group_norm(const Tensor& x, double channels, double groups, double samples);
  // `affine`: with weights of its own.
  Tensor layer_norm(const Tensor& x, double width, bool affine);
  // A fused norm over the last dimension (nn.RMSNorm).
  Tensor rms_norm(const Tensor& x, double width);
  // diffusers' own, operator by operator.
  Tensor plain_rms_norm(const Tensor& x, double width);
  Tensor silu(const Tensor& x) { return op_.activation(x); }
  // Two products with an activation between.
  Tensor embedding(const Tensor& x, double in, double width);

  // ResnetBlock2D. `time`: an embedding of `time_width` elements for each sample; none where it has no data.
  Tensor residual_block(const Tensor& x, const Tensor& time, double time_width, double in, double out,
                        double groups, const Grid& grid);
  Tensor downsample(const Tensor& x, double channels, bool pads, const Grid& grid);
  // To the places of `larger`.
  Tensor upsample(const Tensor& x, double channels, const Grid& larger);
  // scaled_dot_product_attention: the kernel that PyTorch chooses where there is no mask.
  Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value, double samples, double heads,
                   double head_dim, double queries, double keys);
  // FeedForward with GELU.
  Tensor feed_forward(const char* up, const char* down, const Tensor& x, double width);

  // Runs a block so that its backward pass runs it again, where blocks are checkpointed.
  Tensor block(const Tensor& x, const Body& body);

 private:
  Operators op_;
  ModuleSettings settings_;
  double parameters_ = 0;
};

}  // namespace spillway::estimator
