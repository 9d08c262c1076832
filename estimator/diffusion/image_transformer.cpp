#include <memory>

#include "estimator/diffusion/networks.h"

namespace spillway::estimator {
namespace {

// Channels of the sinusoids that a time is embedded from.
constexpr double kTimeChannels = 256;

struct Streams {
  Tensor image = {};
  Tensor text = {};
};

// What a norm gives whose scale and shift come from the time's embedding: the result, and factors for what
// follows.
struct Modulated {
  Tensor x = {};
  std::vector<Tensor> factors = {};
};

class ImageTransformerCall : public DenoiserCall {
 public:
  ImageTransformerCall(Modules& modules, const ImageTransformer& network, const DenoiserInput& input)
      : modules_(modules),
        op_(modules.op()),
        network_(network),
        input_(input),
        samples_(input.latents.samples),
        width_(static_cast<double>(network.heads * network.head_dim)),
        head_dim_(static_cast<double>(network.head_dim)),
        heads_(static_cast<double>(network.heads)) {
    const auto patch = static_cast<double>(network.patch);
    // Flux's tokens are four latents each, put together before they come in.
    const double side = network.rotary ? 2 : patch;
    image_tokens_ = input.latents.of_sample() / side / side;
  }

  Tensor forward() override {
    modules_.tape().set_purpose(Purpose::kEmbeddings);
    Tensor image = patches();
    embed_time();
    Tensor text =
        modules_.linear("context_embedder", input_.text, static_cast<double>(network_.text_width), width_);
    Tensor cosine, sine;
    if (network_.rotary) {
      const double elements = (image_tokens_ + input_.text_tokens) * head_dim_;
      cosine = modules_.tape().make(elements, 4);
      sine = modules_.tape().make(elements, 4);
    }
    for (int64_t i = 0; i < network_.layers; ++i) {
      // Stable Diffusion 3's last layer has no text to go on with.
      const bool ends = !network_.rotary && i + 1 == network_.layers;
      const bool second = static_cast<size_t>(i) < network_.second_attention.size() &&
                          network_.second_attention[static_cast<size_t>(i)];
      Streams out = checkpointed(image, text, [this, ends, second](const Tensor& x, const Tensor& y) {
        return joint_block(x, y, ends, second);
      });
      image = std::move(out.image);
      text = std::move(out.text);
    }
    for (int64_t i = 0; i < network_.single_layers; ++i) {
      Streams out =
          checkpointed(image, text, [this](const Tensor& x, const Tensor& y) { return single_block(x, y); });
      image = std::move(out.image);
      text = std::move(out.text);
    }
    modules_.tape().set_purpose(Purpose::kNorms);
    image = modulated_out(image);
    const auto patch = static_cast<double>(network_.patch);
    image = modules_.linear("proj_out", image, width_,
                            patch * patch * static_cast<double>(network_.out_channels));
    return network_.rotary ? image : op_.copy(image);
  }

 private:
  Tensor patches() {
    const auto in = static_cast<double>(network_.in_channels);
    if (network_.rotary) return modules_.linear("x_embedder", input_.noisy, in, width_);
    const double tokens = samples_ * image_tokens_;
    Tensor latent =
        modules_.convolution(input_.noisy, in, width_, static_cast<double>(network_.patch), tokens);
    const double element = latent.element;
    const Tensor positions =
        modules_.tape().make(0, modules_.settings().element).view(image_tokens_ * width_);
    latent = op_.add(latent, positions);
    return op_.copy(op_.cast(latent, element));
  }

  void embed_time() {
    const double element = input_.noisy.element;
    const auto pooled = static_cast<double>(network_.pooled_width);
    const Tensor steps = modules_.tape().make(samples_ * kTimeChannels, element);
    time_ = modules_.embedding(steps, kTimeChannels, width_);
    if (network_.guidance) time_ = op_.add(time_, modules_.embedding(steps, kTimeChannels, width_));
    const Tensor text = modules_.tape().make(samples_ * pooled, element);
    time_ = op_.add(time_, modules_.embedding(text, pooled, width_));
  }

  using Pair = std::function<Streams(const Tensor&, const Tensor&)>;

