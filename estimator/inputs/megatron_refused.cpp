#include <fmt/format.h>

#include "estimator/inputs/megatron.h"

namespace spillway::estimator {
namespace {

struct Refusal {
  const char* key;
  const char* reason;
};

// Arguments that change what is held in a way that is not modelled.
constexpr Refusal kRefusals[] = {
    {"fp8-dot-product-attention", "attention keeps its tensors in fp8"},
    {"fp4-format", "fp4 keeps packed copies and scales of weights and activations"},
    {"perform-rl-step", "reinforcement learning holds inference engines and rollouts"},
    {"flextron", "elastic networks hold masks and routers"},
    {"export-te-mcore-model", "ModelOpt training may hold a teacher"},
    {"dataset-provider", "the provider defines the model"},
    {"model-provider", "the provider defines the model"},
    {"optimizer-cpu-offload", "a share of the optimizer lives in host memory"},
    {"cpu-offloading-num-layers", "activations are moved to host memory"},
    {"use-torch-fsdp2", "PyTorch's FSDP units are not read from Megatron arguments"},
    {"use-precision-aware-optimizer", "states are kept in several precisions"},
    {"tp-comm-overlap", "user buffers are allocated for communication"},
    {"moe-expert-capacity-factor", "tokens are dropped and padded"},
    {"moe-use-upcycling", "a dense model is held beside the experts"},
    {"experimental-attention-variant", "the attention is not of a known kind"},
    {"heterogeneous-layers-config-path", "layers differ by a file that is not read"},
    {"hybrid-context-parallel", "sequences are divided by length"},
    {"retro-add-retriever", "retrieval adds an encoder"},
    {"fp32-residual-connection", "the residual stream is kept in fp32"},
    {"freeze-all-layers", "frozen weights have no gradients"},
    {"qk-l2-norm", "queries and keys are kept before and after it"},
    {"moe-latent-size", "experts work on a narrower state"},
    {"moe-paged-stash", "expert activations live in a buffer of their own"},
    {"moe-pad-expert-input-to-capacity", "tokens are dropped and padded"},
    {"linear-attention-freq", "some layers have linear attention"},
    {"enable-mhc-connections", "several residual streams are kept"},
    {"mlp-chunks-for-training", "feed-forwards run in chunks"},
    {"hybrid-attention-ratio", "the order of layers follows from ratios"},
    {"num-layers-in-first-pipeline-stage", "it is an older name of decoder-first-pipeline-num-layers"},
    {"num-layers-in-last-pipeline-stage", "it is an older name of decoder-last-pipeline-num-layers"},
    {"heterogeneous-layers-config-encoded-json", "layers differ by a text that is not read"},
};

}  // namespace

Status refuse_unmodelled(const KeyValues& values) {
  for (const Refusal& refusal : kRefusals) {
    if (values.has(refusal.key))
      return Status::unsupported(fmt::format("{} is not modelled: {}", refusal.key, refusal.reason));
  }
  return {};
}

}  // namespace spillway::estimator
