#include "estimator/diffusion/networks.h"

namespace spillway::estimator {
namespace {

class UNetCall : public DenoiserCall {
 public:
  UNetCall(Modules& modules, const UNet& network, const DenoiserInput& input)
      : modules_(modules),
        op_(modules.op()),
        network_(network),
        input_(input),
        text_(input.text),
        groups_(static_cast<double>(network.groups)),
        time_width_(static_cast<double>(network.time_width)),
        grid_(input.latents) {}

  Tensor forward() override {
    const auto first = static_cast<double>(network_.levels.front().channels);
    modules_.tape().set_purpose(Purpose::kEmbeddings);
    embed_time(first);
    if (network_.text_projection > 0)
      text_ = modules_.linear("encoder_hid_proj", input_.text, static_cast<double>(network_.text_projection),
                              static_cast<double>(network_.levels.front().text_width));
    modules_.tape().set_purpose(Purpose::kConvolutions);
    Tensor sample =
        modules_.convolution(input_.noisy, static_cast<double>(network_.in_channels), first, 3, grid_.all());
    std::vector<Tensor> skipped = {sample};
    std::vector<double> widths = {first};
    double channels = first;
    for (const UNetLevel& level : network_.levels) {
      sample = down(level, channels, &level == &network_.levels.back(), sample, skipped, widths);
      channels = static_cast<double>(level.channels);
    }
    if (network_.has_middle) sample = middle(sample);
    for (size_t i = network_.levels.size(); i-- > 0;) {
      const UNetLevel& level = network_.levels[i];
      const size_t count = static_cast<size_t>(level.blocks) + 1;
      const size_t kept = skipped.size() - count;
      const std::vector<Tensor> mine(skipped.begin() + static_cast<std::ptrdiff_t>(kept), skipped.end());
      skipped.resize(kept);
      sample = up(level, channels, i == 0, sample, mine, widths);
      channels = static_cast<double>(level.channels);
    }
    modules_.tape().set_purpose(Purpose::kConvolutions);
    sample = modules_.group_norm(sample, channels, groups_, grid_.samples);
    sample = modules_.silu(sample);
    return modules_.convolution(sample, channels, static_cast<double>(network_.out_channels), 3, grid_.all());
  }

 private:
  void embed_time(double channels) {
    const double samples = grid_.samples, element = input_.noisy.element;
    Tensor steps = modules_.tape().make(samples * channels, element);
    if (network_.guidance_width > 0) steps = op_.add(steps, guidance(samples, channels, element));
    time_ = modules_.embedding(steps, channels, time_width_);
    if (network_.added_width == 0) return;
    const auto width = static_cast<double>(network_.added_width);
    const Tensor added = modules_.tape().make(samples * width, element);
    time_ = op_.add(time_, modules_.embedding(added, width, time_width_));
  }

  Tensor guidance(double samples, double channels, double element) {
    const auto width = static_cast<double>(network_.guidance_width);
    return modules_.linear("cond_proj", modules_.tape().make(samples * width, element), width, channels,
                           false);
  }

  Tensor residual_block(const Tensor& x, const Tensor& time, double in, double out, const Grid& grid) {
    modules_.tape().set_purpose(Purpose::kConvolutions);
    return modules_.residual_block(x, time, time_width_, in, out, groups_, grid);
  }

  Tensor residual(const Tensor& x, double in, double out) {
    const Tensor time = time_;
    const Grid grid = grid_;
    return modules_.block(x, [this, time, in, out, grid](const Tensor& given) {
      return residual_block(given, time, in, out, grid);
    });
  }

  Tensor down(const UNetLevel& level, double in, bool last, const Tensor& given, std::vector<Tensor>& skipped,
              std::vector<double>& widths) {
    const auto out = static_cast<double>(level.channels);
    Tensor hidden = given;
    for (int64_t i = 0; i < level.blocks; ++i) {
      hidden = residual(hidden, i == 0 ? in : out, out);
      if (level.transformers > 0) hidden = transformer(level, level.transformers, hidden);
      skipped.push_back(hidden);
      widths.push_back(out);
    }
    if (last) return hidden;
    modules_.tape().set_purpose(Purpose::kConvolutions);
    hidden = modules_.downsample(hidden, out, false, grid_);
    larger_.push_back(grid_);
    grid_ = grid_.halved();
    skipped.push_back(hidden);
    widths.push_back(out);
    return hidden;
  }

  Tensor middle(const Tensor& given) {
    const UNetLevel& level = network_.levels.back();
    const auto channels = static_cast<double>(level.channels);
    // Its first block is not checkpointed.
    Tensor hidden = residual_block(given, time_, channels, channels, grid_);
    if (network_.middle_transformers > 0) hidden = transformer(level, network_.middle_transformers, hidden);
    return residual(hidden, channels, channels);
  }

