#include "cli/estimate/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/estimate/framework_lines.h"
#include "cli/size.h"
#include "estimator/advice/plan.h"
#include "estimator/advice/serving_plan.h"
#include "estimator/inputs/nearest.h"

namespace spillway {
namespace {

using estimator::Effect;
using estimator::GpuMemory;
using estimator::Plan;
using estimator::PlanAnswer;
using estimator::PlanChange;
using estimator::PlanSetting;
using estimator::PlanSettings;
using estimator::ServingAnswer;
using estimator::ServingChange;
using estimator::ServingPlan;
using Json = nlohmann::ordered_json;

std::string plan_gib(double bytes) {
  return fmt::format("{:.3f} GiB", bytes / kGiB);
}

Result<bool> allows(const PlanChoices& choices, const char* what, const std::vector<std::string_view>& all) {
  bool found = false;
  for (const std::string& each : choices.allow) {
    if (std::find(all.begin(), all.end(), each) == all.end() && each != "all")
      return Status::invalid_argument(fmt::format("--allow '{}' is not allowed; allowed: {}, all{}", each,
                                                  fmt::join(all, ", "), estimator::did_you_mean(each, all)));
    found = found || each == what || each == "all";
  }
  return found;
}

// Says what was not tried, and how it would be.
std::string left_out(const PlanChoices& choices, const std::vector<std::string_view>& all) {
  std::vector<std::string_view> out;
  for (const std::string_view each : all) {
    const bool given =
        std::any_of(choices.allow.begin(), choices.allow.end(),
                    [&](const std::string& allowed) { return allowed == each || allowed == "all"; });
    if (!given) out.push_back(each);
  }
  return out.empty() ? "" : fmt::format("{}", fmt::join(out, ","));
}

std::vector<Change> changes_of(const PlanSettings& settings) {
  std::vector<Change> out;
  for (const PlanSetting& setting : settings) out.push_back({setting.key, setting.value});
  return out;
}

std::string text_of(const PlanSettings& settings) {
  std::vector<std::string> out;
  for (const PlanSetting& setting : settings) out.push_back(fmt::format("{}={}", setting.key, setting.value));
  return fmt::format("{}", fmt::join(out, ", "));
}

template <typename Changes>
PlanSettings all_settings(const Changes& changes) {
  PlanSettings out;
  for (const auto& change : changes) out.insert(out.end(), change.settings.begin(), change.settings.end());
  return out;
}

template <typename Changes>
std::string names_of(const Changes& changes) {
  std::vector<std::string> out;
  for (const auto& change : changes) out.push_back(text_of(change.settings));
  return fmt::format("{}", fmt::join(out, ", "));
}

// Says what a change costs in a step, each part that is more than a thousandth.
std::string cost_of(const PlanChange& change, const PlanAnswer& answer, double flops) {
  std::vector<std::string> out;
  const estimator::StepWork& added = change.added;
  const auto more = [](double bytes) { return bytes > 0 ? "more" : "less"; };
  if (std::abs(added.flops) > 0.001 * flops)
    out.push_back(
        fmt::format("{:.0f} % {} arithmetic", 100 * std::abs(added.flops) / flops, more(added.flops)));
  const auto bytes = [&](double value, const char* over) {
    if (std::abs(value) >= 1024.0 * 1024)
      out.push_back(fmt::format("{} {} {} a step", plan_gib(std::abs(value)), more(value), over));
  };
  bytes(added.link_bytes, "between GPUs");
  bytes(added.host_bytes, "to and from the host");
  bytes(added.memory_bytes, "of weights and gradients in the GPU's memory");
  if (added.idle_share > 0) out.push_back(fmt::format("a bubble of {:.0f} %", 100 * added.idle_share));
  if (out.empty()) return "costs nothing that is counted";
  const double share = answer.step_seconds > 0 ? 100 * change.added_seconds / answer.step_seconds : 0;
  return fmt::format("{} ({:.1f} % of a step at most)", fmt::join(out, ", "), std::max(0.0, share));
}

std::string saves(const PlanChange& change) {
  if (!change.saved_bytes) return "the others need it";
  return fmt::format("saves {}", plan_gib(*change.saved_bytes));
}

std::string lines_text(const std::vector<FrameworkLines>& places) {
  std::string out;
  for (const FrameworkLines& place : places) {
    out += fmt::format("     {}:\n", place.place);
    for (const std::string& line : place.lines) out += fmt::format("       {}\n", line);
  }
  return out;
}

Json lines_json(const std::vector<FrameworkLines>& places) {
  Json out = Json::array();
  for (const FrameworkLines& place : places) out.push_back({{"place", place.place}, {"lines", place.lines}});
  return out;
}

Json settings_json(const PlanSettings& settings) {
  Json out = Json::array();
  for (const PlanSetting& setting : settings) out.push_back({{"key", setting.key}, {"value", setting.value}});
  return out;
}

const char* effect_word(Effect effect) {
  return effect == Effect::kExact ? "exact" : effect == Effect::kSame ? "same" : "changed";
}

// The smallest GPU of the table that holds so much.
std::string smallest_gpu(double needed) {
  const std::optional<GpuMemory> gpu = estimator::smallest_gpu(needed);
  return gpu ? fmt::format("the smallest GPU that would hold it: {} ({})", gpu->name, plan_gib(gpu->bytes))
             : "no GPU that is known holds it";
}

Json smallest_json(double needed) {
  const std::optional<GpuMemory> gpu = estimator::smallest_gpu(needed);
  return gpu ? Json(gpu->name) : Json(nullptr);
}

struct Frame {
  std::string framework;
  bool deepspeed = false;  // as it is
};

// Lists what the changed run is warned of and the run as it is was not.
std::vector<std::string> new_warnings(const estimator::Notes& before, const estimator::Notes& after) {
  std::vector<std::string> out;
  for (const std::string& warning : after.warnings) {
    if (std::find(before.warnings.begin(), before.warnings.end(), warning) == before.warnings.end())
      out.push_back(warning);
  }
  return out;
}

class TrainingPlanText {
 public:
  TrainingPlanText(const Question& question, Frame frame) : question_(question), frame_(std::move(frame)) {
    flops_ = estimator::step_work(estimator::model_work(question.run.model),
                                  {question.run.parallel, question.run.training, question.run.offload})
                 .flops;
  }

