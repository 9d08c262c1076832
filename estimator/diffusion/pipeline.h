// Says what a pipeline of diffusers is made of: the network that takes noise away, the autoencoder between
// pixels and latents, and the encoders of text. Sizes are in channels, layers and elements. Plain data, as
// model.h, and sums over it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "estimator/model.h"
#include "estimator/model_code.h"

namespace spillway::estimator {

// Blocks of one resolution (unets/unet_2d_blocks.py).
struct UNetLevel {
  int64_t channels = 0;
  int64_t blocks = 0;           // on the way down; there is one more on the way up
  int64_t transformers = 0;     // layers after each block on the way down; 0: no attention
  int64_t up_transformers = 0;  // the same on the way up
  int64_t heads = 1;
  int64_t text_width = 0;
};

// UNet2DConditionModel.
struct UNet {
  int64_t in_channels = 4;
  int64_t out_channels = 4;
  std::vector<UNetLevel> levels = {};
  bool has_middle = true;
  int64_t middle_transformers = 1;
  bool linear_projection = false;  // around transformers; else a convolution
  int64_t groups = 32;             // of norms
  int64_t time_width = 0;
  int64_t added_width = 0;      // of what is embedded beside the time (SDXL); 0: nothing
  int64_t text_projection = 0;  // the width that text comes with, where it is projected; 0: it is not
  int64_t guidance_width = 0;   // of an embedded guidance scale (distilled models); 0: there is none
};

// A transformer over tokens of image and text, which have weights of their own
// (transformers/transformer_flux.py, transformer_sd3.py).
struct ImageTransformer {
  bool rotary = false;  // Flux: rotary positions, then layers of one stream, and fused norms of heads
  int64_t layers = 0;
  int64_t single_layers = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t in_channels = 0;   // of a token where rotary, else of a latent
  int64_t out_channels = 0;  // the same
  int64_t patch = 1;         // latents on each side of a token
  int64_t text_width = 0;
  int64_t pooled_width = 0;
  bool guidance = false;                    // an embedded guidance scale
  bool head_norms = false;                  // of queries and keys
  std::vector<bool> second_attention = {};  // by layers: image tokens attend to themselves once more (SD 3.5)
  int64_t position_side = 0;  // tokens on each side of a table of positions that is no parameter; 0: none
};

// AutoencoderKL.
struct ImageCoder {
  int64_t in_channels = 3;
  int64_t latent_channels = 4;
  std::vector<int64_t> channels = {};  // by level
  int64_t blocks = 2;                  // of a level on the way in; there is one more on the way out
  int64_t groups = 32;
  bool middle_attention = true;
  bool projects_in = true;  // quant_conv
  bool projects_out = true;
  bool decodes_in_fp32 = false;  // fp16 is not enough for it (force_upcast, SDXL)
  bool trains_in_fp32 = false;   // the scripts that train beside it keep it so

  // Pixels on each side of a latent.
  int64_t factor() const { return int64_t{1} << (channels.size() - 1); }
};

struct TextEncoder {
  Model model = {};
  ModelCode code = {};
  int64_t tokens = 77;
  int64_t fp32_elements = 0;  // that stay in 32 bits where the others have fp16 (T5's)
};

struct Pipeline {
  std::string name = {};  // "StableDiffusionXLPipeline"
  std::variant<UNet, ImageTransformer> denoiser = {};
  std::optional<ImageCoder> coder = {};
  std::vector<TextEncoder> encoders = {};
  int64_t text_tokens = 77;  // that the denoiser reads
  int64_t pixels = 512;      // of a side, as the model was trained
  bool guided = true;        // images are made with and without their text at once
};

// The width of the text that a denoiser reads, and the channels of latents as they come in.
double text_width(const Pipeline& pipeline);
double latent_channels(const Pipeline& pipeline);

// Elements of each part, exactly: its code is run once on a tape.
int64_t denoiser_parameters(const Pipeline& pipeline);
int64_t coder_parameters(const ImageCoder& coder);
int64_t encoder_parameters(const Pipeline& pipeline);
int64_t pipeline_parameters(const Pipeline& pipeline);

}  // namespace spillway::estimator
