#include "estimator/advice/plan_options.h"

#include <fmt/format.h>

#include <algorithm>

namespace spillway::estimator {
namespace {

constexpr int64_t kMostTensorTried = 8;  // GPUs of a machine
constexpr int64_t kMostStages = 64;

void add_low_rank(Adapter& adapter) {
  adapter.kind = AdapterKind::kLowRank;
  adapter.rank = 16;
}
constexpr int kMostSizesChanged = 2;
constexpr int64_t kLongSequence = 8192;  // from which on dividing it is worth a try

size_t index_of(PlanAxis axis) {
  return static_cast<size_t>(axis);
}

// Fills the axes, in the words of run files or of Megatron-LM.
class Filler {
 public:
  Filler(const TrainingRun& run, const PlanRequest& request) : run_(run), request_(request) {
    out_.names = {
        "parallelism",        "sharding",       "recompute", "micro-batch",       "loss",
        "attention",          "optimizer step", "optimizer", "optimizer offload", "parameter offload",
        "activation offload", "adapter",        "precision"};
    for (auto& axis : out_.axes) axis.push_back({Effect::kExact, {}, [](StepShape&) {}});
  }

  PlanOptions fill() {
    parallelism();
    recompute();
    micro_batch();
    if (request_.megatron) {
      megatron();
    } else {
      sharding();
      kernels();
      optimizers();
      offloads();
      adapters();
    }
    return std::move(out_);
  }

 private:
  void add(PlanAxis axis, Effect effect, PlanSettings settings, std::function<void(StepShape&)> apply) {
    if (!settings.empty() && !request_.expressible(settings)) return;
    out_.axes[index_of(axis)].push_back({effect, std::move(settings), std::move(apply)});
  }

  std::string key(const char* of_run_file, const char* of_megatron) const {
    return request_.megatron ? of_megatron : of_run_file;
  }

  PlanSettings layout_settings(const Parallel& layout) const {
    const Parallel& now = run_.parallel;
    PlanSettings out;
    const auto set = [&](const std::string& name, int64_t before, int64_t after) {
      if (before != after) out.push_back({name, std::to_string(after)});
    };
    set(key("parallel.tensor", "tensor-model-parallel-size"), now.tensor, layout.tensor);
    set(key("parallel.pipeline", "pipeline-model-parallel-size"), now.pipeline, layout.pipeline);
    set(key("parallel.context", "context-parallel-size"), now.context, layout.context);
    set(key("parallel.expert", "expert-model-parallel-size"), now.expert, layout.expert);
    if (layout.sequence && !now.sequence)
      out.push_back({key("parallel.sequence_parallel", "sequence-parallel"), "true"});
    return out;
  }

  void layout(int64_t tensor, int64_t pipeline, int64_t context, int64_t expert) {
    Parallel layout = run_.parallel;
    layout.tensor = tensor;
    layout.pipeline = pipeline;
    layout.context = context;
    layout.expert = expert;
    layout.sequence = tensor > 1;
    if (layout.world % (tensor * pipeline * context) != 0) return;
    if (layout.world % (layout.expert_tensor * expert * pipeline) != 0) return;
    const Parallel& now = run_.parallel;
    const int changed = int{tensor != now.tensor} + int{pipeline != now.pipeline} +
                        int{context != now.context} + int{expert != now.expert};
    if (changed > kMostSizesChanged) return;
    PlanSettings settings = layout_settings(layout);
    if (settings.empty()) return;
    add(PlanAxis::kParallel, Effect::kSame, std::move(settings), [=](StepShape& shape) {
      shape.parallel.tensor = tensor;
      shape.parallel.pipeline = pipeline;
      shape.parallel.context = context;
      shape.parallel.expert = expert;
      shape.parallel.sequence = tensor > 1;
    });
  }

  static std::vector<int64_t> powers(int64_t most, int64_t now) {
    std::vector<int64_t> out = {now};
    for (int64_t size = 1; size <= most; size *= 2) {
      if (size != now) out.push_back(size);
    }
    return out;
  }

