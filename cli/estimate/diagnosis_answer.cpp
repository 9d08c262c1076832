#include "cli/estimate/diagnosis_answer.h"

#include "cli/size.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;
using estimator::Account;
using estimator::Finding;
using estimator::Measurement;

std::string account_text(const Measurement& measurement) {
  const Account parts = estimator::account(measurement);
  const auto row = [](const char* sign, const char* name, double bytes) {
    return fmt::format("{} {:<40} {:>18.0f} {:>10.3f} GiB\n", sign, name, bytes, bytes / kGiB);
  };
  std::string out = fmt::format(
      "{}: device {}{} ({}), peak allocated {:.3f} GiB, reserved {:.3f} GiB\n", measurement.source,
      measurement.device, measurement.rank ? fmt::format(", rank {}", *measurement.rank) : "",
      measurement.hardware, measurement.allocated.peak / kGiB, measurement.reserved.peak / kGiB);
  return out + row(" ", "requested", parts.requested) + row("+", "rounding", parts.rounding) +
         row("+", "freed, a stream not done with it", parts.pending) +
         row("+", "free in segments in use", parts.inactive_split) +
         row("+", "free segments", parts.cached_free) + row("=", "reserved", parts.reserved);
}

std::string finding_text(const Finding& finding) {
  std::string out = fmt::format("{} ({}): {}\n  cause: {}\n  mitigation: {}\n", finding.rule, finding.source,
                                finding.evidence, finding.cause, finding.mitigation);
  if (finding.saved_bytes > 0) out += fmt::format("  saves up to {:.3f} GiB\n", finding.saved_bytes / kGiB);
  return out;
}

Json account_json(const Measurement& measurement) {
  const Account parts = estimator::account(measurement);
  const auto whole = [](double bytes) { return std::llround(bytes); };
  return {{"source", measurement.source},
          {"hardware", measurement.hardware},
          {"rank", measurement.rank ? Json(*measurement.rank) : Json(nullptr)},
          {"device", measurement.device},
          {"peak_allocated_bytes", whole(measurement.allocated.peak)},
          {"peak_reserved_bytes", whole(measurement.reserved.peak)},
          {"requested_bytes", whole(parts.requested)},
          {"rounding_bytes", whole(parts.rounding)},
          {"pending_bytes", whole(parts.pending)},
          {"inactive_split_bytes", whole(parts.inactive_split)},
          {"cached_free_bytes", whole(parts.cached_free)},
          {"reserved_bytes", whole(parts.reserved)}};
}

Json finding_json(const Finding& finding) {
  return {{"rule", finding.rule},
          {"source", finding.source},
          {"evidence", finding.evidence},
          {"cause", finding.cause},
          {"mitigation", finding.mitigation},
          {"saved_bytes", std::llround(finding.saved_bytes)}};
}

}  // namespace

std::string diagnosis_text(const std::vector<Measurement>& measurements, const estimator::MeasuredRun* run,
                           bool json) {
  const std::vector<Finding> findings = estimator::diagnose(measurements, run);
  if (json) {
    Json out = {{"schema_version", 1}, {"dumps", Json::array()}, {"findings", Json::array()}};
    for (const Measurement& each : measurements) out["dumps"].push_back(account_json(each));
    for (const Finding& each : findings) out["findings"].push_back(finding_json(each));
    return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  }
  std::string out;
  for (const Measurement& each : measurements) out += account_text(each);
  for (const Finding& each : findings) out += finding_text(each);
  if (findings.empty()) out += "nothing found that would save memory\n";
  return out;
}

}  // namespace spillway