  Tensor up(const UNetLevel& level, double in, bool last, const Tensor& given,
            const std::vector<Tensor>& skipped, std::vector<double>& widths) {
    const auto out = static_cast<double>(level.channels);
    Tensor hidden = given;
    double channels = in;
    for (size_t i = skipped.size(); i-- > 0;) {
      modules_.tape().set_purpose(Purpose::kConvolutions);
      hidden = op_.concatenate(hidden, skipped[i]);
      hidden = residual(hidden, channels + widths.back(), out);
      widths.pop_back();
      channels = out;
      if (level.up_transformers > 0) hidden = transformer(level, level.up_transformers, hidden);
    }
    if (last) return hidden;
    modules_.tape().set_purpose(Purpose::kConvolutions);
    // As large as what was halved, which may have been odd.
    grid_ = larger_.back();
    larger_.pop_back();
    return modules_.upsample(hidden, out, grid_);
  }

  // Transformer2DModel over feature maps.
  Tensor transformer(const UNetLevel& level, int64_t layers, const Tensor& x) {
    const auto channels = static_cast<double>(level.channels);
    modules_.tape().set_purpose(Purpose::kNorms);
    Tensor hidden = modules_.group_norm(x, channels, groups_, grid_.samples);
    // Maps that are seen as rows of places are copied for a product whose weight has a gradient (should_fold
    // in aten/src/ATen/native/LinearAlgebra.cpp).
    if (network_.linear_projection && grid_.samples > 1 && modules_.settings().trained)
      hidden = op_.copy(hidden);
    hidden = network_.linear_projection ? modules_.linear("proj_in", hidden, channels, channels)
                                        : modules_.convolution(hidden, channels, channels, 1, grid_.all());
    const Grid grid = grid_;
    for (int64_t i = 0; i < layers; ++i)
      hidden = modules_.block(hidden, [this, &level, grid](const Tensor& given) {
        return transformer_block(level, given, grid);
      });
    modules_.tape().set_purpose(Purpose::kNorms);
    if (network_.linear_projection) {
      hidden = modules_.linear("proj_out", hidden, channels, channels);
      hidden = op_.copy(hidden);
    } else {
      hidden = op_.copy(hidden);
      hidden = modules_.convolution(hidden, channels, channels, 1, grid_.all());
    }
    return op_.add(hidden, x);
  }

  // BasicTransformerBlock.
  Tensor transformer_block(const UNetLevel& level, const Tensor& given, const Grid& grid) {
    const auto channels = static_cast<double>(level.channels);
    Tensor hidden = given;
    modules_.tape().set_purpose(Purpose::kNorms);
    Tensor normed = modules_.layer_norm(hidden, channels, true);
    Tensor attended = attention(level, normed, normed, channels, grid.of_sample(), grid);
    modules_.tape().set_purpose(Purpose::kNorms);
    hidden = op_.add(attended, hidden);
    normed = modules_.layer_norm(hidden, channels, true);
    attended =
        attention(level, normed, text_, static_cast<double>(level.text_width), input_.text_tokens, grid);
    modules_.tape().set_purpose(Purpose::kNorms);
    hidden = op_.add(attended, hidden);
    normed = modules_.layer_norm(hidden, channels, true);
    modules_.tape().set_purpose(Purpose::kMlp);
    const Tensor fed = gated_feed_forward(normed, channels);
    modules_.tape().set_purpose(Purpose::kNorms);
    return op_.add(fed, hidden);
  }

  // AttnProcessor2_0.
  Tensor attention(const UNetLevel& level, const Tensor& x, const Tensor& source, double source_width,
                   double keys, const Grid& grid) {
    modules_.tape().set_purpose(Purpose::kAttention);
    const auto channels = static_cast<double>(level.channels);
    const Tensor query = modules_.linear("to_q", x, channels, channels, false);
    const Tensor key = modules_.linear("to_k", source, source_width, channels, false);
    const Tensor value = modules_.linear("to_v", source, source_width, channels, false);
    const auto heads = static_cast<double>(level.heads);
    Tensor hidden =
        modules_.attention(query, key, value, grid.samples, heads, channels / heads, grid.of_sample(), keys);
    hidden = op_.cast(hidden, query.element);
    hidden = modules_.linear("to_out.0", hidden, channels, channels);
    // Divided by a factor that is one.
    return op_.scale(hidden);
  }

  // FeedForward with GEGLU.
  Tensor gated_feed_forward(const Tensor& x, double channels) {
    Tensor hidden = gated(x, channels);
    return modules_.linear("ff.net.2", hidden, 4 * channels, channels);
  }

  Tensor gated(const Tensor& x, double channels) {
    const Tensor both = modules_.linear("ff.net.0.proj", x, channels, 8 * channels);
    const std::vector<Tensor> parts = op_.split(both, {both.elements / 2, both.elements / 2});
    return op_.multiply(parts[0], op_.activation(parts[1]));
  }

  Modules& modules_;
  const Operators& op_;
  const UNet& network_;
  const DenoiserInput& input_;
  Tensor text_;
  double groups_, time_width_;
  Grid grid_;
  std::vector<Grid> larger_ = {};  // of the levels above
  Tensor time_ = {};
};

}  // namespace

std::unique_ptr<DenoiserCall> call_unet(Modules& modules, const UNet& network, const DenoiserInput& input) {
  return std::make_unique<UNetCall>(modules, network, input);
}

}  // namespace spillway::estimator
