#include "cli/estimate/calibration_answer.h"

#include "cli/size.h"

#include <fmt/format.h>

#include <cmath>

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;
using estimator::CalibratedGroup;
using estimator::Calibration;

std::string gib(const std::optional<double>& bytes) {
  return bytes ? fmt::format("{:.3f}", *bytes / kGiB) : "-";
}

std::string factor_text(const estimator::Factor& factor) {
  if (factor.observations == 0) return "not measured";
  std::string out = fmt::format("x {:.4f}", factor.value);
  if (factor.fixed_bytes > 0) out += fmt::format(" + {} GiB", gib(factor.fixed_bytes));
  if (factor.spread) out += fmt::format(", within {:.1f} %", 100 * *factor.spread);
  return out + fmt::format(", {} measured", factor.observations);
}

std::string row(const char* name, double predicted, double calibrated, const std::optional<double>& measured,
                const std::string& factor) {
  return fmt::format("  {:<24} {:>12} {:>12} {:>12}  {}\n", name, gib(predicted), gib(calibrated),
                     gib(measured), factor);
}

Json whole_or_null(const std::optional<double>& bytes) {
  return bytes ? Json(std::llround(*bytes)) : Json(nullptr);
}

}  // namespace

std::string calibration_text(const Calibration& calibration, double calibrated_peak) {
  std::string out =
      fmt::format("calibrated by runs on {}, key {}\n  {:<24} {:>12} {:>12} {:>12}  factor\n",
                  calibration.hardware, calibration.key, "GiB", "predicted", "calibrated", "measured");
  for (const CalibratedGroup& group : calibration.groups) {
    out += row(estimator::group_name(group.group), group.predicted_bytes, group.calibrated_bytes,
               group.measured_bytes, factor_text(group.factor));
  }
  return out + row("peak", calibration.predicted_peak, calibrated_peak, calibration.measured_peak, "");
}

Json calibration_json(const Calibration& calibration, double calibrated_peak) {
  Json groups = Json::array();
  for (const CalibratedGroup& group : calibration.groups) {
    groups.push_back({{"name", estimator::group_name(group.group)},
                      {"predicted_bytes", std::llround(group.predicted_bytes)},
                      {"calibrated_bytes", std::llround(group.calibrated_bytes)},
                      {"measured_bytes", whole_or_null(group.measured_bytes)},
                      {"factor", group.factor.value},
                      {"fixed_bytes", std::llround(group.factor.fixed_bytes)},
                      {"spread", group.factor.spread ? Json(*group.factor.spread) : Json(nullptr)},
                      {"observations", group.factor.observations}});
  }
  return {{"key", calibration.key},
          {"hardware", calibration.hardware},
          {"groups", groups},
          {"predicted_peak_bytes", std::llround(calibration.predicted_peak)},
          {"calibrated_peak_bytes", std::llround(calibrated_peak)},
          {"measured_peak_bytes", whole_or_null(calibration.measured_peak)}};
}

}  // namespace spillway
