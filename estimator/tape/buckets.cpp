#include "estimator/tape/buckets.h"

#include <array>

namespace spillway::estimator {
namespace {

struct PurposeName {
  const char* name;
  const char* formula;
};
// In the order of Purpose.
constexpr std::array<PurposeName, kPurposes> kPurposeNames = {{
    {"embeddings", "tokens, tables of positions, what is kept before the first layer"},
    {"norms and residuals", "what each operator keeps, see estimator/tape"},
    {"attention", "what each operator keeps, see estimator/tape"},
    {"attention scores", "e a s^2 b and copies, for each layer"},
    {"feed-forward", "what each operator keeps, see estimator/tape"},
    {"experts", "what each operator keeps, see estimator/tape"},
    {"adapters", "inputs and narrow products of adapters"},
    {"logits and loss", "logits, their fp32 copy, its log-softmax and gradients"},
    {"recomputed layers' inputs", "e h T for each layer"},
    {"recomputed segment", "what one layer's second run brings back"},
    {"16-bit copies of weights", "2 for each element of a matrix"},
    {"cache of keys and values", "e (2 k d) T for each layer, until the forward pass is over"},
    {"gradients", "bytes of the gradient dtype for each element that has one by then"},
    {"gradients under way", "of activations, and what operators need while they run"},
    {"convolutions", "what each operator keeps, see estimator/diffusion"},
    {"images and latents", "what the autoencoder makes while it runs"},
}};

}  // namespace

Buckets played_buckets(const PlayedStep& step, const char* source) {
  Buckets out;
  for (size_t i = 0; i < kPurposes; ++i) {
    if (step.at_peak[i] > 0)
      out.push_back({kPurposeNames[i].name, step.at_peak[i], kPurposeNames[i].formula, source});
  }
  return out;
}

}  // namespace spillway::estimator
