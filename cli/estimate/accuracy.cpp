#include "cli/estimate/accuracy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "cli/estimate/repeats.h"
#include "estimator/measured.h"

namespace spillway {
namespace {

using estimator::RankClass;
using Rows = std::vector<const Comparison*>;

struct Spread {
  double median = 0, ninetieth = 0, worst = 0;
};

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<size_t>(std::lround(share * static_cast<double>(values.size() - 1)))];
  };
  return {at(0.5), at(0.9), values.back()};
}

struct Errors {
  size_t runs = 0;
  Spread steady, peak, step1;
  double interval_holds = 0;
  double interval_width = 0;  // median, as a share of the predicted peak
};

Errors errors_of(const Rows& rows) {
  std::vector<double> steady, peak, step1, width;
  size_t held = 0;
  for (const Comparison* row : rows) {
    const RankClass& rank = row->estimate->peak();
    const estimator::MeasuredBytes& measured = *row->recorded.measured;
    steady.push_back(100 * std::abs(rank.steady_bytes / measured.steady - 1));
    peak.push_back(100 * std::abs(rank.peak_bytes / measured.peak - 1));
    if (measured.peak_step1 > 0)
      step1.push_back(100 * std::abs(rank.peak_step1_bytes / measured.peak_step1 - 1));
    width.push_back(100 * (rank.highest_bytes - rank.lowest_bytes) / rank.peak_bytes);
    held += rank.lowest_bytes <= measured.peak && measured.peak <= rank.highest_bytes ? 1 : 0;
  }
  const double runs = static_cast<double>(std::max<size_t>(1, rows.size()));
  return {rows.size(),
          spread_of(steady),
          spread_of(peak),
          spread_of(step1),
          100 * static_cast<double>(held) / runs,
          spread_of(width).median};
}

std::string three(const Spread& spread) {
  return fmt::format("{:.2f} / {:.2f} / {:.1f}", spread.median, spread.ninetieth, spread.worst);
}

Rows estimated(const std::vector<Comparison>& comparisons,
               const std::function<bool(const Comparison&)>& wanted) {
  Rows out;
  for (const Comparison& row : comparisons) {
    if (row.estimate.has_value() && row.recorded.measured.has_value() && wanted(row)) out.push_back(&row);
  }
  return out;
}

struct Feature {
  const char* name;
  std::function<bool(const Comparison&)> has;
};

bool has_argument(const Comparison& row, const char* key) {
  return row.recorded.run.arguments.count(key) != 0;
}

int64_t size_argument(const Comparison& row, const char* key) {
  const auto& arguments = row.recorded.run.arguments;
  const auto found = arguments.find(key);
  return found == arguments.end() ? 1 : std::atoll(found->second.c_str());
}

std::vector<Feature> features() {
  const auto argument = [](const char* key) {
    return [key](const Comparison& row) { return has_argument(row, key); };
  };
  const auto above_one = [](const char* key) {
    return [key](const Comparison& row) { return size_argument(row, key) > 1; };
  };
  return {{"dense", [](const Comparison& row) { return !row.has_experts; }},
          {"mixture of experts", [](const Comparison& row) { return row.has_experts; }},
          {"tensor parallel", above_one("tensor-model-parallel-size")},
          {"sequence parallel", argument("sequence-parallel")},
          {"pipeline parallel", above_one("pipeline-model-parallel-size")},
          {"interleaved pipeline",
           [](const Comparison& row) {
             return has_argument(row, "num-layers-per-virtual-pipeline-stage") ||
                    has_argument(row, "num-virtual-stages-per-pipeline-rank");
           }},
          {"context parallel", above_one("context-parallel-size")},
          {"expert parallel", above_one("expert-model-parallel-size")},
          {"distributed optimizer", argument("use-distributed-optimizer")},
          {"sharded parameters", argument("use-megatron-fsdp")},
          {"fp16", argument("fp16")},
          {"recompute", argument("recompute-granularity")},
          {"fused loss", argument("cross-entropy-loss-fusion")},
          {"SwiGLU", argument("swiglu")},
          {"no Transformer Engine",
           [](const Comparison& row) {
             const auto& arguments = row.recorded.run.arguments;
             const auto found = arguments.find("transformer-impl");
             return found != arguments.end() && found->second == "local";
           }},
          {"A100", [](const Comparison& row) { return row.recorded.run.gpu == "a100"; }},
          {"H100", [](const Comparison& row) { return row.recorded.run.gpu == "h100"; }},
          {"GB200", [](const Comparison& row) { return row.recorded.run.gpu == "gb200"; }}};
}

std::string family_of(const Comparison& row) {
  return row.recorded.name.substr(0, row.recorded.name.find('/'));
}

// Says how the interval would do on one family had its widths been set on the others: the widths are scaled
// so that nine in ten of the other families' runs are held.
struct LeftOut {
  double scale = 1;
  double holds = 0;  // percent of the family's runs
};

double share_of_half_width(const Comparison& row) {
  const RankClass& rank = row.estimate->peak();
  return std::abs(row.recorded.measured->peak - rank.peak_bytes) / (rank.highest_bytes - rank.peak_bytes);
}

