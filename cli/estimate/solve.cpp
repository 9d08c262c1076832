#include "cli/estimate/solve.h"

#include <fmt/format.h>

#include "cli/estimate/columns.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;
using estimator::GpuMemory;
using estimator::Setting;
using estimator::Solution;

std::string text_of(const Solution& solution, const GpuMemory& gpu) {
  std::string out;
  std::vector<Column> columns;
  if (solution.fits) {
    out = fmt::format("{}: {} fits", gpu.name, solution.fits->text);
    columns.push_back({"fits", solution.fits->run, solution.fits->estimate});
  } else {
    out = fmt::format("{}: no setting fits", gpu.name);
  }
  if (solution.misses) {
    out += fmt::format("{} {} does not", solution.fits ? "," : ", not even", solution.misses->text);
    if (!solution.fits) out.resize(out.size() - std::string_view(" does not").size());
    columns.push_back({"does not fit", solution.misses->run, solution.misses->estimate});
  } else {
    out += ", the furthest there is";
  }
  return out + "\n" + columns_text(columns, {gpu}, false);
}

Json json_of(const std::optional<Setting>& setting, const GpuMemory& gpu) {
  if (!setting) return nullptr;
  Json out = {{"setting", setting->text}};
  out.update(setting_json(setting->run, setting->estimate, {gpu}));
  return out;
}

}  // namespace

Result<Answer> answer_solve(const Question& question, const std::string& name) {
  const Result<estimator::Unknown> unknown = estimator::unknown_named(name);
  if (!unknown.ok()) return unknown.status();
  Answer out;
  Json rows = Json::array();
  for (const GpuMemory& gpu : question.gpus) {
    Result<Solution> solution = estimator::solve(question.run, unknown.value(), gpu, question.estimator);
    if (!solution.ok()) return solution.take_status();
    out.yes = out.yes && solution->fits.has_value();
    out.text += text_of(solution.value(), gpu);
    rows.push_back({{"gpu", gpu.name},
                    {"memory_bytes", static_cast<int64_t>(gpu.bytes)},
                    {"fits", json_of(solution->fits, gpu)},
                    {"does_not_fit", json_of(solution->misses, gpu)}});
  }
  if (question.json) out.text = Json{{"schema_version", 1}, {"solve", name}, {"gpus", rows}}.dump(2) + "\n";
  return out;
}

}  // namespace spillway
