#include "estimator/advice/plan.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "estimator/advice/choices.h"
#include "estimator/advice/plan_options.h"

namespace spillway::estimator {
namespace {

// A choice that was not estimated yet.
struct Candidate {
  PlanChoice choice = {};
  Effect effect = Effect::kExact;
  double added_seconds = 0;
  int changes = 0;
};

struct Estimated {
  TrainingRun run;
  Estimate estimate;
  double needed = 0;
};

StepWork difference(const StepWork& a, const StepWork& b) {
  return {a.flops - b.flops,           a.recomputed_flops - b.recomputed_flops, a.link_bytes - b.link_bytes,
          a.host_bytes - b.host_bytes, a.memory_bytes - b.memory_bytes,         a.idle_share - b.idle_share};
}

// Between device and host in a step, as the estimate has it.
double moved_bytes(const Estimated& estimated) {
  return estimated.estimate.peak().time.transfer_seconds * estimated.run.offload.host_bandwidth;
}

constexpr std::array<PlanAxis, 5> kShrinking = {PlanAxis::kRecompute, PlanAxis::kMicroBatch, PlanAxis::kLoss,
                                                PlanAxis::kAttention, PlanAxis::kStep};

class Planner {
 public:
  Planner(const TrainingRun& run, const PlanRequest& request, const Estimator& estimator)
      : run_(run),
        request_(request),
        estimator_(estimator),
        options_(plan_options(run, request)),
        work_(model_work(run.model)),
        machine_(machine_of(request.gpu.name)) {
    shape_of(run, options_, {}, base_shape_);
    base_seconds_ = step_seconds(step_work(work_, base_shape_), base_shape_, machine_);
  }

  Result<Plan> find() {
    Result<Estimate> base = estimator_(run_);
    if (!base.ok()) return base.take_status();
    out_.needed_bytes = needed_bytes(run_, base.value());
    out_.fits = out_.needed_bytes <= request_.gpu.bytes;
    if (out_.fits) return std::move(out_);
    for (const Candidate& candidate : candidates()) {
      if (out_.answers.size() == kMostAnswers) break;
      // An answer with more changes, or stronger ones, than one that was found before is none.
      if (is_more_of_any(found_, candidate.choice) || !may_fit(candidate.choice)) continue;
      consider(candidate);
    }
    if (out_.answers.empty() && least_) {
      Candidate candidate;
      candidate.choice = least_->choice;
      out_.least = answer_of(candidate, std::move(least_->estimated));
    }
    return std::move(out_);
  }

 private:
  struct Least {
    PlanChoice choice = {};
    Estimated estimated;
  };

  double seconds_of(const PlanChoice& choice) const {
    StepShape shape;
    shape_of(run_, options_, choice, shape);
    return step_seconds(step_work(work_, shape), shape, machine_);
  }

  Candidate candidate_of(const PlanChoice& choice) const {
    Candidate out{choice, Effect::kExact, seconds_of(choice) - base_seconds_, 0};
    for (size_t axis = 0; axis < kPlanAxes; ++axis) {
      out.effect = std::max(out.effect, options_.axes[axis][choice[axis]].effect);
      out.changes += choice[axis] > 0 ? 1 : 0;
    }
    return out;
  }

  // Every combination but the run as it is: those that keep what is computed first, then the cheapest.
  std::vector<Candidate> candidates() const {
    std::vector<Candidate> out;
    PlanChoice choice = {};
    StepShape shape;
    while (next_choice(choice, options_.axes)) {
      if (go_together(options_, choice) && shape_of(run_, options_, choice, shape))
        out.push_back(candidate_of(choice));
    }
    // Costs that are less than a thousandth of a step apart are the same.
    const double grain = std::max(1e-12, base_seconds_ / 1000);
    std::stable_sort(out.begin(), out.end(), [&](const Candidate& a, const Candidate& b) {
      const bool a_changes = a.effect == Effect::kChanged, b_changes = b.effect == Effect::kChanged;
      if (a_changes != b_changes) return b_changes;
      const double a_cost = std::floor(a.added_seconds / grain), b_cost = std::floor(b.added_seconds / grain);
      return a_cost != b_cost ? a_cost < b_cost : a.changes < b.changes;
    });
    return out;
  }

  // Smaller microbatches, more recomputation and leaner kernels take less memory whatever else is chosen:
  // where all of them together do not fit, none of them does.
  bool may_fit(const PlanChoice& choice) {
    PlanChoice strongest = choice;
    for (const PlanAxis axis : kShrinking) strongest[static_cast<size_t>(axis)] = 0;
    const auto [at, is_new] = may_fit_.try_emplace(strongest, true);
    if (!is_new) return at->second;
    for (const PlanAxis axis : kShrinking)
      strongest[static_cast<size_t>(axis)] = static_cast<uint8_t>(options_.of(axis).size() - 1);
    StepShape shape;
    if (!shape_of(run_, options_, strongest, shape)) return true;
    std::optional<Estimated> estimated = estimate_of(strongest);
    if (!estimated) return true;
    at->second = fits(*estimated);
    if (!least_ || estimated->needed < least_->estimated.needed) least_ = {strongest, std::move(*estimated)};
    return at->second;
  }

