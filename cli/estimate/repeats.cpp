#include "cli/estimate/repeats.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace spillway {
namespace {

using Arguments = std::map<std::string, std::string>;
using Inputs = std::tuple<Arguments, Arguments, std::string, int64_t, std::string>;
using Group = std::vector<const Comparison*>;

Inputs inputs_of(const Comparison& row) {
  const estimator::MegatronRun& run = row.recorded.run;
  return {run.arguments, run.environment, run.gpu, run.gpus, run.date};
}

// Of values between `low` and `high` the one that is least wrong for both is 2 low high / (low + high), and
// this is how wrong it is, in percent.
double least_error(const Group& group, double estimator::MeasuredBytes::*bytes) {
  const auto value = [&](const Comparison* row) { return (*row->recorded.measured).*bytes; };
  const auto [low, high] =
      std::minmax_element(group.begin(), group.end(),
                          [&](const Comparison* a, const Comparison* b) { return value(a) < value(b); });
  return 100 * (value(*high) - value(*low)) / (value(*high) + value(*low));
}

struct Repeat {
  const Comparison* first;
  size_t runs;
  double steady, peak;
};

std::vector<Repeat> repeats_of(const std::vector<Comparison>& comparisons) {
  std::map<Inputs, Group> groups;
  for (const Comparison& row : comparisons) {
    if (row.estimate.has_value() && row.recorded.measured.has_value()) groups[inputs_of(row)].push_back(&row);
  }
  std::vector<Repeat> out;
  for (const auto& [inputs, group] : groups) {
    if (group.size() < 2) continue;
    out.push_back({group.front(), group.size(), least_error(group, &estimator::MeasuredBytes::steady),
                   least_error(group, &estimator::MeasuredBytes::peak)});
  }
  std::sort(out.begin(), out.end(), [](const Repeat& a, const Repeat& b) {
    return std::max(a.steady, a.peak) > std::max(b.steady, b.peak);
  });
  return out;
}

}  // namespace

std::string repeats_markdown(const std::vector<Comparison>& comparisons) {
  constexpr double kWorthNaming = 1;  // percent
  const std::vector<Repeat> repeats = repeats_of(comparisons);
  if (repeats.empty()) return {};
  std::string out = fmt::format(
      "\n## What no estimate can meet\n\n"
      "{} times the same arguments, environment, GPU, number of GPUs and date were recorded more than once. "
      "An "
      "estimate is\nthe same for all of them, and so is wrong for one of them by half of what they differ. "
      "Where "
      "that is more than {} %:\n\n"
      "| runs | case | GPU | date | least steady error % | least peak error % "
      "|\n|---:|---|---|---|---:|---:|\n",
      repeats.size(), kWorthNaming);
  for (const Repeat& repeat : repeats) {
    if (std::max(repeat.steady, repeat.peak) <= kWorthNaming) break;
    out += fmt::format("| {} | {} | {} | {} | {:.1f} | {:.1f} |\n", repeat.runs, repeat.first->recorded.name,
                       repeat.first->recorded.run.gpu, repeat.first->recorded.run.date, repeat.steady,
                       repeat.peak);
  }
  return out;
}

}  // namespace spillway