  std::string text(const Plan& plan, const GpuMemory& gpu) const {
    std::string out = fmt::format("{} ({}): {} needed as it is", gpu.name, plan_gib(gpu.bytes),
                                  plan_gib(plan.needed_bytes));
    if (plan.fits)
      return out + fmt::format(", which fits: {} remain free\n", plan_gib(gpu.bytes - plan.needed_bytes));
    out += fmt::format(", {} too many\n", plan_gib(plan.needed_bytes - gpu.bytes));
    int number = 0;
    for (const PlanAnswer& answer : plan.answers) out += text(answer, gpu, fmt::format("{}. ", ++number));
    if (!plan.answers.empty()) return out;
    out += "nothing that was tried makes it fit";
    if (!plan.least) return out + "\n";
    return out + fmt::format("; {}\n{}", smallest_gpu(plan.least->needed_bytes),
                             text(*plan.least, gpu, "the least: "));
  }

  Json json(const Plan& plan, const GpuMemory& gpu) const {
    Json answers = Json::array();
    for (const PlanAnswer& answer : plan.answers) answers.push_back(json(answer, gpu));
    return {{"gpu", gpu.name},
            {"memory_bytes", static_cast<int64_t>(gpu.bytes)},
            {"needed_bytes", whole(plan.needed_bytes)},
            {"fits_as_it_is", plan.fits},
            {"answers", answers},
            {"least", plan.least ? json(*plan.least, gpu) : Json(nullptr)},
            {"smallest_gpu", plan.least ? smallest_json(plan.least->needed_bytes) : Json(nullptr)}};
  }

