#include "estimator/diffusion/networks.h"

namespace spillway::estimator {
namespace {

class CoderPlayer {
 public:
  CoderPlayer(Modules& modules, const ImageCoder& coder)
      : modules_(modules), op_(modules.op()), coder_(coder), groups_(static_cast<double>(coder.groups)) {}

  // vae.py, Encoder.
  Tensor encode(const Tensor& pixels, Grid grid) {
    auto channels = static_cast<double>(coder_.channels.front());
    Tensor sample =
        modules_.convolution(pixels, static_cast<double>(coder_.in_channels), channels, 3, grid.all());
    for (const int64_t& width : coder_.channels) {
      const auto out = static_cast<double>(width);
      const bool last = &width == &coder_.channels.back();
      sample = down(sample, channels, out, last, grid);
      if (!last) grid = grid.halved();
      channels = out;
    }
    sample = middle(sample, channels, grid);
    sample = modules_.group_norm(sample, channels, groups_, grid.samples);
    sample = modules_.silu(sample);
    const double latents = 2 * static_cast<double>(coder_.latent_channels);
    sample = modules_.convolution(sample, channels, latents, 3, grid.all());
    return coder_.projects_in ? modules_.convolution(sample, latents, latents, 1, grid.all()) : sample;
  }

  // vae.py, Decoder.
  Tensor decode(const Tensor& given, Grid grid) {
    const auto latents = static_cast<double>(coder_.latent_channels);
    Tensor sample =
        coder_.projects_out ? modules_.convolution(given, latents, latents, 1, grid.all()) : given;
    auto channels = static_cast<double>(coder_.channels.back());
    sample = modules_.convolution(sample, latents, channels, 3, grid.all());
    sample = middle(sample, channels, grid);
    for (size_t i = coder_.channels.size(); i-- > 0;) {
      const auto out = static_cast<double>(coder_.channels[i]);
      sample = up(sample, channels, out, i == 0, grid);
      if (i > 0) grid = grid.doubled();
      channels = out;
    }
    sample = modules_.group_norm(sample, channels, groups_, grid.samples);
    sample = modules_.silu(sample);
    return modules_.convolution(sample, channels, static_cast<double>(coder_.in_channels), 3, grid.all());
  }

 private:
  Tensor down(const Tensor& given, double in, double out, bool last, const Grid& grid) {
    Tensor hidden = given;
    for (int64_t i = 0; i < coder_.blocks; ++i) hidden = residual(hidden, i == 0 ? in : out, out, grid);
    return last ? hidden : modules_.downsample(hidden, out, true, grid);
  }

  Tensor up(const Tensor& given, double in, double out, bool last, const Grid& grid) {
    Tensor hidden = given;
    for (int64_t i = 0; i <= coder_.blocks; ++i) hidden = residual(hidden, i == 0 ? in : out, out, grid);
    return last ? hidden : modules_.upsample(hidden, out, grid.doubled());
  }

  Tensor residual(const Tensor& x, double in, double out, const Grid& grid) {
    return modules_.residual_block(x, {}, 0, in, out, groups_, grid);
  }

  Tensor middle(const Tensor& given, double channels, const Grid& grid) {
    Tensor hidden = residual(given, channels, channels, grid);
    if (coder_.middle_attention) hidden = attention(hidden, channels, grid);
    return residual(hidden, channels, channels, grid);
  }

  // Attention of one head over all places, with a norm and a residual connection of its own.
  Tensor attention(const Tensor& x, double channels, const Grid& grid) {
    const Tensor hidden = modules_.group_norm(x, channels, groups_, grid.samples);
    const Tensor query = modules_.linear("to_q", hidden, channels, channels);
    const Tensor key = modules_.linear("to_k", hidden, channels, channels);
    const Tensor value = modules_.linear("to_v", hidden, channels, channels);
    Tensor out =
        modules_.attention(query, key, value, grid.samples, 1, channels, grid.of_sample(), grid.of_sample());
    out = modules_.linear("to_out.0", out, channels, channels);
    out = op_.copy(out);
    out = op_.add(out, x);
    return op_.scale(out);
  }

  Modules& modules_;
  const Operators& op_;
  const ImageCoder& coder_;
  double groups_;
};

}  // namespace

Tensor encode_images(Modules& modules, const ImageCoder& coder, const Tensor& pixels, const Grid& grid) {
  modules.tape().set_purpose(Purpose::kImageCoder);
  return CoderPlayer(modules, coder).encode(pixels, grid);
}

Tensor decode_images(Modules& modules, const ImageCoder& coder, const Tensor& latents, const Grid& grid) {
  modules.tape().set_purpose(Purpose::kImageCoder);
  return CoderPlayer(modules, coder).decode(latents, grid);
}

}  // namespace spillway::estimator
