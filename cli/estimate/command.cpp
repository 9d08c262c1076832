#include "cli/estimate/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/estimate/answer_json.h"
#include "cli/estimate/answer_text.h"
#include "cli/estimate/input.h"
#include "cli/estimate/lines.h"
#include "cli/output.h"

namespace spillway {
namespace {

struct Choices {
  InputChoices input;
  std::string lines;
  std::vector<std::string> gpus;
  bool accuracy = false;
  bool json = false;
};

int complain(const Status& status) {
  std::string text = status.text();
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::fprintf(stderr, "spillway estimate: %s\n", text.c_str());
  return 1;
}

int answer_lines(const Choices& choices) {
  Result<LineAnswers> answers = estimate_lines(choices.lines);
  if (!answers.ok()) return complain(answers.status());
  const Status written =
      write_stdout(choices.accuracy ? accuracy_markdown(answers->comparisons) : answers->json);
  if (!written.ok()) return complain(written);
  std::fputs(accuracy_summary(answers->comparisons).c_str(), stderr);
  return 0;
}

int answer_file(const Choices& choices) {
  std::vector<estimator::GpuMemory> gpus;
  for (const std::string& name : choices.gpus) {
    Result<estimator::GpuMemory> gpu = estimator::gpu_memory(name);
    if (!gpu.ok()) return complain(gpu.status());
    gpus.push_back(std::move(gpu.value()));
  }
  Result<estimator::TrainingRun> run = read_input(choices.input);
  if (!run.ok()) return complain(run.status());
  Result<estimator::Estimate> estimate = estimator::estimate(run.value());
  if (!estimate.ok())
    return complain(Status(estimate.status().code(),
                           fmt::format("{}: {}", choices.input.file, estimate.status().text())));
  const Status written =
      write_stdout(choices.json ? answer_json(run.value(), estimate.value(), gpus).dump(2) + "\n"
                                : answer_text(run.value(), estimate.value(), gpus));
  if (!written.ok()) return complain(written);
  const double needed = estimator::needed_bytes(run.value(), estimate.value());
  const bool fits = std::all_of(gpus.begin(), gpus.end(), [&](const estimator::GpuMemory& gpu) {
    return estimator::verdict(needed, gpu) != estimator::Verdict::kNo;
  });
  return fits ? 0 : 2;
}

int run_estimate(const Choices& choices) {
  if (choices.lines.empty() == choices.input.file.empty())
    return complain(Status::invalid_argument("name one FILE, or recorded runs with --jsonl"));
  return choices.lines.empty() ? answer_file(choices) : answer_lines(choices);
}

}  // namespace

std::function<std::optional<int>()> add_estimate_command(CLI::App& app) {
  auto choices = std::make_shared<Choices>();
  CLI::App* command =
      app.add_subcommand("estimate", "Predict a training run's device memory before it is run");
  command->add_option("FILE", choices->input.file,
                      "A run file (.toml), a Hugging Face config.json, a DeepSpeed JSON, Megatron-LM's "
                      "model_config.yaml or its arguments");
  command
      ->add_option(
          "--gpu", choices->gpus,
          "GPUs to judge by, h100-80 and such, or sizes (exit code 2 where it does not fit one of them)")
      ->delimiter(',')
      ->default_str("h100-80");
  command->add_option("--set", choices->input.sets,
                      "Another value for a key of the run, such as train.micro_batch=4; may be repeated");
  command->add_option("--model", choices->input.model, "The model's config.json, beside a DeepSpeed file");
  command->add_option("--gpus", choices->input.gpus, "How many GPUs the run has")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--gpu-kind", choices->input.gpu_kind, "Of a Megatron-LM run: a100, h100, gb200");
  command->add_option(
      "--jsonl", choices->lines,
      "Recorded Megatron-LM runs, one JSON object a line: one answer a line, and errors against what "
      "was measured on stderr");
  command->add_flag("--accuracy", choices->accuracy, "With --jsonl: the errors as Markdown tables instead");
  command->add_flag("--json", choices->json, "The answer as JSON");
  return [choices, command]() -> std::optional<int> {
    if (!command->parsed()) return std::nullopt;
    if (choices->gpus.empty()) choices->gpus = {"h100-80"};
    return run_estimate(*choices);
  };
}

}  // namespace spillway
