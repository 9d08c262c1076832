#include "cli/estimate/lines.h"

#include <fmt/format.h>

#include <sstream>

#include "cli/estimate/answer_json.h"
#include "cli/estimate/input.h"

namespace spillway {
namespace {

bool has_experts(const estimator::TrainingRun& run) {
  for (const estimator::Layer& layer : run.model.towers.back().layers) {
    for (const estimator::Block& block : layer) {
      if (std::holds_alternative<estimator::Experts>(block)) return true;
    }
  }
  return false;
}

Result<nlohmann::ordered_json> answer_line(const std::string& text, Comparison& out) {
  Result<estimator::RecordedRun> recorded = estimator::read_recorded_run(text);
  if (!recorded.ok()) return recorded.take_status();
  out.recorded = std::move(recorded.value());
  Result<estimator::TrainingRun> run = estimator::read_megatron(out.recorded.run);
  Status problem = run.ok() ? Status() : run.take_status();
  if (problem.ok()) {
    Result<estimator::Estimate> estimate = estimator::estimate(run.value());
    if (estimate.ok()) {
      out.has_experts = has_experts(run.value());
      out.estimate = std::move(estimate.value());
      return answer_json(run.value(), *out.estimate);
    }
    problem = estimate.take_status();
  }
  out.refused = problem.text();
  return nlohmann::ordered_json{{"refused", out.refused}};
}

}  // namespace

Result<LineAnswers> estimate_lines(const std::string& path) {
  Result<std::string> text = read_text_file(path);
  if (!text.ok()) return text.take_status();
  std::istringstream lines(text.value());
  LineAnswers out;
  std::string line;
  for (size_t number = 1; std::getline(lines, line); ++number) {
    if (line.empty()) continue;
    Result<nlohmann::ordered_json> answer = answer_line(line, out.comparisons.emplace_back());
    if (!answer.ok())
      return Status::invalid_argument(fmt::format("{}:{}: {}", path, number, answer.status().text()));
    out.json += answer->dump() + "\n";
  }
  if (out.comparisons.empty())
    return Status::invalid_argument(
        fmt::format("{}: empty; allowed: recorded runs, one JSON object a line", path));
  return out;
}

}  // namespace spillway
