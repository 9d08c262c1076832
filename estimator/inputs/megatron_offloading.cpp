#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "estimator/inputs/megatron.h"
#include "estimator/inputs/patterns.h"

// megatron/core/transformer/transformer_config.py says what may wait in host memory, and beside what.

namespace spillway::estimator {
namespace {

struct Module {
  const char* name;
  MovedPart part;
};
constexpr std::array<Module, 7> kModules = {{{"attn_norm", MovedPart::kAttentionNorm},
                                             {"qkv_linear", MovedPart::kQueryKeyValue},
                                             {"core_attn", MovedPart::kAttentionCore},
                                             {"attn_proj", MovedPart::kAttentionOutput},
                                             {"mlp_norm", MovedPart::kMlpNorm},
                                             {"expert_fc1", MovedPart::kExpertInput},
                                             {"moe_act", MovedPart::kExpertActivation}}};

void read_modules(KeyValues& values, MovedTensors& moved) {
  const std::vector<std::string> names = listed_words(values.text("offload-modules", ""));
  for (const std::string& name : names) {
    const auto module =
        std::find_if(kModules.begin(), kModules.end(), [&](const Module& each) { return name == each.name; });
    if (name == "fused_group_mlp" || name == "gdp_qkv") {
      values.complain(
          fmt::format("offload-modules: '{}' is not modelled; allowed: attn_norm, qkv_linear, "
                      "core_attn, attn_proj, mlp_norm, expert_fc1, moe_act",
                      name));
    } else if (module == kModules.end()) {
      values.complain(
          fmt::format("offload-modules: '{}' is not allowed; allowed: attn_norm, qkv_linear, core_attn, "
                      "attn_proj, mlp_norm, expert_fc1, moe_act",
                      name));
    } else {
      moved.of[static_cast<size_t>(module->part)] = true;
    }
  }
  const auto has = [&](MovedPart part) { return moved.of[static_cast<size_t>(part)]; };
  if (names.empty())
    values.complain("offload-modules: missing; allowed: names beside fine-grained-activation-offloading");
  if (has(MovedPart::kAttentionOutput) && !has(MovedPart::kAttentionCore))
    values.complain(
        "offload-modules: 'attn_proj' is not allowed without core_attn, which keeps the same tensor; "
        "allowed: both");
}

// What moves a part of the tensors only.
void refuse_shares(KeyValues& values) {
  if (values.number("activation-offload-fraction", 1, 0, 1) < 1)
    values.complain("activation-offload-fraction: below 1 is not modelled; allowed: 1");
  if (values.whole("delta-offload-bytes-across-pp-ranks", 0, 0) > 0)
    values.complain("delta-offload-bytes-across-pp-ranks: above 0 is not modelled; allowed: 0");
}

}  // namespace

void read_megatron_offloading(KeyValues& values, TrainingRun& run) {
  if (!values.flag("fine-grained-activation-offloading")) {
    for (const char* key : {"offload-modules", "min-offloaded-tensor-size"}) {
      if (values.has(key))
        values.complain(fmt::format(
            "{}: not allowed without fine-grained-activation-offloading; allowed: beside it", key));
    }
    return;
  }
  MovedTensors& moved = run.training.moved;
  read_modules(values, moved);
  moved.least_elements =
      static_cast<double>(values.whole("min-offloaded-tensor-size", 1 << 20, 0, int64_t{1} << 50));
  refuse_shares(values);
  const auto refuse = [&](bool found, std::string_view what, const char* allowed) {
    if (found)
      values.complain(fmt::format("fine-grained-activation-offloading: not {}; allowed: {}", what, allowed));
  };
  refuse(run.model.type != "gpt" && run.model.type != "hybrid",
         fmt::format("modelled for {}, whose program moves nothing", run.model.type), "gpt, hybrid models");
  const std::string implementation = values.peek("transformer-impl");
  refuse(!implementation.empty() && implementation != "transformer_engine",
         fmt::format("allowed beside transformer-impl '{}'", implementation), "transformer_engine");
  refuse(run.training.captured.on(),
         fmt::format("modelled beside cuda-graph-impl '{}'", values.peek("cuda-graph-impl")), "none");
  refuse(run.training.recompute == Recompute::kFull, "modelled beside recompute-granularity 'full'",
         "selective");
  const auto moves = [&](MovedPart part) { return moved.of[static_cast<size_t>(part)]; };
  const bool is_scaled_late = run.training.fp8.amax_history > 0;
  if (moves(MovedPart::kExpertInput) && run.training.grouped_gemm && is_scaled_late)
    values.complain(
        "offload-modules: 'expert_fc1' is not allowed beside fp8-recipe 'delayed'; "
        "allowed: fp8-recipe tensorwise, blockwise, mxfp8");
  moved.whole_expert_inputs =
      run.training.fp8.on() && values.peek("fp8-recipe") != "mxfp8" && moves(MovedPart::kExpertInput);
  const char* const key =
      values.flag("moe-layer-recompute") ? "moe-layer-recompute" : "recompute-modules 'moe'";
  for (const MovedPart part : {MovedPart::kExpertInput, MovedPart::kExpertActivation}) {
    if (!run.training.modules.experts || !moves(part)) continue;
    values.complain(
        fmt::format("offload-modules: '{}' is not allowed beside {}; allowed: modules outside of experts",
                    part == MovedPart::kExpertInput ? "expert_fc1" : "moe_act", key));
  }
}

}  // namespace spillway::estimator
