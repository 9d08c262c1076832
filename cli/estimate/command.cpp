#include "cli/estimate/command.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "cli/estimate/accuracy.h"
#include "cli/estimate/answer_json.h"
#include "cli/output.h"
#include "estimator/estimate.h"
#include "estimator/inputs/megatron_files.h"

namespace spillway {
namespace {

struct Choices {
  std::string file;
  std::string lines;
  bool accuracy = false;
  bool json = false;
};

int complain(const Status& status) {
  std::fprintf(stderr, "spillway estimate: %s\n", status.text().c_str());
  return 1;
}

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status::io(fmt::format("{}: cannot be read", path));
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

bool has_experts(const estimator::Run& run) {
  for (const estimator::Layer& layer : run.model.towers.back().layers) {
    for (const estimator::Block& block : layer) {
      if (std::holds_alternative<estimator::Experts>(block)) return true;
    }
  }
  return false;
}

// One answer, a line of JSON; a run that cannot be estimated says why.
Result<nlohmann::ordered_json> answer_line(const std::string& text, Comparison& out) {
  Result<estimator::RecordedRun> recorded = estimator::read_recorded_run(text);
  if (!recorded.ok()) return recorded.take_status();
  out.recorded = std::move(recorded.value());
  Result<estimator::Run> run = estimator::read_megatron(out.recorded.run);
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

int estimate_lines(const Choices& choices) {
  Result<std::string> text = read_file(choices.lines);
  if (!text.ok()) return complain(text.status());
  std::istringstream lines(text.value());
  std::vector<Comparison> comparisons;
  std::string line, answers;
  for (size_t number = 1; std::getline(lines, line); ++number) {
    if (line.empty()) continue;
    Comparison& comparison = comparisons.emplace_back();
    Result<nlohmann::ordered_json> answer = answer_line(line, comparison);
    if (!answer.ok()) {
      return complain(
          Status::invalid_argument(fmt::format("{}:{}: {}", choices.lines, number, answer.status().text())));
    }
    answers += answer->dump() + "\n";
  }
  const std::string command = fmt::format("spillway estimate --accuracy --jsonl {}", choices.lines);
  const Status written = write_stdout(choices.accuracy ? accuracy_markdown(comparisons, command) : answers);
  if (!written.ok()) return complain(written);
  std::fputs(accuracy_summary(comparisons).c_str(), stderr);
  return 0;
}

}  // namespace

std::function<std::optional<int>()> add_estimate_command(CLI::App& app) {
  auto choices = std::make_shared<Choices>();
  CLI::App* command =
      app.add_subcommand("estimate", "Predict a training run's device memory before it is run");
  command->add_option("FILE", choices->file, "What is to be run");
  command->add_option(
      "--jsonl", choices->lines,
      "Recorded Megatron-LM runs, one JSON object a line: one answer a line, and errors against what "
      "was measured on stderr");
  command->add_flag("--accuracy", choices->accuracy, "With --jsonl: the errors as Markdown tables instead");
  command->add_flag("--json", choices->json, "The answer as JSON");
  return [choices, command]() -> std::optional<int> {
    if (!command->parsed()) return std::nullopt;
    return estimate_lines(*choices);
  };
}

}  // namespace spillway