  std::optional<Estimated> estimate_of(const PlanChoice& choice) const {
    PlanSettings all;
    for (const PlanSettings& of_axis : settings_of(run_, options_, choice, request_.megatron))
      all.insert(all.end(), of_axis.begin(), of_axis.end());
    Result<TrainingRun> run = request_.read(all);
    if (!run.ok()) return {};
    Result<Estimate> estimate = estimator_(run.value());
    if (!estimate.ok()) return {};
    Estimated out{std::move(run.value()), std::move(estimate.value()), 0};
    out.needed = needed_bytes(out.run, out.estimate);
    return out;
  }

  // Where only lean code's formulas know the changed run, which keep less than transformers' code does, a
  // tenth has to be left.
  bool fits(const Estimated& estimated) const {
    const Verdict found = verdict(estimated.needed, request_.gpu);
    const bool guessed =
        run_.framework == Framework::kTransformers && estimated.run.framework != Framework::kTransformers;
    // Of linear attention lean code counts other kernels.
    if (guessed && has_mixer(run_.model)) return false;
    return found == Verdict::kFits || (found == Verdict::kTight && !guessed);
  }

  void consider(const Candidate& candidate) {
    std::optional<Estimated> estimated = estimate_of(candidate.choice);
    if (!estimated || !fits(*estimated)) return;
    // Where one of the changes is not needed, the answer without it is another candidate.
    for (size_t axis = 0; axis < kPlanAxes; ++axis) {
      if (candidate.choice[axis] == 0 || candidate.changes == 1) continue;
      const std::optional<Estimated> without = estimate_without(candidate.choice, axis);
      if (without && fits(*without)) return;
    }
    found_.push_back(candidate.choice);
    out_.answers.push_back(answer_of(candidate, std::move(*estimated)));
  }

  std::optional<Estimated> estimate_without(PlanChoice choice, size_t axis) const {
    choice[axis] = 0;
    StepShape shape;
    if (!go_together(options_, choice) || !shape_of(run_, options_, choice, shape)) return {};
    return estimate_of(choice);
  }

  PlanAnswer answer_of(const Candidate& candidate, Estimated estimated) const {
    PlanAnswer out;
    const auto settings = settings_of(run_, options_, candidate.choice, request_.megatron);
    StepShape shape;
    shape_of(run_, options_, candidate.choice, shape);
    StepWork work = step_work(work_, shape);
    work.host_bytes = moved_bytes(estimated);
    out.step_seconds = step_seconds(work, shape, machine_);
    out.added_seconds = out.step_seconds - base_seconds_;
    for (size_t axis = 0; axis < kPlanAxes; ++axis) {
      const PlanOption& option = options_.axes[axis][candidate.choice[axis]];
      if (candidate.choice[axis] == 0) continue;
      PlanChange change{options_.names[axis], settings[axis], option.effect, {}, {}, 0};
      out.effect = std::max(out.effect, option.effect);
      PlanChoice without = candidate.choice;
      without[axis] = 0;
      const std::optional<Estimated> left = estimate_without(candidate.choice, axis);
      StepShape other;
      if (shape_of(run_, options_, without, other)) {
        StepWork before = step_work(work_, other);
        if (left) before.host_bytes = moved_bytes(*left);
        change.added = difference(work, before);
        change.added_seconds = out.step_seconds - step_seconds(before, other, machine_);
      }
      if (left) change.saved_bytes = left->needed - estimated.needed;
      out.changes.push_back(std::move(change));
    }
    out.needed_bytes = estimated.needed;
    out.run = std::move(estimated.run);
    out.estimate = std::move(estimated.estimate);
    return out;
  }

  const TrainingRun& run_;
  const PlanRequest& request_;
  const Estimator& estimator_;
  PlanOptions options_;
  ModelWork work_;
  const Machine& machine_;
  StepShape base_shape_;
  double base_seconds_ = 0;
  std::vector<PlanChoice> found_;
  std::map<PlanChoice, bool> may_fit_;
  std::optional<Least> least_;
  Plan out_;
};

}  // namespace

const char* effect_name(Effect effect) {
  switch (effect) {
    case Effect::kExact:
      return "the same results bit for bit";
    case Effect::kSame:
      return "mathematically the same results";
    case Effect::kChanged:
      return "other results";
  }
  return "";
}

Result<Plan> plan(const TrainingRun& run, const PlanRequest& request, const Estimator& estimator) {
  return Planner(run, request, estimator).find();
}

}  // namespace spillway::estimator
