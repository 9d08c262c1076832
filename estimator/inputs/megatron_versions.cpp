// Tells what the machine, the environment and the date of a run say about the software under it. Dates are
// those of Megatron-LM's public history: its containers (docker/), and the commits named beside each rule.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "estimator/inputs/megatron.h"
#include "estimator/measured.h"
#include "estimator/reserved.h"

namespace spillway::estimator {
namespace {

constexpr const char* kToday = "9999";

// The long-term-support container was PyTorch 24.01 until it was replaced on this day.
constexpr const char* kNewSupportContainer = "2025-11-06";

// Before that day an A100 run may be of either container, and its arguments do not say which. Recordings were
// made in bulk, by container; a date that is not here leaves it open.
struct Recording {
  const char* date;
  bool old_container;
};
constexpr std::array<Recording, 6> kRecordings = {{{"2025-01-23", false},
                                                   {"2025-02-03", true},
                                                   {"2025-04-04", false},
                                                   {"2025-04-07", true},
                                                   {"2025-07-05", false},
                                                   {"2025-10-12", true}}};

enum class Container { kCurrent, kOld, kUnknown };

Container container_of(const std::string& date, Gpu gpu) {
  if (gpu != Gpu::kA100 || date >= kNewSupportContainer) return Container::kCurrent;
  for (const Recording& recording : kRecordings) {
    if (date == recording.date) return recording.old_container ? Container::kOld : Container::kCurrent;
  }
  return Container::kUnknown;
}

Result<Gpu> gpu_of(const std::string& name) {
  if (name == "a100") return Gpu::kA100;
  if (name == "h100" || name == "h200") return Gpu::kH100;
  if (name == "gb200" || name == "b200") return Gpu::kGb200;
  if (name.empty()) return Gpu::kOther;
  return Status::invalid_argument(
      fmt::format("gpu: '{}' is not allowed; allowed: a100, h100, h200, b200, gb200", name));
}

std::string environment(const MegatronRun& given, const char* name) {
  const auto found = given.environment.find(name);
  return found == given.environment.end() ? std::string() : found->second;
}

// PyTorch, CUDABlas.cpp: 32 MiB on sm90, 8,519,680 B elsewhere, or as the environment says; on Blackwell 32
// MiB since the 26.04 container.
double cublas_workspace(const MegatronRun& given, Gpu gpu, const std::string& date) {
  constexpr double kLarge = 32 * kMiB;
  if (environment(given, "CUBLAS_WORKSPACE_CONFIG") == ":4096:8") return kLarge;
  if (gpu == Gpu::kH100 || (gpu == Gpu::kGb200 && date >= "2026-05")) return kLarge;
  return 8519680;
}

void set_reserve(const MegatronRun& given, const std::string& date, bool engine, Container container,
                 TrainingRun& run) {
  Reserve& reserve = run.reserve;
  reserve.cublas_workspace_bytes = cublas_workspace(given, run.gpu, date);
  reserve.cublas_workspaces = run.training.overlaps_expert_communication ? 4 : 2;
  // PyTorch's own products, of eager attention, are captured on a stream of their own after they were tried
  // on another one.
  if (run.training.captured.attention && run.training.attention == AttentionKernel::kMaterialised)
    reserve.cublas_workspaces += 4;
  // Transformer Engine, gemm.py: 32 MiB from sm90 on, 4 MiB before; one for each of four streams in grouped
  // products, which the old container's version did not have.
  reserve.engine_workspace_bytes = engine ? (run.gpu == Gpu::kA100 ? 4 : 32) * kMiB : 0;
  const bool grouped = run.training.grouped_gemm && container != Container::kOld;
  reserve.engine_workspaces = grouped ? 5 : 1;
}

Status set_attention(KeyValues& values, const MegatronRun& given, bool engine, Container container,
                     TrainingRun& run) {
  const std::string backend =
      values.choice("attention-backend", "auto", {"auto", "flash", "fused", "unfused", "local"});
  AttentionKernel& kernel = run.training.attention;
  if (!engine || backend == "local") {
    kernel = AttentionKernel::kLocal;
    if (values.flag("no-masked-softmax-fusion")) run.training.score_copy_bytes = 2;
    return {};
  }
  kernel = backend == "unfused" ? AttentionKernel::kMaterialised : AttentionKernel::kFlash;
  const Block& first = run.model.towers.back().layers.front().front();
  const auto* attention = std::get_if<Attention>(&first);
  // Fused kernels take heads of a multiple of 8 (flash-attention's own check), the fused softmax lengths
  // of 4.
  const bool odd_head = attention != nullptr && attention->head_dim % 8 != 0;
  if (odd_head) kernel = AttentionKernel::kMaterialised;
  if (odd_head && run.model.towers.back().sequence % 4 != 0) run.training.score_copy_bytes = 4;
  if (backend != "auto" || odd_head) return {};
  // Flash-attention of the old container had no deterministic backward pass.
  const bool deterministic = environment(given, "NVTE_ALLOW_NONDETERMINISTIC_ALGO") == "0";
  // Only flash kernels exchange keys and values between ranks.
  if (run.parallel.context > 1 || !deterministic || container == Container::kCurrent) return {};
  if (container == Container::kUnknown) {
    return Status::unsupported(fmt::format(
        "attention-backend: auto is not resolved for a deterministic A100 run of {}, which may be "
        "of either container; allowed: flash, fused, unfused",
        given.date));
  }
  kernel = AttentionKernel::kMaterialised;
  return {};
}

void set_behaviour(KeyValues& values, const std::string& date, bool engine, Container container,
                   TrainingRun& run) {
  Behaviour& behaviour = run.behaviour;
  const bool dropout = run.training.attention_dropout;
  behaviour.flash_saves_output_twice =
      run.parallel.context > 1 || run.gpu == Gpu::kA100 || (run.gpu == Gpu::kGb200 && dropout);
  if (container == Container::kOld || (date >= "2025-10" && date < kNewSupportContainer)) {
    behaviour.fused_loss_bytes_per_logit = kFusedLossBytesOldest.value;
  } else if (date < "2025-10") {
    behaviour.fused_loss_bytes_per_logit = kFusedLossBytesOld.value;
  }
  // "Memory efficient token permutation", 2659630721.
  behaviour.weighted_activation = date >= "2025-04-09";
  // The old container falls back to grouped products outside Transformer Engine, whose activation is
  // compiled.
  behaviour.fused_weighted_activation =
      run.training.grouped_gemm && (container == Container::kOld || !engine);
  behaviour.keeps_score_masks = container != Container::kOld;
  behaviour.keeps_gathered_tokens = date >= "2026";
  // "consolidate get_batch", 5e4fc931ba; with tensor parallelism masks are broadcast and freed.
  behaviour.keeps_masks = date >= "2026-05-21" && run.parallel.tensor == 1;
  // The first name of Megatron-FSDP, before units were released at the end of a step.
  behaviour.keeps_gathered_weights = values.flag("use-custom-fsdp");
  behaviour.keeps_deferred_gradient = date >= "2026";
}

}  // namespace

Status set_versions(KeyValues& values, const MegatronRun& given, TrainingRun& run) {
  Result<Gpu> gpu = gpu_of(given.gpu);
  if (!gpu.ok()) return gpu.take_status();
  run.gpu = gpu.value();
  const std::string date = given.date.empty() ? kToday : given.date;
  const std::string implementation = values.choice("transformer-impl", "transformer_engine",
                                                   {"transformer_engine", "local", "inference_optimized"});
  const bool engine = implementation != "local" && values.text("spec", "") != "local";
  // Expandable segments are split to the line.
  if (environment(given, "PYTORCH_CUDA_ALLOC_CONF").find("expandable_segments:True") != std::string::npos)
    run.allocator = AllocatorModel::kExpandable;
  run.allocator = find_allocator(given.allocator).value_or(run.allocator);
  const Container container = container_of(date, run.gpu);
  // Routers use the engine's products whatever the layers are made of; the old container's version had none.
  const bool routes_through_engine = values.has("num-experts") && container != Container::kOld;
  set_behaviour(values, date, engine, container, run);
  if (Status status = set_attention(values, given, engine, container, run); !status.ok()) return status;
  set_reserve(given, date, engine || routes_through_engine, container, run);
  return {};
}

}  // namespace spillway::estimator
