#include "estimator/inputs/megatron.h"

#include <fmt/format.h>

#include <array>

#include "estimator/inputs/fp8.h"
#include "estimator/inputs/nearest.h"

namespace spillway::estimator {
namespace {

// Tells which training script the arguments are for. Its name is not among them.
std::string program_of(const KeyValues& values, const MegatronRun& given) {
  if (!given.program.empty()) return given.program;
  if (values.has("encoder-seq-length") || values.has("decoder-seq-length")) return "t5";
  if (values.has("img-h")) return "vlm";
  if (values.has("hybrid-layer-pattern") || values.has("hybrid-override-pattern")) return "hybrid";
  return "gpt";
}

void read_recompute(KeyValues& values, Training& training) {
  const std::string granularity =
      values.has("recompute-granularity")
          ? values.choice("recompute-granularity", "selective", {"full", "selective"})
      : values.flag("recompute-activations") ? "selective"
                                             : "none";
  if (granularity == "full") {
    training.recompute = Recompute::kFull;
    training.recompute_layers = values.whole("recompute-num-layers", 1, 1, 10000);
    if (values.choice("recompute-method", "uniform", {"uniform", "block"}) == "block")
      values.complain("recompute-method: 'block' is not modelled; allowed: uniform");
  }
  if (values.flag("moe-layer-recompute")) training.modules.experts = true;
  if (granularity != "selective") return;
  training.recompute = Recompute::kSelective;
  const std::string modules = " " + values.text("recompute-modules", "core_attn") + " ";
  struct Module {
    const char* name;
    bool RecomputeModules::*dropped;
  };
  constexpr std::array<Module, 6> kModules = {{{"core_attn", &RecomputeModules::attention_core},
                                               {"layernorm", &RecomputeModules::layer_norm},
                                               {"mla_up_proj", &RecomputeModules::latent_projection},
                                               {"mlp", &RecomputeModules::mlp},
                                               {"moe_act", &RecomputeModules::expert_activation},
                                               {"moe", &RecomputeModules::experts}}};
  for (const Module& module : kModules) {
    const size_t at = modules.find(module.name);
    if (at == std::string::npos) continue;
    const auto ends = [](char c) { return c == ' ' || c == '[' || c == ']' || c == ','; };
    const size_t after = at + std::string_view(module.name).size();
    if (ends(modules[at - 1]) && ends(modules[after])) training.modules.*module.dropped = true;
  }
}

// Megatron-LM, arguments.py: shards of the distributed optimizer are gathered in 8 bits. Those of mxfp8,
// whose rows and columns are scaled apart, are gathered in the gradients' buffer.
void read_fp8_weights(KeyValues& values, TrainingRun& run) {
  Fp8& fp8 = run.training.fp8;
  constexpr const char* kBuffer = "reuse-grad-buf-for-mxfp8-param-ag";
  fp8.primary = values.flag("fp8-param-gather");
  const bool in_gradients = values.flag(kBuffer);
  if (in_gradients && !fp8.primary)
    values.complain(fmt::format("{}: not allowed without fp8-param-gather; allowed: beside it", kBuffer));
  if (!fp8.primary) return;
  if (!fp8.on()) {
    values.complain("fp8-param-gather: not allowed without fp8-format; allowed: fp8-format hybrid, e4m3");
    return;
  }
  if (values.flag("use-megatron-fsdp") || values.flag("use-custom-fsdp"))
    values.complain(
        "fp8-param-gather: not modelled beside use-megatron-fsdp; allowed: use-distributed-optimizer");
  if (run.parallel.sharding != DataSharding::kOptimizer)
    values.complain("fp8-param-gather: not allowed without use-distributed-optimizer; allowed: beside it");
  if (values.peek("fp8-recipe") == "mxfp8" && !in_gradients)
    values.complain(fmt::format(
        "fp8-param-gather: not modelled beside fp8-recipe 'mxfp8' alone; allowed: with {}", kBuffer));
}

void read_fp8(KeyValues& values, Training& training) {
  if (!values.has("fp8-format")) return;
  values.choice("fp8-format", "hybrid", {"e4m3", "hybrid"});
  training.fp8 =
      fp8_recipe(values.choice("fp8-recipe", "delayed", {"delayed", "tensorwise", "blockwise", "mxfp8"}));
  if (training.fp8.amax_history > 0)
    training.fp8.amax_history = values.whole("fp8-amax-history-len", 1);  // Megatron-LM, arguments.py
}

void read_precision(KeyValues& values, Training& training) {
  const bool fp16 = values.flag("fp16");
  const bool bf16 = values.flag("bf16");
  if (fp16 && bf16) values.complain("bf16: 'true' is not allowed beside fp16; allowed: one of them");
  training.precision = fp16 ? Precision::kFp16 : bf16 ? Precision::kBf16 : Precision::kFp32;
  // Megatron-LM, arguments.py: bf16 turns accumulation in fp32 on.
  training.fp32_gradients =
      values.flag("accumulate-allreduce-grads-in-fp32") || (bf16 && !values.flag("grad-reduce-in-bf16"));
  const std::string optimizer = values.choice("optimizer", "adam", {"adam", "sgd", "muon", "dist_muon"});
  if (optimizer == "sgd") training.optimizer = OptimizerKind::kSgdMomentum;
  const bool muon = optimizer == "muon" || optimizer == "dist_muon";
  if (muon) training.optimizer = OptimizerKind::kMuon;
  if (muon && fp16) values.complain("optimizer: 'muon' is not allowed beside fp16; allowed: bf16");
}

void read_training(KeyValues& values, TrainingRun& run) {
  Training& training = run.training;
  training.micro_batch = values.required("micro-batch-size", 1, 1 << 20);
  const int64_t data = run.parallel.data();
  const int64_t step = training.micro_batch * std::max<int64_t>(1, data);
  const int64_t global = values.whole("global-batch-size", step, 1, int64_t{1} << 32);
  if (data > 0 && global % step != 0) {
    values.complain(
        fmt::format("global-batch-size: '{}' is not allowed; allowed: multiples of micro-batch-size "
                    "{} x data-parallel size {}",
                    global, training.micro_batch, data));
  }
  training.microbatches = std::max<int64_t>(1, global / step);
  training.hidden_dropout = values.number("hidden-dropout", 0.1, 0, 1) > 0;
  training.attention_dropout = values.number("attention-dropout", 0.1, 0, 1) > 0;
  training.attention_mask = !values.flag("no-create-attention-mask-in-dataloader");
  training.cross_entropy =
      values.flag("cross-entropy-loss-fusion") ? CrossEntropy::kFused : CrossEntropy::kVocabularyParallel;
  if (values.flag("defer-embedding-wgrad-compute"))
    training.deferred_embedding_gradients = values.whole("wgrad-deferral-limit", 0, 0, 1 << 20);
  const std::string dispatcher =
      values.choice("moe-token-dispatcher-type", "allgather", {"allgather", "alltoall", "flex"});
  if (dispatcher == "flex")
    values.complain(
        "moe-token-dispatcher-type: 'flex' is not modelled; allowed: "
        "allgather, alltoall");
  training.dispatcher = dispatcher == "allgather" ? TokenDispatcher::kAllGather : TokenDispatcher::kAllToAll;
  training.grouped_gemm = values.flag("moe-grouped-gemm");
  training.overlaps_expert_communication = values.flag("overlap-moe-expert-parallel-comm");
  read_precision(values, training);
  read_fp8(values, training);
  read_fp8_weights(values, run);
  read_recompute(values, training);
}

}  // namespace

Result<TrainingRun> read_megatron(const MegatronRun& given) {
  KeyValues values(given.arguments);
  if (given.gpus < 1 || given.gpus > (int64_t{1} << 20)) {
    return Status::invalid_argument(
        fmt::format("gpus: '{}' is not allowed; allowed: whole numbers from 1 to {}", given.gpus, 1 << 20));
  }
  if (Status status = refuse_unmodelled(values); !status.ok()) return status;
  TrainingRun run;
  run.framework = Framework::kMegatron;
  run.last_rank_only = true;
  if (Status status = read_megatron_model(values, given, program_of(values, given), run); !status.ok())
    return status;
  if (Status status = read_megatron_parallel(values, given, run); !status.ok()) return status;
  read_training(values, run);
  read_megatron_graphs(values, given, run);
  read_megatron_offloading(values, run);
  if (Status status = set_versions(values, given, run); !status.ok()) return status;
  if (Status status = values.status(); !status.ok()) return status;
  run.notes.assumptions = values.assumed();
  for (const std::string& key : values.unread()) {
    if (known_without_effect(key)) continue;
    const std::string note = fmt::format("{}: not known, taken to have no effect on memory{}", key,
                                         did_you_mean(key, values.asked()));
    run.notes.assumptions.push_back(note);
    run.notes.warnings.push_back(note);
  }
  return run;
}

}  // namespace spillway::estimator
