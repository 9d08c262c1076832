#include "cli/estimate/answer_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/estimate/tiers.h"
#include "cli/size.h"
#include "estimator/reserved.h"

namespace spillway {
namespace {

using estimator::Bucket;
using estimator::Buckets;
using estimator::RankClass;

std::string in_gib(double bytes) {
  return fmt::format("{:.3f}", bytes / kGiB);
}

std::string rows(const Buckets& buckets, double total) {
  std::string out;
  for (const Bucket& bucket : buckets) {
    out += fmt::format("  {:<32} {:>10} {:>6.1f}  {} [{}]\n", bucket.name, in_gib(bucket.bytes),
                       100 * bucket.bytes / total, bucket.formula, bucket.source);
  }
  return out;
}

std::string total_row(const char* name, double bytes, double total) {
  return fmt::format("= {:<32} {:>10} {:>6.1f}\n", name, in_gib(bytes), 100 * bytes / total);
}

// The allocator that is counted first.
std::string reserved_row(const estimator::TrainingRun& run, double peak) {
  const auto of = [&](estimator::AllocatorModel allocator) {
    const estimator::ReservedBytes bytes = estimator::reserved_bytes(run, peak, allocator);
    return fmt::format("{} {} GiB ({} to {})", estimator::allocator_name(allocator), in_gib(bytes.expected),
                       in_gib(bytes.lowest), in_gib(bytes.highest));
  };
  std::string out = fmt::format("reserved for the peak: {}; not counted:", of(run.allocator));
  const char* comma = "";
  for (const estimator::AllocatorModel allocator : estimator::kAllocators) {
    if (allocator == run.allocator) continue;
    out += fmt::format("{} {}", comma, of(allocator));
    comma = ",";
  }
  return out + "\n";
}

std::string verdict_rows(const estimator::TrainingRun& run, const estimator::Estimate& estimate,
                         const std::vector<estimator::GpuMemory>& gpus) {
  const double needed = estimator::needed_bytes(run, estimate);
  std::string out;
  for (const estimator::GpuMemory& gpu : gpus) {
    out += fmt::format("{:<6} on {} ({} GiB): {} GiB needed, {:.1f} % of it\n",
                       estimator::verdict_name(estimator::verdict(needed, gpu)), gpu.name, in_gib(gpu.bytes),
                       in_gib(needed), 100 * needed / gpu.bytes);
  }
  return out;
}

}  // namespace

std::string answer_text(const estimator::TrainingRun& run, const estimator::Estimate& estimate,
                        const std::vector<estimator::GpuMemory>& gpus) {
  const RankClass& rank = estimate.peak();
  const double peak = rank.peak_bytes;
  std::string out =
      fmt::format("{}: {} parameters; stage {} of {} peaks, with {} on each rank\n", run.model.type,
                  grouped(static_cast<uint64_t>(estimate.parameters)), rank.stage, run.parallel.pipeline,
                  grouped(static_cast<uint64_t>(rank.parameters)));
  out += fmt::format("  {:<32} {:>10} {:>6}  formula [source]\n", "bucket", "GiB", "%");
  out += rows(rank.steady, peak);
  out += total_row("between steps", rank.steady_bytes, peak);
  out += rows(rank.peak, peak);
  out += total_row("peak", peak, peak);
  out += fmt::format("  between {} and {} GiB; first step {} GiB\n", in_gib(rank.lowest_bytes),
                     in_gib(rank.highest_bytes), in_gib(rank.peak_step1_bytes));
  out += "phases:";
  for (const estimator::Phase& phase : rank.phases)
    out += fmt::format("  {} {} GiB", phase.name, in_gib(phase.bytes));
  out += "\n" + tier_rows(rank);
  if (rank.pool_bytes > 0)
    out += fmt::format("free in captured graphs' pools, for nothing else: {} GiB\n", in_gib(rank.pool_bytes));
  out += reserved_row(run, rank.held_bytes());
  out += fmt::format("outside the allocator: context {} GiB, communicators {} GiB\n",
                     in_gib(run.reserve.context_bytes), in_gib(run.reserve.communicator_bytes));
  out += verdict_rows(run, estimate, gpus);
  for (const estimator::Mitigation& change : estimator::mitigations(run)) {
    out +=
        fmt::format("  saves {:>8} GiB: {} ({})\n", in_gib(change.saved_bytes), change.change, change.cost);
  }
  const double needed = estimator::needed_bytes(run, estimate);
  const bool misses = std::any_of(gpus.begin(), gpus.end(), [&](const estimator::GpuMemory& gpu) {
    return estimator::verdict(needed, gpu) == estimator::Verdict::kNo;
  });
  if (misses) out += "  --plan searches changes together, with the lines for your framework\n";
  if (!run.notes.assumptions.empty())
    out += fmt::format("assumed: {}\n", fmt::join(run.notes.assumptions, "; "));
  return out;
}

}  // namespace spillway