LeftOut leave_out(const Rows& family, const Rows& others) {
  std::vector<double> shares;
  for (const Comparison* row : others) shares.push_back(share_of_half_width(*row));
  LeftOut out;
  out.scale = spread_of(std::move(shares)).ninetieth;
  const auto held = std::count_if(family.begin(), family.end(), [&](const Comparison* row) {
    return share_of_half_width(*row) <= out.scale;
  });
  out.holds = 100 * static_cast<double>(held) / static_cast<double>(family.size());
  return out;
}

std::string table_row(const std::string& name, const Errors& errors) {
  return fmt::format("| {} | {} | {} | {} | {:.0f} % | {:.1f} % |\n", name, errors.runs, three(errors.steady),
                     three(errors.peak), errors.interval_holds, errors.interval_width);
}

constexpr const char* kHeader =
    "| runs | number | steady error % | peak error % | interval holds | interval width |\n"
    "|---|---:|---:|---:|---:|---:|\n";

std::string family_tables(const std::vector<Comparison>& comparisons,
                          const std::map<std::string, size_t>& families) {
  std::string errors = "\n## By family of cases\n\n";
  errors += kHeader;
  std::string left_out =
      "\n## Leaving one family out\n\n"
      "Formulas follow the framework's source. Three things were learned from these runs: the bytes of the "
      "fused\n"
      "loss in old containers (runs of gpt); the days on which versions and vocabularies changed, named in\n"
      "`inputs/megatron_versions.cpp` and `megatron_model.cpp` with the commit where there is one; and the "
      "widths of\n"
      "the interval. Had each family's widths been set on the others, to hold nine in ten of those:\n\n"
      "| family left out | width, times today's | interval holds |\n|---|---:|---:|\n";
  for (const auto& entry : families) {
    const std::string& family = entry.first;
    const Rows rows = estimated(comparisons, [&](const Comparison& row) { return family_of(row) == family; });
    const Rows others =
        estimated(comparisons, [&](const Comparison& row) { return family_of(row) != family; });
    if (rows.empty()) continue;
    errors += table_row(family, errors_of(rows));
    const LeftOut out = leave_out(rows, others);
    left_out += fmt::format("| {} | {:.2f} | {:.0f} % |\n", family, out.scale, out.holds);
  }
  return errors + left_out;
}

}  // namespace

std::string accuracy_summary(const std::vector<Comparison>& comparisons) {
  const Rows all = estimated(comparisons, [](const Comparison&) { return true; });
  size_t measured = 0;
  for (const Comparison& row : comparisons) measured += row.recorded.measured.has_value() ? 1 : 0;
  std::string out;
  const auto line = [&](const char* name, const Errors& errors) {
    out += fmt::format(
        "  {:<6} {:>4} runs  steady {}  peak {}  first step {}  interval holds {:.1f} %, {:.1f} % wide\n",
        name, errors.runs, three(errors.steady), three(errors.peak), three(errors.step1),
        errors.interval_holds, errors.interval_width);
  };
  out += "relative errors in percent, median / 90th percentile / worst\n";
  line("all", errors_of(all));
  line("dense", errors_of(estimated(comparisons, [](const Comparison& row) { return !row.has_experts; })));
  line("MoE", errors_of(estimated(comparisons, [](const Comparison& row) { return row.has_experts; })));
  out += fmt::format(
      "  coverage {:.1f} %: {} of {} runs estimated\n",
      measured == 0 ? 0.0 : 100.0 * static_cast<double>(all.size()) / static_cast<double>(measured),
      all.size(), measured);
  return out;
}

std::string accuracy_markdown(const std::vector<Comparison>& comparisons) {
  std::string out =
      "# Accuracy of the estimator\n\n"
      "Written by `spillway estimate --accuracy --jsonl RUNS`: estimates of recorded Megatron-LM runs beside "
      "what the\n"
      "last rank's allocator counted. Errors are relative, in percent: median / 90th percentile / worst.\n\n"
      "## By feature\n\n";
  out += kHeader;
  const Rows all = estimated(comparisons, [](const Comparison&) { return true; });
  out += table_row("all", errors_of(all));
  for (const Feature& feature : features()) {
    const Rows rows = estimated(comparisons, feature.has);
    if (!rows.empty()) out += table_row(feature.name, errors_of(rows));
  }
  std::map<std::string, size_t> families, refusals;
  for (const Comparison& row : comparisons) {
    ++families[family_of(row)];
    if (!row.refused.empty()) ++refusals[row.refused];
  }
  out += family_tables(comparisons, families);
  out += repeats_markdown(comparisons);
  out += fmt::format("\n## Coverage\n\n{} of {} runs are estimated. Refused, by reason:\n\n", all.size(),
                     comparisons.size());
  out += "| runs | reason |\n|---:|---|\n";
  for (const auto& [reason, count] : refusals) out += fmt::format("| {} | {} |\n", count, reason);
  out += "\n## Constants that no source gives\n\n| value | what | where it was measured |\n|---:|---|---|\n";
  for (const estimator::Measured& constant : estimator::kMeasured)
    out += fmt::format("| {} | {} | {} |\n", constant.value, constant.what, constant.origin);
  return out;
}

}  // namespace spillway