  // The text stream goes in and out beside the image's.
  Streams checkpointed(const Tensor& image, const Tensor& text, const Pair& block) {
    const auto beside = std::make_shared<Tensor>();
    Streams out;
    out.image = modules_.block(image, [block, text, beside](const Tensor& given) {
      Streams done = block(given, text);
      *beside = std::move(done.text);
      return std::move(done.image);
    });
    out.text = std::move(*beside);
    *beside = Tensor();
    return out;
  }

  // AdaLayerNormZero and its kin: `count` vectors of the width for each sample.
  std::vector<Tensor> factors(size_t count) {
    Tensor embedded = modules_.silu(time_);
    embedded = modules_.linear("norm.linear", embedded, width_, static_cast<double>(count) * width_);
    return op_.split(embedded, std::vector<double>(count, samples_ * width_));
  }

  Tensor shifted(const Tensor& normed, const Tensor& scale, const Tensor& shift) {
    Tensor out = op_.multiply(normed, op_.scale(scale));
    return op_.add(out, shift);
  }

  // Factors in the order shift, scale, gate, then those of the feed-forward block, of a second attention.
  Modulated modulated(const Tensor& x, size_t count) {
    Modulated out;
    out.factors = factors(count);
    out.x = shifted(modules_.layer_norm(x, width_, false), out.factors[1], out.factors[0]);
    return out;
  }

  // AdaLayerNormContinuous.
  Tensor modulated_out(const Tensor& x) {
    const std::vector<Tensor> both = factors(2);
    return shifted(modules_.layer_norm(x, width_, false), both[0], both[1]);
  }

  Tensor gated(const Tensor& x, const Tensor& gate) { return op_.multiply(x, gate); }

  // FluxTransformerBlock, JointTransformerBlock.
  Streams joint_block(const Tensor& given, const Tensor& given_text, bool ends, bool second) {
    Tensor image = given, text = given_text;
    modules_.tape().set_purpose(Purpose::kNorms);
    Modulated of_image;
    Tensor again;
    if (second) {
      of_image.factors = factors(9);
      const Tensor normed = modules_.layer_norm(image, width_, false);
      of_image.x = shifted(normed, of_image.factors[1], of_image.factors[0]);
      again = shifted(normed, of_image.factors[7], of_image.factors[6]);
    } else {
      of_image = modulated(image, 6);
    }
    Modulated of_text;
    if (ends) {
      of_text.x = modulated_out(text);
    } else {
      of_text = modulated(text, 6);
    }
    const Streams mixed = joint_attention(of_image.x, of_text.x, ends);
    modules_.tape().set_purpose(Purpose::kNorms);
    Tensor attended = gated(mixed.image, of_image.factors[2]);
    image = op_.add(image, attended);
    if (second) {
      attended = gated(self_attention(again), of_image.factors[8]);
      modules_.tape().set_purpose(Purpose::kNorms);
      image = op_.add(image, attended);
    }
    Tensor fed;
    image = fed_forward(image, of_image, "ff.net.0.proj", "ff.net.2", fed);
    if (ends) return {image, {}};
    Tensor text_attended = gated(mixed.text, of_text.factors[2]);
    text = op_.add(text, text_attended);
    Tensor text_fed;
    text = fed_forward(text, of_text, "ff_context.net.0.proj", "ff_context.net.2", text_fed);
    return {image, text};
  }

  // `fed` keeps what was added, which a variable of the block holds until it ends.
  Tensor fed_forward(const Tensor& x, const Modulated& by, const char* up, const char* down, Tensor& fed) {
    Tensor normed = modules_.layer_norm(x, width_, false);
    normed = shifted(normed, by.factors[4], by.factors[3]);
    modules_.tape().set_purpose(Purpose::kMlp);
    fed = modules_.feed_forward(up, down, normed, width_);
    modules_.tape().set_purpose(Purpose::kNorms);
    fed = gated(fed, by.factors[5]);
    return op_.add(x, fed);
  }

  Tensor head_norm(const Tensor& x) {
    if (network_.rotary) return modules_.rms_norm(x, head_dim_);
    return network_.head_norms ? modules_.plain_rms_norm(x, head_dim_) : x;
  }

  // embeddings.py, apply_rotary_emb.
  Tensor rotated(const Tensor& x) {
    const double element = x.element;
    Tensor turned;
    {
      const Tensor front = op_.slice(x, x.elements / 2), back = op_.slice(x, x.elements / 2);
      turned = op_.concatenate(op_.scale(front), back);
    }
    const Tensor first = op_.scale(op_.cast(x, 4));
    const Tensor other = op_.scale(op_.cast(turned, 4));
    return op_.cast(op_.add(first, other), element);
  }

