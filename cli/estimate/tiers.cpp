#include "cli/estimate/tiers.h"

#include "cli/size.h"

#include <fmt/format.h>

#include <cmath>

namespace spillway {
namespace {

using estimator::Buckets;
using Json = nlohmann::ordered_json;

std::string rows(const char* tier, const Buckets& buckets) {
  std::string out;
  for (const estimator::Bucket& bucket : buckets)
    out += fmt::format("  {:<5} {:<26} {:>18.0f} {:>10.3f}  {}\n", tier, bucket.name, bucket.bytes,
                       bucket.bytes / kGiB, bucket.formula);
  const double total = total_bytes(buckets);
  if (!buckets.empty())
    out += fmt::format("= {:<5} {:<26} {:>18.0f} {:>10.3f}\n", tier, "in all", total, total / kGiB);
  return out;
}

Json tier(const Buckets& buckets) {
  Json rows = Json::array();
  for (const estimator::Bucket& bucket : buckets)
    rows.push_back(
        {{"name", bucket.name}, {"bytes", std::llround(bucket.bytes)}, {"formula", bucket.formula}});
  return {{"bytes", std::llround(total_bytes(buckets))}, {"buckets", rows}};
}

}  // namespace

std::string tier_rows(const estimator::RankClass& rank) {
  if (rank.host.empty() && rank.nvme.empty()) return {};
  std::string out = "below the device, for this rank:\n" + rows("host", rank.host) + rows("nvme", rank.nvme);
  const estimator::StepTime& time = rank.time;
  if (time.transfer_seconds == 0) return out;  // no bandwidth was given
  out += fmt::format("  each step moves for {:.3f} s", time.transfer_seconds);
  if (time.compute_seconds > 0)
    out += fmt::format(": {:.3f} s of compute become {:.3f} s", time.compute_seconds,
                       time.compute_seconds + time.exposed_seconds);
  return out + "\n";
}

Json tiers_json(const estimator::RankClass& rank) {
  if (rank.host.empty() && rank.nvme.empty()) return nullptr;
  const estimator::StepTime& time = rank.time;
  const bool is_known = time.transfer_seconds > 0;  // Megatron-LM's arguments name no bandwidth
  return {{"host", tier(rank.host)},
          {"nvme", tier(rank.nvme)},
          {"transfer_seconds", is_known ? Json(time.transfer_seconds) : Json()},
          {"exposed_seconds", is_known ? Json(time.exposed_seconds) : Json()},
          {"compute_seconds", time.compute_seconds}};
}

}  // namespace spillway
