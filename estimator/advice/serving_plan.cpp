#include "estimator/advice/serving_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "estimator/advice/choices.h"

namespace spillway::estimator {
namespace {

// A kernel's launch from the host, and kernels of a layer: about 5 us ("Getting Started with CUDA Graphs",
// NVIDIA's blog) and ten, of a norm, products, rotation, cache, attention and reductions.
constexpr double kLaunchSeconds = 5e-6;
constexpr double kKernelsOfLayer = 10;
constexpr int64_t kLengthGrain = 256;

enum ServingAxis {
  kShare,
  kBatch,
  kSequences,
  kGraphs,
  kTensor,
  kPipeline,
  kCacheType,
  kWeights,
  kLength,
  kAxes
};
constexpr std::array<const char*, kAxes> kServingAxisNames = {
    "share of the GPU",   "tokens of a step", "requests of a step", "CUDA graphs",
    "tensor parallelism", "pipeline",         "cache type",         "weights",
    "request length"};

struct ServingOption {
  Effect effect = Effect::kExact;
  PlanSettings settings;
  std::string cost;
};
using ServingChoice = std::array<size_t, kAxes>;

struct ServingTried {
  ServingRun run;
  ServingEstimate estimate;
};

struct ServingCandidate {
  ServingChoice choice = {};
  Effect effect = Effect::kExact;
  double cost = 0;  // seconds of GPUs for a token
  int changes = 0;
};

class ServingPlanner {
 public:
  ServingPlanner(const ServingRequest& request, ServingRun run)
      : request_(request), machine_(machine_of(request.gpu.name)), run_(std::move(run)) {
    for (auto& axis : axes_) axis.push_back({});
    fill();
  }

  ServingPlan find() {
    out_.base = estimate_serving(run_, request_.gpu);
    out_.fits = out_.base.fits(run_.settings);
    if (out_.fits) return std::move(out_);
    for (const ServingCandidate& candidate : candidates()) {
      if (out_.answers.size() == kMostAnswers) break;
      if (is_more_of_any(found_, candidate.choice)) continue;
      consider(candidate);
    }
    if (out_.answers.empty() && least_) out_.least = answer_of(least_choice_, *least_);
    return std::move(out_);
  }

 private:
  void add(ServingAxis axis, Effect effect, PlanSettings settings, std::string cost) {
    axes_[axis].push_back({effect, std::move(settings), std::move(cost)});
  }

  void fill() {
    const ServingSettings& now = run_.settings;
    const ServingEstimate base = estimate_serving(run_, request_.gpu);
    if (now.utilization < 0.95)
      add(kShare, Effect::kExact, {{"serve.gpu_memory_utilization", "0.95"}},
          "none: a twentieth of the GPU is left to other processes");
    for (const int64_t tokens : {2048, 512}) {
      if (tokens < base.batched_tokens)
        add(kBatch, Effect::kSame, {{"serve.max_num_batched_tokens", std::to_string(tokens)}},
            fmt::format("prompts are read {} tokens at a time: the weights once for each", tokens));
    }
    for (const int64_t sequences : {256, 64, 16}) {
      if (sequences < base.sequences && sequences >= now.requests)
        add(kSequences, Effect::kExact, {{"serve.max_num_seqs", std::to_string(sequences)}},
            fmt::format("at most {} requests at once", sequences));
    }
    if (now.graphs)
      add(kGraphs, Effect::kSame, {{"serve.enforce_eager", "true"}},
          fmt::format("up to {:.1f} ms a token: the host launches each kernel", 1e3 * eager_seconds()));
    divisions();
    if (now.cache_bytes > 1)
      add(kCacheType, Effect::kChanged, {{"serve.kv_cache_dtype", "fp8"}},
          "none: half the bytes of the cache are read");
    if (request_.quant && !run_.frozen.on()) {
      for (const char* kind : {"fp8", "int4"})
        add(kWeights, Effect::kChanged, {{"model.weights", kind}}, "none: fewer bytes of weights are read");
    }
    if (request_.length)
      add(kLength, Effect::kChanged, {{"serve.max_model_len", "0"}}, "longer requests are refused");
  }

  void divisions() {
    const ServingSettings& now = run_.settings;
    for (int64_t tensor = 2; tensor <= request_.gpus; tensor *= 2) {
      if (tensor > now.tensor)
        add(kTensor, Effect::kSame, {{"serve.tensor_parallel_size", std::to_string(tensor)}}, "");
    }
    for (int64_t pipeline = 2; pipeline <= request_.gpus; pipeline *= 2) {
      if (pipeline > now.pipeline)
        add(kPipeline, Effect::kSame, {{"serve.pipeline_parallel_size", std::to_string(pipeline)}}, "");
    }
  }

  double layers() const { return static_cast<double>(run_.model.towers.back().layers.size()); }
  double eager_seconds() const { return layers() * kKernelsOfLayer * kLaunchSeconds; }

  // Two all-reduces of one hidden state for each layer and token.
  double reduced_bytes(const ServingSettings& settings) const {
    const auto ranks = static_cast<double>(settings.tensor);
    return 2 * 2 * (ranks - 1) / ranks * layers() * static_cast<double>(run_.model.hidden) *
           settings.element_bytes;
  }

  // Returns the time of a generated token: all weights are read once, stages one after the other.
  double token_seconds(const ServingSettings& settings, const ServingEstimate& estimate) const {
    const double read =
        estimate.weight_bytes * static_cast<double>(settings.pipeline) / machine_.memory_bytes;
    return read + reduced_bytes(settings) / machine_.link_bytes + (settings.graphs ? 0 : eager_seconds());
  }

  static int64_t gpus_of(const ServingSettings& settings) {
    return settings.tensor * settings.pipeline * settings.data;
  }

