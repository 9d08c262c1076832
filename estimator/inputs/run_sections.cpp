#include "estimator/inputs/run_sections.h"

#include <fmt/format.h>

#include <optional>

#include "estimator/measured.h"
#include "stats/size.h"

namespace spillway::estimator {
namespace {

constexpr double kMostElements = 1e12;

Tier read_tier(KeyValues& values, const std::string& key) {
  const std::string tier = values.choice(key, "device", {"device", "host", "nvme"});
  return tier == "host" ? Tier::kHost : tier == "nvme" ? Tier::kNvme : Tier::kDevice;
}

// The first key of a section that only some runs may have.
std::string first_of_section(const KeyValues& values, std::string_view section) {
  for (const std::string& key : values.unread()) {
    if (key.rfind(section, 0) == 0) return key;
  }
  return {};
}

}  // namespace

double read_size(KeyValues& values, const std::string& key, double otherwise) {
  if (!values.has(key)) {
    values.assume(key, fmt::format("{:g}MiB", otherwise / kMiB));
    return otherwise;
  }
  const std::string text = values.text(key, "");
  const std::optional<double> bytes = parse_bytes(text);
  if (!bytes || *bytes > 1e15) {
    values.complain(fmt::format("{}: '{}' is not allowed; allowed: sizes such as 512MiB, 2GiB", key, text));
    return otherwise;
  }
  return *bytes;
}

void read_communication(KeyValues& values, TrainingRun& run) {
  if (run.framework == Framework::kMegatron) {
    if (const std::string key = first_of_section(values, "communication."); !key.empty())
      values.complain(
          fmt::format("{}: not allowed beside train.framework 'megatron'; allowed: pytorch", key));
    return;
  }
  Communication& out = run.communication;
  const bool deepspeed =
      values.choice("communication.engine", "torch", {"torch", "deepspeed"}) == "deepspeed";
  out.engine = deepspeed ? DataParallelEngine::kDeepspeed : DataParallelEngine::kTorch;
  if (!deepspeed) {
    out.gradients_are_views = values.truth("communication.gradient_as_bucket_view");
    // It says how much is reduced at a time: the buckets hold all gradients whatever their size.
    values.number("communication.bucket_cap_mb", 25, 1, 1e6);
    return;
  }
  out.reduce_bucket = values.number("communication.reduce_bucket_size", out.reduce_bucket, 0, kMostElements);
  out.reduce_buckets = values.truth("communication.overlap_comm") ? 2 : 1;
  if (run.parallel.sharding != DataSharding::kParameters) return;
  out.most_gathered = values.number("communication.max_live_parameters", out.most_gathered, 0, kMostElements);
  out.prefetch = values.number("communication.prefetch_bucket_size", out.prefetch, 0, kMostElements);
  out.keeps_gathered = values.truth("communication.keeps_gathered_weights", true);
}

void read_offload(KeyValues& values, TrainingRun& run) {
  if (run.framework == Framework::kMegatron) {
    if (const std::string key = first_of_section(values, "offload."); !key.empty())
      values.complain(
          fmt::format("{}: not allowed beside train.framework 'megatron'; allowed: pytorch", key));
    return;
  }
  Offload& out = run.offload;
  out.optimizer = read_tier(values, "offload.optimizer");
  out.parameters = read_tier(values, "offload.parameters");
  out.activations = read_tier(values, "offload.activations");
  if (!out.any()) {
    if (const std::string key = first_of_section(values, "offload."); !key.empty())
      values.complain(fmt::format(
          "{}: not allowed where nothing is offloaded; allowed: beside optimizer, parameters or activations "
          "= host or nvme",
          key));
    return;
  }
  constexpr double kGb = 1e9;
  out.buffers = values.whole("offload.buffers", 4, 1, 1024);
  out.buffer_bytes = read_size(values, "offload.buffer", 256 * kMiB);
  if (out.buffer_bytes == 0) values.complain("offload.buffer: '0' is not allowed; allowed: sizes above 0");
  out.host_bandwidth =
      kGb * values.number("offload.host_gb_per_second", kHostBandwidth.value / kGb, 0.001, 1e4);
  out.nvme_bandwidth =
      kGb * values.number("offload.nvme_gb_per_second", kNvmeBandwidth.value / kGb, 0.001, 1e4);
  if (values.has("offload.compute_seconds"))
    out.compute_seconds = values.number("offload.compute_seconds", 0, 0, 1e6);
  out.overlap = values.number("offload.overlap", 1, 0, 1);
}

}  // namespace spillway::estimator