  Tensor projected(const char* name, const Tensor& x) { return modules_.linear(name, x, width_, width_); }

  Tensor dot_product(const Tensor& query, const Tensor& key, const Tensor& value, double tokens) {
    return modules_.attention(query, key, value, samples_, heads_, head_dim_, tokens, tokens);
  }

  // JointAttnProcessor2_0, FluxAttnProcessor.
  Streams joint_attention(const Tensor& image, const Tensor& text, bool ends) {
    modules_.tape().set_purpose(Purpose::kAttention);
    Tensor query = projected("to_q", image), key = projected("to_k", image), value = projected("to_v", image);
    query = head_norm(query);
    key = head_norm(key);
    Tensor text_query = projected("add_q_proj", text), text_key = projected("add_k_proj", text),
           text_value = projected("add_v_proj", text);
    text_query = head_norm(text_query);
    text_key = head_norm(text_key);
    query = op_.concatenate(query, text_query);
    key = op_.concatenate(key, text_key);
    value = op_.concatenate(value, text_value);
    if (network_.rotary) {
      query = rotated(query);
      key = rotated(key);
    }
    Tensor mixed = dot_product(query, key, value, image_tokens_ + input_.text_tokens);
    mixed = op_.cast(mixed, query.element);
    const double text_elements = samples_ * input_.text_tokens * width_;
    const std::vector<Tensor> parts = op_.split(mixed, {samples_ * image_tokens_ * width_, text_elements});
    const auto one = [&](const Tensor& part) { return samples_ > 1 ? op_.copy(part) : part; };
    Streams out;
    out.image = modules_.linear("to_out.0", one(parts[0]), width_, width_);
    if (!ends) out.text = modules_.linear("to_add_out", one(parts[1]), width_, width_);
    return out;
  }

  Tensor self_attention(const Tensor& x) {
    modules_.tape().set_purpose(Purpose::kAttention);
    const Tensor query = head_norm(projected("to_q", x)), key = head_norm(projected("to_k", x)),
                 value = projected("to_v", x);
    const Tensor mixed = dot_product(query, key, value, image_tokens_);
    return modules_.linear("to_out.0", op_.cast(mixed, query.element), width_, width_);
  }

  // FluxSingleTransformerBlock.
  Streams single_block(const Tensor& image, const Tensor& text) {
    modules_.tape().set_purpose(Purpose::kNorms);
    Tensor hidden = op_.concatenate(text, image);
    const Tensor residual = hidden;
    Modulated normed;
    normed.factors = factors(3);
    normed.x = shifted(modules_.layer_norm(hidden, width_, false), normed.factors[1], normed.factors[0]);
    modules_.tape().set_purpose(Purpose::kMlp);
    Tensor fed = modules_.linear("proj_mlp", normed.x, width_, 4 * width_);
    fed = op_.activation(fed);
    modules_.tape().set_purpose(Purpose::kAttention);
    const Tensor attended = single_attention(normed.x);
    modules_.tape().set_purpose(Purpose::kMlp);
    hidden = op_.concatenate(attended, fed);
    hidden = modules_.linear("proj_out", hidden, 5 * width_, width_);
    hidden = gated(hidden, normed.factors[2]);
    hidden = op_.add(residual, hidden);
    return {op_.slice(hidden, image.elements), op_.slice(hidden, text.elements)};
  }

  Tensor single_attention(const Tensor& x) {
    Tensor query = projected("to_q", x), key = projected("to_k", x), value = projected("to_v", x);
    query = head_norm(query);
    key = head_norm(key);
    query = rotated(query);
    key = rotated(key);
    const Tensor mixed = dot_product(query, key, value, image_tokens_ + input_.text_tokens);
    return op_.cast(mixed, query.element);
  }

  Modules& modules_;
  const Operators& op_;
  const ImageTransformer& network_;
  const DenoiserInput& input_;
  double samples_, width_, head_dim_, heads_;
  double image_tokens_ = 0;
  Tensor time_ = {};
};

}  // namespace

std::unique_ptr<DenoiserCall> call_image_transformer(Modules& modules, const ImageTransformer& network,
                                                     const DenoiserInput& input) {
  return std::make_unique<ImageTransformerCall>(modules, network, input);
}

}  // namespace spillway::estimator