  std::optional<ServingTried> estimate_of(const ServingChoice& choice) const {
    PlanSettings all;
    for (size_t axis = 0; axis < kAxes; ++axis) {
      if (axis == kLength && choice[axis] > 0) continue;
      const PlanSettings& settings = axes_[axis][choice[axis]].settings;
      all.insert(all.end(), settings.begin(), settings.end());
    }
    std::optional<ServingTried> out = estimate_of(all);
    if (!out || choice[kLength] == 0) return out;
    all.push_back(length_for(*out));
    return all.back().value == "0" ? std::nullopt : estimate_of(all);
  }

  std::optional<ServingTried> estimate_of(const PlanSettings& settings) const {
    Result<ServingRun> run = request_.read(settings);
    if (!run.ok() || gpus_of(run->settings) > std::max(request_.gpus, gpus_of(run_.settings))) return {};
    ServingTried out{std::move(run.value()), {}};
    out.estimate = estimate_serving(out.run, request_.gpu);
    return out;
  }

  // The longest requests that fit, so many at once as are asked for.
  static PlanSetting length_for(const ServingTried& estimated) {
    const int64_t requests = std::max<int64_t>(1, estimated.run.settings.requests);
    const int64_t tokens = std::min({estimated.estimate.vllm.longest,
                                     estimated.estimate.vllm.tokens / requests, estimated.estimate.length});
    return {"serve.max_model_len",
            std::to_string(std::max<int64_t>(0, tokens / kLengthGrain * kLengthGrain))};
  }

  std::vector<ServingCandidate> candidates() const {
    std::vector<ServingCandidate> out;
    ServingChoice choice = {};
    while (next_choice(choice, axes_)) {
      const std::optional<ServingTried> estimated = estimate_of(choice);
      if (!estimated) continue;
      ServingCandidate candidate{choice, Effect::kExact, 0, 0};
      for (size_t axis = 0; axis < kAxes; ++axis) {
        candidate.effect = std::max(candidate.effect, axes_[axis][choice[axis]].effect);
        candidate.changes += choice[axis] > 0 ? 1 : 0;
      }
      const ServingSettings& settings = estimated->run.settings;
      candidate.cost = static_cast<double>(gpus_of(settings)) * token_seconds(settings, estimated->estimate);
      out.push_back(candidate);
    }
    std::stable_sort(out.begin(), out.end(), [](const ServingCandidate& a, const ServingCandidate& b) {
      const bool a_changes = a.effect == Effect::kChanged, b_changes = b.effect == Effect::kChanged;
      if (a_changes != b_changes) return b_changes;
      return std::abs(a.cost - b.cost) > 1e-9 ? a.cost < b.cost : a.changes < b.changes;
    });
    return out;
  }

  void consider(const ServingCandidate& candidate) {
    std::optional<ServingTried> estimated = estimate_of(candidate.choice);
    if (!estimated) return;
    if (!estimated->estimate.fits(estimated->run.settings)) {
      const bool nearer = !least_ || estimated->estimate.vllm.cache_bytes > least_->estimate.vllm.cache_bytes;
      if (nearer) {
        least_ = std::move(estimated);
        least_choice_ = candidate.choice;
      }
      return;
    }
    for (size_t axis = 0; axis < kAxes && candidate.changes > 1; ++axis) {
      if (candidate.choice[axis] == 0) continue;
      ServingChoice without = candidate.choice;
      without[axis] = 0;
      const std::optional<ServingTried> left = estimate_of(without);
      if (left && left->estimate.fits(left->run.settings)) return;
    }
    found_.push_back(candidate.choice);
    out_.answers.push_back(answer_of(candidate.choice, *estimated));
  }

  ServingAnswer answer_of(const ServingChoice& choice, const ServingTried& estimated) const {
    ServingAnswer out;
    out.run = estimated.run;
    out.estimate = estimated.estimate;
    out.gpus = gpus_of(estimated.run.settings);
    out.token_seconds = token_seconds(estimated.run.settings, estimated.estimate);
    for (size_t axis = 0; axis < kAxes; ++axis) {
      if (choice[axis] == 0) continue;
      const ServingOption& option = axes_[axis][choice[axis]];
      ServingChange change{kServingAxisNames[axis], option.settings, option.effect, 0, option.cost};
      if (axis == kLength) change.settings = {{"serve.max_model_len", std::to_string(out.estimate.length)}};
      if (axis == kTensor)
        change.cost = fmt::format("{} GPUs; {:.2f} MiB between them a token", out.gpus,
                                  reduced_bytes(out.run.settings) / (1024 * 1024));
      if (axis == kPipeline)
        change.cost =
            fmt::format("{} GPUs; stages wait for each other unless there are as many batches", out.gpus);
      ServingChoice without = choice;
      without[axis] = 0;
      if (const std::optional<ServingTried> left = estimate_of(without))
        change.saved_bytes = out.estimate.vllm.cache_bytes - left->estimate.vllm.cache_bytes;
      out.effect = std::max(out.effect, option.effect);
      out.changes.push_back(std::move(change));
    }
    return out;
  }

  const ServingRequest& request_;
  const Machine& machine_;
  ServingRun run_;
  std::array<std::vector<ServingOption>, kAxes> axes_;
  std::vector<ServingChoice> found_;
  std::optional<ServingTried> least_;
  ServingChoice least_choice_ = {};
  ServingPlan out_;
};

}  // namespace

Result<ServingPlan> plan_serving(const ServingRequest& request) {
  Result<ServingRun> run = request.read({});
  if (!run.ok()) return run.take_status();
  return ServingPlanner(request, std::move(run.value())).find();
}

}  // namespace spillway::estimator
