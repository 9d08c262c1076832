#include "estimator/calibration/factors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string_view>

#include "estimator/measured.h"

namespace spillway::estimator {
namespace {

constexpr double kOtherRun = 2;  // times what is predicted

constexpr std::string_view kForward = "end of forward";
constexpr std::string_view kStep = "optimizer step";
constexpr std::string_view kMoments = "optimizer states";

Group group_of(std::string_view bucket) {
  if (bucket == "weights" || bucket == "master weights") return Group::kWeights;
  if (bucket == kMoments) return Group::kOptimizer;
  if (bucket == "gradients" || bucket == "fp32 gradient copies") return Group::kGradients;
  return Group::kFixed;
}

double phase_bytes(const RankClass& rank, std::string_view name) {
  for (const Phase& phase : rank.phases) {
    if (name == phase.name) return phase.bytes;
  }
  return 0;
}

double bytes_named(const Buckets& buckets, std::string_view name) {
  double bytes = 0;
  for (const Bucket& bucket : buckets) bytes += name == bucket.name ? bucket.bytes : 0;
  return bytes;
}

// Gradients that are held between steps: a framework that frees them has none.
double steady_gradients(const RankClass& rank) {
  double bytes = 0;
  for (const Bucket& bucket : rank.steady) {
    if (group_of(bucket.name) == Group::kGradients) bytes += bucket.bytes;
  }
  return bytes;
}

struct Pair {
  double predicted;
  double measured;
};

// measured = fixed + value x predicted, by least squares; fixed only where the sizes differ, and no less than
// `least_fixed` bytes.
Factor fit(const std::vector<Pair>& pairs, double least_fixed = 0) {
  Factor out;
  out.observations = pairs.size();
  if (pairs.empty()) return out;
  const auto n = static_cast<double>(pairs.size());
  double p = 0, m = 0, pp = 0, pm = 0, least = pairs.front().predicted, most = least;
  for (const Pair& pair : pairs) {
    p += pair.predicted;
    m += pair.measured;
    pp += pair.predicted * pair.predicted;
    pm += pair.predicted * pair.measured;
    least = std::min(least, pair.predicted);
    most = std::max(most, pair.predicted);
  }
  out.value = pm / pp;
  if (most > 1.1 * least) {
    const double slope = (n * pm - p * m) / (n * pp - p * p);
    const double fixed = (m - slope * p) / n;
    if (slope > 0 && fixed > least_fixed) {
      out.value = slope;
      out.fixed_bytes = fixed;
    }
  }
  if (pairs.size() == 1) {
    out.observed_at = pairs.front().predicted;
    return out;
  }
  // Two sizes give two unknowns, and leave nothing over.
  if (pairs.size() == 2 && out.fixed_bytes != 0) return out;
  out.spread = 0;
  for (const Pair& pair : pairs)
    out.spread = std::max(*out.spread, std::abs(pair.measured / out.of(pair.predicted) - 1));
  return out;
}

void scale(Buckets& buckets, const std::function<double(const Bucket&)>& factor) {
  for (Bucket& bucket : buckets) bucket.bytes *= factor(bucket);
}

}  // namespace

const char* group_name(Group group) {
  constexpr std::array<const char*, kGroups> kNames = {"weights and buffers", "optimizer states", "gradients",
                                                       "workspaces", "activations and loss"};
  return kNames[static_cast<size_t>(group)];
}

const char* peak_phase(const RankClass& rank) {
  const auto highest = std::max_element(rank.phases.begin(), rank.phases.end(),
                                        [](const Phase& a, const Phase& b) { return a.bytes < b.bytes; });
  return highest == rank.phases.end() ? "" : highest->name;
}

bool peak_stands_out(const RankClass& rank) {
  const std::string_view peak = peak_phase(rank);
  return std::all_of(rank.phases.begin(), rank.phases.end(), [&](const Phase& phase) {
    return phase.name == peak || 2 * (phase.bytes - rank.steady_bytes) <= rank.peak_bytes - rank.steady_bytes;
  });
}

GroupBytes predicted_groups(const RankClass& rank) {
  GroupBytes out;
  std::array<double, kGroups> bytes = {};
  for (const Bucket& bucket : rank.steady) bytes[static_cast<size_t>(group_of(bucket.name))] += bucket.bytes;
  auto& gradients = bytes[static_cast<size_t>(Group::kGradients)];
  gradients = std::max(gradients, phase_bytes(rank, kStep) - rank.steady_bytes);
  bytes[static_cast<size_t>(Group::kTransient)] = rank.peak_bytes - rank.steady_bytes;
  for (size_t i = 0; i < kGroups; ++i) {
    if (bytes[i] > 0) out[i] = bytes[i];
  }
  return out;
}

Result<GroupBytes> measured_groups(const Measurement& measurement, const RankClass& predicted,
                                   bool between_steps) {
  const GroupBytes said = predicted_groups(predicted);
  GroupBytes out;
  const auto at = [](GroupBytes& groups, Group group) -> std::optional<double>& {
    return groups[static_cast<size_t>(group)];
  };
  const auto note = [&](Group group, double bytes) {
    if (bytes > 0 && said[static_cast<size_t>(group)]) at(out, group) = bytes;
  };
  if (measurement.annotation("parameter_bytes") > 0)
    note(Group::kWeights, measurement.annotation("parameter_bytes") + measurement.annotation("buffer_bytes"));
  note(Group::kOptimizer, measurement.annotation("optimizer_bytes"));
  note(Group::kGradients, measurement.annotation("gradient_bytes"));
  for (const Group group : {Group::kWeights, Group::kOptimizer}) {
    const auto& bytes = at(out, group);
    const double wanted = said[static_cast<size_t>(group)].value_or(0);
    if (bytes && (*bytes > kOtherRun * wanted || kOtherRun * *bytes < wanted)) {
      return Status::invalid_argument(fmt::format(
          "{:.0f} bytes of {} are not this run's {:.0f}: was it another run, or is its description "
          "wrong?",
          *bytes, group_name(group), wanted));
    }
  }
  const auto held = [&](Group group) {
    return at(out, group).value_or(said[static_cast<size_t>(group)].value_or(0));
  };
  const double gradients =
      steady_gradients(predicted) <= 0 ? 0 : at(out, Group::kGradients).value_or(steady_gradients(predicted));
  const double states = held(Group::kWeights) + held(Group::kOptimizer) + gradients;
  if (between_steps) note(Group::kFixed, measurement.allocated.current - states);
  const double transient = measurement.allocated.peak - states - held(Group::kFixed);
  if (transient <= 0) {
    return Status::invalid_argument(
        fmt::format("a peak of {:.0f} bytes is less than the {:.0f} of the run's model states and workspaces",
                    measurement.allocated.peak, states + held(Group::kFixed)));
  }
  if (peak_stands_out(predicted)) note(Group::kTransient, transient);
  return out;
}

double Factor::doubt(double predicted) const {
  return observations == 1 ? std::abs((value - 1) * (predicted - observed_at)) : 0;
}

Factors::Factors(const std::vector<Observation>& observations, const std::string& kernels) {
  for (size_t group = 0; group < static_cast<size_t>(Group::kTransient); ++group) {
    std::vector<Pair> pairs;
    for (const Observation& each : observations) {
      if (each.predicted[group] && each.measured[group])
        pairs.push_back({*each.predicted[group], *each.measured[group]});
    }
    states_[group] = fit(pairs);
  }
  std::vector<std::pair<std::string, std::vector<Pair>>> phases;
  constexpr auto kTransient = static_cast<size_t>(Group::kTransient);
  constexpr auto kFixed = static_cast<size_t>(Group::kFixed);
  // Workspaces that were predicted and never looked at; measured transient bytes are those above them.
  double unseen = std::numeric_limits<double>::max();
  for (const Observation& each : observations) {
    if (each.kernels != kernels || !each.predicted[kTransient] || !each.measured[kTransient]) continue;
    auto found = std::find_if(phases.begin(), phases.end(),
                              [&](const auto& phase) { return phase.first == each.phase; });
    if (found == phases.end()) found = phases.insert(phases.end(), {each.phase, {}});
    found->second.push_back({*each.predicted[kTransient], *each.measured[kTransient]});
    unseen = std::min(unseen, each.measured[kFixed] ? 0 : each.predicted[kFixed].value_or(0));
  }
  double absent = 0;
  for (const auto& [phase, pairs] : phases) {
    phases_.emplace_back(phase, fit(pairs, -unseen));
    absent = std::max(absent, -phases_.back().second.fixed_bytes);
  }
  if (absent <= 0) return;
  // Less than nothing is fixed above the workspaces: so much of them is not there.
  states_[kFixed].value = 1 - absent / unseen;
  for (auto& [phase, factor] : phases_) factor.fixed_bytes += absent;
}

const Factor& Factors::of_phase(const std::string& phase) const {
  for (const auto& [name, factor] : phases_) {
    if (name == phase) return factor;
  }
  return phase == kStep ? of(Group::kGradients) : none_;
}

RankClass Factors::apply(const RankClass& rank) const {
  RankClass out = rank;
  scale(out.steady, [&](const Bucket& bucket) { return of(group_of(bucket.name)).value; });
  out.steady_bytes = total_bytes(out.steady);
  out.peak_bytes = 0;
  for (Phase& phase : out.phases) {
    const double above = phase.bytes - rank.steady_bytes;
    // Before the first step less is held than between steps: that share of it.
    phase.bytes = above <= 0 ? out.steady_bytes * phase.bytes / rank.steady_bytes
                             : out.steady_bytes + of_phase(phase.name).of(above);
    out.peak_bytes = std::max(out.peak_bytes, phase.bytes);
  }
  const std::string peak = peak_phase(out);
  const double above = out.peak_bytes - out.steady_bytes;
  if (peak == peak_phase(rank)) {
    const Factor& factor = of_phase(peak);
    scale(out.peak, [&](const Bucket&) { return factor.value; });
    const double rest = above - total_bytes(out.peak);
    if (factor.fixed_bytes > 0)
      out.peak.push_back({"fixed part", rest, "what does not grow with the batch", "calibration"});
  } else {
    out.peak = {{"gradients", above, "at the end of the backward pass or in the optimizer step",
                 "calibration, another phase peaks"}};
  }
  const double forward = phase_bytes(out, kForward);
  out.peak_step1_bytes = std::max(forward - bytes_named(out.steady, kMoments),
                                  std::min(out.peak_bytes, phase_bytes(out, kStep)));
  const double spread = of(Group::kWeights).spread.value_or(kStateSpread.value) * out.steady_bytes +
                        of_phase(peak).spread.value_or(kActivationSpread.value) * above +
                        of_phase(peak).doubt(phase_bytes(rank, peak) - rank.steady_bytes);
  // Without an observation of the peak itself the interval is no narrower than the estimate's own.
  const double own = (rank.highest_bytes - rank.peak_bytes) / rank.peak_bytes * out.peak_bytes;
  const double width = of_phase(peak).observations > 0 ? spread : std::max(spread, own);
  out.lowest_bytes = out.peak_bytes - width;
  out.highest_bytes = out.peak_bytes + width;
  return out;
}

Estimate Factors::apply(const Estimate& estimate) const {
  Estimate out = estimate;
  for (RankClass& rank : out.ranks) rank = apply(rank);
  const auto highest =
      std::max_element(out.ranks.begin(), out.ranks.end(),
                       [](const RankClass& a, const RankClass& b) { return a.peak_bytes < b.peak_bytes; });
  out.peak_rank = static_cast<size_t>(highest - out.ranks.begin());
  return out;
}

}  // namespace spillway::estimator
