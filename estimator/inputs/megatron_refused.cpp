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
    {"fp8-format", "fp8 keeps 8-bit copies and scales of weights and activations"},
    {"fp4-format", "fp4 keeps packed copies and scales of weights and activations"},
    {"cuda-graph-impl", "captured graphs hold their own memory pools"},
    {"enable-cuda-graph", "captured graphs hold their own memory pools"},
    {"external-cuda-graph", "captured graphs hold their own memory pools"},
    {"mtp-use-repeated-layer", "prediction layers share their weights"},
    {"perform-rl-step", "reinforcement learning holds inference engines and rollouts"},
    {"flextron", "elastic networks hold masks and routers"},
    {"export-te-mcore-model", "ModelOpt training may hold a teacher"},
    {"dataset-provider", "the provider defines the model"},
    {"model-provider", "the provider defines the model"},
    {"optimizer-cpu-offload", "a share of the optimizer lives in host memory"},
    {"fine-grained-activation-offloading", "activations are moved to host memory"},
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