  bool has_experts() const {
    for (const Layer& layer : run_.model.towers.back().layers) {
      for (const Block& block : layer) {
        if (std::holds_alternative<Experts>(block)) return true;
      }
    }
    return false;
  }

  void parallelism() {
    const Parallel& now = run_.parallel;
    if (now.world == 1) return;
    const bool whole = run_.model.towers.size() == 1 && now.stage_layers.empty();
    const bool is_long = run_.model.towers.back().sequence >= kLongSequence;
    for (const int64_t pipeline :
         powers(whole ? std::min(now.world, kMostStages) : now.pipeline, now.pipeline)) {
      for (const int64_t tensor : powers(std::min(now.world, kMostTensorTried), now.tensor)) {
        for (const int64_t context : powers(is_long ? kMostTensorTried : now.context, now.context)) {
          for (const int64_t expert : powers(has_experts() ? now.world : 1, now.expert))
            layout(tensor, pipeline, context, expert);
        }
      }
    }
  }

  void recompute() {
    const bool kept = run_.training.recompute == Recompute::kNone;
    if (kept && run_.framework != Framework::kTransformers &&
        run_.training.attention != AttentionKernel::kFlash)
      add(PlanAxis::kRecompute, Effect::kExact,
          {{key("train.recompute", "recompute-granularity"), "selective"}}, [](StepShape& shape) {
            shape.training.recompute = Recompute::kSelective;
            shape.training.modules.attention_core = true;
          });
    if (run_.training.recompute == Recompute::kFull) return;
    PlanSettings full = {{key("train.recompute", "recompute-granularity"), "full"}};
    if (request_.megatron) {
      full.push_back({"recompute-method", "uniform"});
      full.push_back({"recompute-num-layers", "1"});
    }
    add(PlanAxis::kRecompute, Effect::kExact, std::move(full), [](StepShape& shape) {
      shape.training.recompute = Recompute::kFull;
      shape.training.modules = {};
    });
  }

  void micro_batch() {
    const int64_t now = run_.training.micro_batch;
    std::vector<int64_t> sizes;
    for (int64_t size = now; size % 2 == 0;) sizes.push_back(size /= 2);
    if (now > 1 && (sizes.empty() || sizes.back() != 1)) sizes.push_back(1);
    for (const int64_t size : sizes) {
      add(PlanAxis::kMicroBatch, Effect::kSame,
          {{key("train.micro_batch", "micro-batch-size"), std::to_string(size)}},
          [size](StepShape& shape) { shape.training.micro_batch = size; });
    }
  }

  void sharding_stage(int64_t stage, DataSharding sharding) {
    if (run_.parallel.sharding >= sharding) return;
    add(PlanAxis::kSharding, Effect::kSame, {{"parallel.zero", std::to_string(stage)}},
        [sharding](StepShape& shape) { shape.parallel.sharding = sharding; });
  }

  void sharding() {
    if (run_.parallel.world == 1) return;
    sharding_stage(1, DataSharding::kOptimizer);
    sharding_stage(2, DataSharding::kGradients);
    sharding_stage(3, DataSharding::kParameters);
  }

  void kernels() {
    if (run_.training.cross_entropy == CrossEntropy::kEager && run_.model.vocabulary_head)
      add(PlanAxis::kLoss, Effect::kSame, {{"train.loss", "fused-linear"}},
          [](StepShape& shape) { shape.training.cross_entropy = CrossEntropy::kFusedLinear; });
    if (run_.training.attention != AttentionKernel::kFlash)
      add(PlanAxis::kAttention, Effect::kSame, {{"train.attention", "flash"}},
          [](StepShape& shape) { shape.training.attention = AttentionKernel::kFlash; });
    if (run_.training.foreach_step)
      add(PlanAxis::kStep, Effect::kSame, {{"train.optimizer_step", "fused"}},
          [](StepShape& shape) { shape.training.foreach_step = false; });
  }

