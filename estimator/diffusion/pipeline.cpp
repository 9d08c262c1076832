#include "estimator/diffusion/pipeline.h"

#include "estimator/diffusion/networks.h"

namespace spillway::estimator {

std::unique_ptr<DenoiserCall> call_denoiser(Modules& modules, const Pipeline& pipeline,
                                            const DenoiserInput& input) {
  if (const auto* unet = std::get_if<UNet>(&pipeline.denoiser)) return call_unet(modules, *unet, input);
  return call_image_transformer(modules, std::get<ImageTransformer>(pipeline.denoiser), input);
}

double text_width(const Pipeline& pipeline) {
  if (const auto* unet = std::get_if<UNet>(&pipeline.denoiser))
    return static_cast<double>(unet->text_projection > 0 ? unet->text_projection
                                                         : unet->levels.front().text_width);
  return static_cast<double>(std::get<ImageTransformer>(pipeline.denoiser).text_width);
}

// Flux's tokens are four latents each.
double latent_channels(const Pipeline& pipeline) {
  if (const auto* unet = std::get_if<UNet>(&pipeline.denoiser)) return static_cast<double>(unet->in_channels);
  const auto& transformer = std::get<ImageTransformer>(pipeline.denoiser);
  return static_cast<double>(transformer.in_channels) / (transformer.rotary ? 4 : 1);
}

int64_t denoiser_parameters(const Pipeline& pipeline) {
  Tape tape;
  Modules modules(tape, {});
  DenoiserInput input;
  input.latents = {1, 64, 64};
  input.noisy = tape.make(input.latents.all() * latent_channels(pipeline), 2);
  input.text = tape.make(text_width(pipeline), 2);
  input.text_tokens = 1;
  call_denoiser(modules, pipeline, input)->forward();
  return modules.parameters();
}

int64_t coder_parameters(const ImageCoder& coder) {
  Tape tape;
  Modules modules(tape, {});
  const Grid grid = {1, 64, 64};
  const Tensor pixels = tape.make(grid.all() * static_cast<double>(coder.in_channels), 2);
  const Tensor latents = tape.make(grid.all() * static_cast<double>(coder.latent_channels), 2);
  encode_images(modules, coder, pixels, grid);
  decode_images(modules, coder, latents, grid);
  return modules.parameters();
}

int64_t encoder_parameters(const Pipeline& pipeline) {
  int64_t out = 0;
  for (const TextEncoder& encoder : pipeline.encoders) out += total_parameters(encoder.model);
  return out;
}

int64_t pipeline_parameters(const Pipeline& pipeline) {
  return denoiser_parameters(pipeline) + (pipeline.coder ? coder_parameters(*pipeline.coder) : 0) +
         encoder_parameters(pipeline);
}

}  // namespace spillway::estimator
