// The networks of a pipeline, run once on a tape. Tensors that come in are the caller's and live as long as
// it keeps them; a variable lives as long as the Python variable it follows.
#pragma once

#include <memory>

#include "estimator/diffusion/modules.h"
#include "estimator/diffusion/pipeline.h"

namespace spillway::estimator {

// What one call of a denoiser reads.
struct DenoiserInput {
  Grid latents = {};
  Tensor noisy = {};       // latents with noise, at each place of `latents`
  Tensor text = {};        // what the text encoders made
  double text_tokens = 0;  // of each sample
};

// One call. It lives, and what it was given, until the backward pass is over: checkpointed blocks run again.
class DenoiserCall {
 public:
  virtual ~DenoiserCall() = default;
  virtual Tensor forward() = 0;
};

std::unique_ptr<DenoiserCall> call_unet(Modules& modules, const UNet& network, const DenoiserInput& input);
std::unique_ptr<DenoiserCall> call_image_transformer(Modules& modules, const ImageTransformer& network,
                                                     const DenoiserInput& input);
std::unique_ptr<DenoiserCall> call_denoiser(Modules& modules, const Pipeline& pipeline,
                                            const DenoiserInput& input);

// Pixels to the mean and deviation of latents, and latents to pixels.
Tensor encode_images(Modules& modules, const ImageCoder& coder, const Tensor& pixels, const Grid& grid);
Tensor decode_images(Modules& modules, const ImageCoder& coder, const Tensor& latents, const Grid& grid);

}  // namespace spillway::estimator