  // Dettmers et al., "8-bit Optimizers via Block-wise Quantization"; Shazeer and Stern, "Adafactor".
  void optimizers() {
    if (!has_plain_adam(run_.training)) return;
    add(PlanAxis::kOptimizer, Effect::kChanged, {{"train.optimizer", "adamw8bit"}},
        [](StepShape& shape) { shape.training.optimizer = OptimizerKind::kAdam8bit; });
    add(PlanAxis::kOptimizer, Effect::kChanged, {{"train.optimizer", "adafactor"}},
        [](StepShape& shape) { shape.training.optimizer = OptimizerKind::kAdafactor; });
    if (request_.precision && run_.training.precision == Precision::kBf16 &&
        (run_.training.mixed || run_.training.autocast))
      add(PlanAxis::kPrecision, Effect::kChanged, {{"train.precision", "bf16"}},
          [](StepShape& shape) { shape.training.mixed = shape.training.autocast = false; });
  }

  // DeepSpeed's: its optimizer on the host needs stage 1 or more, its parameters there stage 3.
  PlanSettings of_engine(PlanSettings settings, bool parameters) const {
    if (run_.communication.engine != DataParallelEngine::kDeepspeed)
      settings.push_back({"communication.engine", "deepspeed"});
    const DataSharding needed = parameters ? DataSharding::kParameters : DataSharding::kGradients;
    if (run_.parallel.sharding < needed) settings.push_back({"parallel.zero", parameters ? "3" : "2"});
    return settings;
  }

  void offloads() {
    if (run_.offload.optimizer == Tier::kDevice)
      add(PlanAxis::kOffloadOptimizer, Effect::kSame, of_engine({{"offload.optimizer", "host"}}, false),
          [](StepShape& shape) {
            shape.offload.optimizer = Tier::kHost;
            shape.parallel.sharding = std::max(shape.parallel.sharding, DataSharding::kGradients);
          });
    if (run_.offload.parameters == Tier::kDevice)
      add(PlanAxis::kOffloadParameters, Effect::kSame, of_engine({{"offload.parameters", "host"}}, true),
          [](StepShape& shape) {
            shape.offload.parameters = Tier::kHost;
            shape.parallel.sharding = DataSharding::kParameters;
          });
    if (run_.offload.activations == Tier::kDevice)
      add(PlanAxis::kOffloadActivations, Effect::kExact, {{"offload.activations", "host"}},
          [](StepShape& shape) { shape.offload.activations = Tier::kHost; });
  }

  void adapters() {
    if (!request_.adapter) return;
    const bool has = run_.training.adapter.on();
    if (!has)
      add(PlanAxis::kAdapter, Effect::kChanged,
          {{"adapter.kind", "lora"}, {"adapter.rank", "16"}, {"adapter.targets", "all-linear"}},
          [](StepShape& shape) { add_low_rank(shape.training.adapter); });
    if (!request_.quant || run_.training.frozen.on()) return;
    PlanSettings quantised = {{"model.weights", "nf4"}};
    if (!has) {
      for (const auto& [name, value] :
           PlanSettings{{"adapter.kind", "qlora"}, {"adapter.rank", "16"}, {"adapter.targets", "all-linear"}})
        quantised.push_back({name, value});
    }
    add(PlanAxis::kAdapter, Effect::kChanged, std::move(quantised), [](StepShape& shape) {
      if (!shape.training.adapter.on()) add_low_rank(shape.training.adapter);
      shape.training.frozen.bytes = 0.5;
    });
  }

  void megatron() {
    if (run_.parallel.sharding == DataSharding::kNone && run_.parallel.world > 1)
      add(PlanAxis::kSharding, Effect::kSame, {{"use-distributed-optimizer", "true"}},
          [](StepShape& shape) { shape.parallel.sharding = DataSharding::kOptimizer; });
    if (run_.training.cross_entropy == CrossEntropy::kVocabularyParallel)
      add(PlanAxis::kLoss, Effect::kSame, {{"cross-entropy-loss-fusion", "true"}},
          [](StepShape& shape) { shape.training.cross_entropy = CrossEntropy::kFused; });
  }