 private:
  std::string text(const PlanAnswer& answer, const GpuMemory& gpu, const std::string& number) const {
    const double free = gpu.bytes - answer.needed_bytes;
    std::string out =
        fmt::format("{}{}\n     {} needed, {} {}; {}; {:+.1f} % time of a step at most\n", number,
                    names_of(answer.changes), plan_gib(answer.needed_bytes), plan_gib(std::abs(free)),
                    free < 0 ? "too many" : "remain free", effect_name(answer.effect),
                    100 * answer.added_seconds / (answer.step_seconds - answer.added_seconds));
    for (const PlanChange& change : answer.changes)
      out += fmt::format("     {:<20} {}; {}; {}\n", change.name, saves(change),
                         cost_of(change, answer, flops_), effect_name(change.effect));
    if (const double host = host_bytes(answer); host > 0)
      out += fmt::format("     {} of host memory for each GPU\n", plan_gib(host));
    out += lines_text(framework_lines(frame_.framework, all_settings(answer.changes), frame_.deepspeed));
    for (const std::string& warning : new_warnings(question_.run.notes, answer.run.notes))
      out += fmt::format("     warning: {}\n", warning);
    return out;
  }

  static double host_bytes(const PlanAnswer& answer) {
    double out = 0;
    for (const estimator::Bucket& bucket : answer.estimate.peak().host) out += bucket.bytes;
    return out;
  }

  Json json(const PlanAnswer& answer, const GpuMemory& gpu) const {
    Json changes = Json::array();
    for (const PlanChange& change : answer.changes) {
      changes.push_back(
          {{"change", change.name},
           {"settings", settings_json(change.settings)},
           {"effect", effect_word(change.effect)},
           {"saved_bytes", change.saved_bytes ? Json(whole(*change.saved_bytes)) : Json(nullptr)},
           {"arithmetic_share", change.added.flops / flops_},
           {"link_bytes", whole(change.added.link_bytes)},
           {"host_bytes", whole(change.added.host_bytes)},
           {"memory_bytes", whole(change.added.memory_bytes)},
           {"seconds", change.added_seconds}});
    }
    return {{"changes", changes},
            {"effect", effect_word(answer.effect)},
            {"needed_bytes", whole(answer.needed_bytes)},
            {"free_bytes", whole(gpu.bytes - answer.needed_bytes)},
            {"host_bytes", whole(host_bytes(answer))},
            {"step_share", answer.added_seconds / (answer.step_seconds - answer.added_seconds)},
            {"lines",
             lines_json(framework_lines(frame_.framework, all_settings(answer.changes), frame_.deepspeed))},
            {"warnings", new_warnings(question_.run.notes, answer.run.notes)}};
  }

