#include "cli/estimate/answer_json.h"

#include <algorithm>
#include <cmath>

#include "cli/estimate/tiers.h"
#include "cli/size.h"
#include "estimator/reserved.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

void add_buckets(const estimator::Buckets& buckets, const char* when, Json& out) {
  for (const estimator::Bucket& bucket : buckets) {
    out.push_back({{"name", bucket.name},
                   {"bytes", whole(bucket.bytes)},
                   {"when", when},
                   {"formula", bucket.formula},
                   {"source", bucket.source}});
  }
}

Json reserved_json(const estimator::ReservedBytes& bytes) {
  return {{"lowest_bytes", whole(bytes.lowest)},
          {"expected_bytes", whole(bytes.expected)},
          {"highest_bytes", whole(bytes.highest)}};
}

// By the run's own allocator, and by each.
Json reserved_of(const estimator::TrainingRun& run, double peak_bytes) {
  Json out = {{"allocator", estimator::allocator_name(run.allocator)}};
  out.update(reserved_json(estimator::reserved_bytes(run, peak_bytes)));
  Json by;
  for (const estimator::AllocatorModel allocator : estimator::kAllocators)
    by[estimator::allocator_name(allocator)] =
        reserved_json(estimator::reserved_bytes(run, peak_bytes, allocator));
  out["by_allocator"] = by;
  return out;
}

// The worst of the GPUs asked for is the verdict of all.
void add_verdicts(const estimator::TrainingRun& run, const estimator::Estimate& estimate,
                  const std::vector<estimator::GpuMemory>& gpus, Json& out) {
  const double needed = estimator::needed_bytes(run, estimate);
  estimator::Verdict worst = estimator::Verdict::kFits;
  Json rows = Json::array();
  for (const estimator::GpuMemory& gpu : gpus) {
    const estimator::Verdict verdict = estimator::verdict(needed, gpu);
    worst = std::max(worst, verdict);
    rows.push_back({{"gpu", gpu.name},
                    {"memory_bytes", whole(gpu.bytes)},
                    {"verdict", estimator::verdict_name(verdict)}});
  }
  Json changes = Json::array();
  for (const estimator::Mitigation& change : estimator::mitigations(run)) {
    changes.push_back(
        {{"change", change.change}, {"saved_bytes", whole(change.saved_bytes)}, {"cost", change.cost}});
  }
  out["needed_bytes"] = whole(needed);
  out["verdict"] = estimator::verdict_name(worst);
  out["gpus"] = rows;
  out["mitigations"] = changes;
}

}  // namespace

Json answer_json(const estimator::TrainingRun& run, const estimator::Estimate& estimate,
                 const std::vector<estimator::GpuMemory>& gpus) {
  const estimator::RankClass& rank = estimate.peak();
  Json buckets = Json::array();
  add_buckets(rank.steady, "always", buckets);
  add_buckets(rank.peak, "at the peak", buckets);
  Json phases = Json::array();
  for (const estimator::Phase& phase : rank.phases)
    phases.push_back({{"name", phase.name}, {"bytes", whole(phase.bytes)}});
  Json stages = Json::array();
  for (const estimator::RankClass& other : estimate.ranks) {
    stages.push_back({{"stage", other.stage},
                      {"parameters", other.parameters},
                      {"steady_bytes", whole(other.steady_bytes)},
                      {"peak_bytes", whole(other.peak_bytes)}});
  }
  Json out = {{"schema_version", 1},
              {"parameters", estimate.parameters},
              {"rank_parameters", rank.parameters},
              {"steady_bytes", whole(rank.steady_bytes)},
              {"peak_bytes", whole(rank.peak_bytes)},
              {"peak_step1_bytes", whole(rank.peak_step1_bytes)},
              {"interval",
               {{"lowest_bytes", whole(rank.lowest_bytes)}, {"highest_bytes", whole(rank.highest_bytes)}}},
              {"graph_pool_bytes", whole(rank.pool_bytes)},
              {"reserved", reserved_of(run, rank.held_bytes())},
              {"peak_stage", rank.stage},
              {"buckets", buckets},
              {"phases", phases},
              {"stages", stages},
              {"tiers", tiers_json(rank)},
              {"assumptions", run.notes.assumptions},
              {"warnings", run.notes.warnings}};
  if (!gpus.empty()) add_verdicts(run, estimate, gpus, out);
  return out;
}

}  // namespace spillway