  const TrainingRun& run_;
  const PlanRequest& request_;
  PlanOptions out_;
};

int64_t samples_of_step(const TrainingRun& run) {
  return run.training.micro_batch * run.training.microbatches * run.parallel.data();
}

}  // namespace

PlanOptions plan_options(const TrainingRun& run, const PlanRequest& request) {
  return Filler(run, request).fill();
}

bool go_together(const PlanOptions& options, const PlanChoice& choice) {
  const auto at = [&](PlanAxis axis) { return choice[index_of(axis)]; };
  const bool optimizer = at(PlanAxis::kOffloadOptimizer) > 0;
  const bool parameters = at(PlanAxis::kOffloadParameters) > 0;
  // The host's optimizer is DeepSpeed's own Adam.
  if (optimizer && at(PlanAxis::kOptimizer) > 0) return false;
  // Both settle the stage of sharding themselves, but for the last one.
  if (parameters && at(PlanAxis::kSharding) > 0) return false;
  if (optimizer && at(PlanAxis::kSharding) > 0 &&
      at(PlanAxis::kSharding) + size_t{1} < options.of(PlanAxis::kSharding).size())
    return false;
  // An adapter's states are too small to be worth another optimizer, precision or place.
  if (at(PlanAxis::kAdapter) > 0 && (optimizer || parameters || at(PlanAxis::kOptimizer) > 0)) return false;
  return true;
}

bool shape_of(const TrainingRun& run, const PlanOptions& options, const PlanChoice& choice, StepShape& out) {
  out.parallel = run.parallel;
  out.training = run.training;
  out.offload = run.offload;
  for (size_t axis = 0; axis < kPlanAxes; ++axis) options.axes[axis][choice[axis]].apply(out);
  const int64_t together = out.training.micro_batch * out.parallel.data();
  const int64_t samples = samples_of_step(run);
  if (samples % together != 0) return false;
  out.training.microbatches = samples / together;
  return true;
}

std::array<PlanSettings, kPlanAxes> settings_of(const TrainingRun& run, const PlanOptions& options,
                                                const PlanChoice& choice, bool megatron) {
  std::array<PlanSettings, kPlanAxes> out;
  for (size_t axis = 0; axis < kPlanAxes; ++axis) out[axis] = options.axes[axis][choice[axis]].settings;
  const bool batch = choice[index_of(PlanAxis::kMicroBatch)] > 0;
  StepShape shape;
  if (!shape_of(run, options, choice, shape)) return out;
  PlanSettings& counted = out[index_of(batch ? PlanAxis::kMicroBatch : PlanAxis::kParallel)];
  if (megatron && !counted.empty())
    counted.push_back({"global-batch-size", std::to_string(samples_of_step(run))});
  if (!megatron && shape.training.microbatches != run.training.microbatches)
    counted.push_back({"train.gradient_accumulation", std::to_string(shape.training.microbatches)});
  // The stage that offloading of the optimizer asks for is less than what was chosen for its own sake.
  if (choice[index_of(PlanAxis::kSharding)] > 0 || choice[index_of(PlanAxis::kOffloadParameters)] > 0) {
    PlanSettings& offload = out[index_of(PlanAxis::kOffloadOptimizer)];
    std::erase_if(offload, [](const PlanSetting& setting) { return setting.key == "parallel.zero"; });
  }
  // Both places turn to DeepSpeed; once is enough.
  if (choice[index_of(PlanAxis::kOffloadOptimizer)] > 0) {
    std::erase_if(out[index_of(PlanAxis::kOffloadParameters)],
                  [](const PlanSetting& setting) { return setting.key == "communication.engine"; });
  }
  return out;
}

}  // namespace spillway::estimator