  const Question& question_;
  Frame frame_;
  double flops_ = 0;
};

std::string tail(const PlanChoices& choices, const std::vector<std::string_view>& all) {
  const std::string left = left_out(choices, all);
  return left.empty() ? "" : fmt::format("not tried, for the results change: {0} (--allow {0})\n", left);
}

const std::vector<std::string_view>& training_allows() {
  static const std::vector<std::string_view> kAll = {"adapter", "quant", "precision"};
  return kAll;
}

const std::vector<std::string_view>& serving_allows() {
  static const std::vector<std::string_view> kAll = {"quant", "length"};
  return kAll;
}

Result<Frame> frame_of(const Question& question, const PlanChoices& choices) {
  Frame out{choices.framework,
            question.run.communication.engine == estimator::DataParallelEngine::kDeepspeed};
  const bool megatron = question.source.is_megatron();
  if (out.framework.empty())
    out.framework = megatron                                                        ? "megatron"
                    : !question.run.trainer.empty()                                 ? question.run.trainer
                    : question.run.framework == estimator::Framework::kTransformers ? "transformers"
                    : out.deepspeed                                                 ? "deepspeed"
                                                                                    : "run-file";
  if (Status status = check_framework(out.framework); !status.ok()) return status;
  if (megatron != (out.framework == "megatron"))
    return Status::invalid_argument(fmt::format(
        "--for '{}' is not allowed of this file; allowed: {}", out.framework,
        megatron ? "megatron" : "run-file, transformers, deepspeed, torchtitan, torchtune, axolotl"));
  if (out.framework == "vllm") return Status::invalid_argument("--for vllm goes with --serve");
  return out;
}

}  // namespace

Result<Answer> answer_plan(const Question& question, const PlanChoices& choices) {
  Result<Frame> frame = frame_of(question, choices);
  if (!frame.ok()) return frame.status();
  estimator::PlanRequest request;
  for (auto [what, flag] : {std::pair{"adapter", &request.adapter}, std::pair{"quant", &request.quant},
                            std::pair{"precision", &request.precision}}) {
    const Result<bool> allowed = allows(choices, what, training_allows());
    if (!allowed.ok()) return allowed.status();
    *flag = allowed.value();
  }
  request.megatron = question.source.is_megatron();
  request.read = [&](const PlanSettings& settings) { return question.source.run(changes_of(settings)); };
  request.expressible = [&](const PlanSettings& settings) {
    return framework_knows(frame->framework, settings, frame->deepspeed);
  };
  const TrainingPlanText shown(question, frame.value());
  Answer out;
  Json rows = Json::array();
  for (const GpuMemory& gpu : question.gpus) {
    request.gpu = gpu;
    Result<Plan> plan = estimator::plan(question.run, request, question.estimator);
    if (!plan.ok()) return plan.status();
    out.yes = out.yes && (plan->fits || !plan->answers.empty());
    if (question.json)
      rows.push_back(shown.json(plan.value(), gpu));
    else
      out.text += shown.text(plan.value(), gpu);
  }
  if (!question.json) {
    out.text += tail(choices, training_allows());
    return out;
  }
  out.text = Json{{"schema_version", 1},
                  {"framework", frame->framework},
                  {"not_tried", left_out(choices, training_allows())},
                  {"gpus", rows}}
                 .dump(2) +
             "\n";
  return out;
}

namespace {

std::string serving_text(const ServingAnswer& answer, const std::string& number) {
  const estimator::ServingEstimate& estimate = answer.estimate;
  std::string out = fmt::format(
      "{}{}\n     cache {} of {}, {} tokens, {:.2f} requests of {} tokens at once; {}\n", number,
      names_of(answer.changes), plan_gib(estimate.vllm.cache_bytes), plan_gib(estimate.budget_bytes),
      estimate.vllm.tokens, estimate.vllm.concurrency, estimate.length, effect_name(answer.effect));
  for (const ServingChange& change : answer.changes)
    out += fmt::format("     {:<20} {} more for the cache; cost: {}; {}\n", change.name,
                       plan_gib(change.saved_bytes), change.cost, effect_name(change.effect));
  return out + lines_text(framework_lines("vllm", all_settings(answer.changes), false));
}

Json serving_json(const ServingAnswer& answer) {
  Json changes = Json::array();
  for (const ServingChange& change : answer.changes)
    changes.push_back({{"change", change.name},
                       {"settings", settings_json(change.settings)},
                       {"effect", effect_word(change.effect)},
                       {"saved_bytes", whole(change.saved_bytes)},
                       {"cost", change.cost}});
  return {{"changes", changes},
          {"effect", effect_word(answer.effect)},
          {"gpus", answer.gpus},
          {"weight_bytes", whole(answer.estimate.weight_bytes)},
          {"cache_bytes", whole(answer.estimate.vllm.cache_bytes)},
          {"tokens", answer.estimate.vllm.tokens},
          {"concurrency", answer.estimate.vllm.concurrency},
          {"length_tokens", answer.estimate.length},
          {"token_seconds", answer.token_seconds},
          {"lines", lines_json(framework_lines("vllm", all_settings(answer.changes), false))}};
}

// Bytes of a GPU that would hold what comes nearest: what it has too few of for its cache is added.
double needed_of(const ServingAnswer& answer, const GpuMemory& gpu) {
  const estimator::ServingEstimate& estimate = answer.estimate;
  const double wanted =
      static_cast<double>(answer.run.settings.requests * estimate.length) * estimate.token_bytes +
      static_cast<double>(answer.run.settings.requests) * estimate.sequence_bytes;
  const double missing = std::max(0.0, wanted - estimate.vllm.cache_bytes);
  return gpu.bytes + missing / answer.run.settings.utilization;
}

// The first GPU of the table, from there on, with which the whole estimate says that it fits.
std::optional<GpuMemory> smallest_server(const ServingAnswer& answer, const GpuMemory& gpu) {
  double needed = needed_of(answer, gpu);
  while (std::optional<GpuMemory> larger = estimator::smallest_gpu(needed)) {
    if (estimator::estimate_serving(answer.run, *larger).fits(answer.run.settings)) return larger;
    needed = larger->bytes + 1;
  }
  return {};
}

}  // namespace

Result<Answer> answer_serving_plan(const RunSource& source, const std::vector<GpuMemory>& list,
                                   const PlanChoices& choices, int64_t gpus, bool json) {
  if (!choices.framework.empty() && choices.framework != "vllm")
    return Status::invalid_argument(
        fmt::format("--for '{}' is not allowed beside --serve; allowed: vllm", choices.framework));
  estimator::ServingRequest request;
  for (auto [what, flag] : {std::pair{"quant", &request.quant}, std::pair{"length", &request.length}}) {
    const Result<bool> allowed = allows(choices, what, serving_allows());
    if (!allowed.ok()) return allowed.status();
    *flag = allowed.value();
  }
  request.gpus = std::max<int64_t>(1, gpus);
  request.read = [&](const PlanSettings& settings) { return source.serving(changes_of(settings)); };
  Answer out;
  Json rows = Json::array();
  for (const GpuMemory& gpu : list) {
    request.gpu = gpu;
    Result<ServingPlan> plan = estimator::plan_serving(request);
    if (!plan.ok()) return plan.status();
    out.yes = out.yes && (plan->fits || !plan->answers.empty());
    const std::optional<GpuMemory> larger = plan->least ? smallest_server(*plan->least, gpu) : std::nullopt;
    if (json) {
      Json answers = Json::array();
      for (const ServingAnswer& answer : plan->answers) answers.push_back(serving_json(answer));
      rows.push_back({{"gpu", gpu.name},
                      {"memory_bytes", static_cast<int64_t>(gpu.bytes)},
                      {"fits_as_it_is", plan->fits},
                      {"cache_bytes", whole(plan->base.vllm.cache_bytes)},
                      {"answers", answers},
                      {"least", plan->least ? serving_json(*plan->least) : Json(nullptr)},
                      {"smallest_gpu", larger ? Json(larger->name) : Json(nullptr)}});
      continue;
    }
    out.text +=
        fmt::format("{} ({}): {} for the cache as it is, {:.2f} requests of {} tokens at once{}\n", gpu.name,
                    plan_gib(gpu.bytes), plan_gib(std::max(0.0, plan->base.vllm.cache_bytes)),
                    plan->base.vllm.concurrency, plan->base.length, plan->fits ? ", which fits" : "");
    int number = 0;
    for (const ServingAnswer& answer : plan->answers)
      out.text += serving_text(answer, fmt::format("{}. ", ++number));
    if (plan->fits || !plan->answers.empty()) continue;
    out.text += "nothing that was tried makes it fit";
    if (plan->least) {
      out.text += larger ? fmt::format("; the smallest GPU that would hold it: {} ({})\n", larger->name,
                                       plan_gib(larger->bytes))
                         : "; no GPU that is known holds it\n";
      out.text += serving_text(*plan->least, "the nearest: ");
    } else {
      out.text += "\n";
    }
  }
  if (json)
    out.text = Json{{"schema_version", 1},
                    {"framework", "vllm"},
                    {"not_tried", left_out(choices, serving_allows())},
                    {"gpus", rows}}
                   .dump(2) +
               "\n";
  else
    out.text += tail(choices, serving_allows());
  return out;
}

}  // namespace spillway
