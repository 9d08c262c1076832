#include "cli/calibrate/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/calibrate/evidence.h"
#include "cli/estimate/input.h"
#include "cli/help/values.h"
#include "cli/output.h"
#include "cli/size.h"
#include "estimator/calibration/catalog.h"

namespace spillway {
namespace {

using estimator::CatalogLine;
using estimator::Estimate;
using estimator::Group;
using estimator::kGroups;
using estimator::Measurement;
using estimator::Observation;
using estimator::RankClass;
using estimator::TrainingRun;

struct CalibrateChoices {
  std::vector<std::string> dumps;
  InputChoices input;
  std::string catalog;
  std::string hardware;
  std::string output;
  bool between_steps = false;
  bool json = false;
};

// Pipeline stages are the outermost division of ranks (Megatron-LM, parallel_state.py, order tp-cp-ep-dp-pp).
Result<const RankClass*> rank_class_of(const Measurement& measurement, const TrainingRun& run,
                                       const Estimate& estimate) {
  const int64_t world = run.parallel.world;
  if (!measurement.rank || estimate.ranks.size() == 1) return &estimate.peak();
  if (*measurement.rank >= world) {
    return Status::invalid_argument(
        fmt::format("rank {} is not allowed; allowed: below the run's {} GPUs", *measurement.rank, world));
  }
  const int64_t stage = *measurement.rank / (world / run.parallel.pipeline);
  return &estimate.ranks[static_cast<size_t>(stage)];
}

Result<CatalogLine> line_of(const Measurement& measurement, const TrainingRun& run, const Estimate& estimate,
                            bool between_steps) {
  const Result<const RankClass*> rank = rank_class_of(measurement, run, estimate);
  if (!rank.ok()) return rank.status();
  Result<estimator::GroupBytes> measured =
      estimator::measured_groups(measurement, *rank.value(), between_steps);
  if (!measured.ok()) return measured.take_status();
  CatalogLine out;
  out.signature = estimator::signature_of(run, measurement.hardware);
  out.key = out.signature.key();
  out.source = measurement.source;
  out.rank = measurement.rank.value_or(0);
  out.time_seconds = measurement.time_seconds;
  out.observation = {out.signature.kernels,
                     out.signature.shape,
                     estimator::peak_phase(*rank.value()),
                     estimator::predicted_groups(*rank.value()),
                     measured.value(),
                     rank.value()->peak_bytes,
                     measurement.allocated.peak};
  return out;
}

std::string row(const char* name, double predicted, const std::optional<double>& measured) {
  if (!measured) return fmt::format("  {:<24} {:>12.3f} {:>12} {:>8}\n", name, predicted / kGiB, "-", "-");
  return fmt::format("  {:<24} {:>12.3f} {:>12.3f} {:>8.3f}\n", name, predicted / kGiB, *measured / kGiB,
                     *measured / predicted);
}

std::string text_of(const CatalogLine& line) {
  const Observation& seen = line.observation;
  std::string out =
      fmt::format("{}: rank {} on {}, key {}\n  {:<24} {:>12} {:>12} {:>8}\n", line.source, line.rank,
                  line.signature.hardware, line.key, "GiB", "predicted", "measured", "factor");
  for (size_t i = 0; i < kGroups; ++i) {
    if (seen.predicted[i])
      out += row(estimator::group_name(static_cast<Group>(i)), *seen.predicted[i], seen.measured[i]);
  }
  const bool learned = seen.measured[static_cast<size_t>(Group::kTransient)].has_value();
  return out + row("peak", seen.predicted_peak, seen.measured_peak) +
         fmt::format("  peaks at: {}{}\n", seen.phase,
                     learned ? "" : "; another phase is near, so it says nothing about activations");
}

Result<std::vector<CatalogLine>> lines_of(const CalibrateChoices& choices) {
  Result<RunSource> source = RunSource::open(choices.input);
  if (!source.ok()) return source.take_status();
  Result<TrainingRun> run = source->run();
  if (!run.ok()) return run.take_status();
  Result<Estimate> estimate = estimator::estimate(run.value());
  if (!estimate.ok())
    return Status(estimate.status().code(),
                  fmt::format("{}: {}", choices.input.file, estimate.status().text()));
  Result<std::vector<Measurement>> measurements = read_evidence(choices.dumps, choices.hardware);
  if (!measurements.ok()) return measurements.take_status();
  std::vector<CatalogLine> out;
  for (const Measurement& each : measurements.value()) {
    Result<CatalogLine> line = line_of(each, run.value(), estimate.value(), choices.between_steps);
    if (!line.ok())
      return Status(line.status().code(), fmt::format("{}: {}", each.source, line.status().text()));
    out.push_back(std::move(line.value()));
  }
  return out;
}

int calibrate(const CalibrateChoices& choices) {
  if (const Status status = check_folder(choices.output); !status.ok()) return complain("calibrate", status);
  const Result<std::vector<CatalogLine>> lines = lines_of(choices);
  if (!lines.ok()) return complain("calibrate", lines.status());
  if (!choices.catalog.empty()) {
    if (const Status status = estimator::append_to_catalog(choices.catalog, lines.value()); !status.ok())
      return complain("calibrate", status);
  }
  std::string text;
  for (const CatalogLine& line : lines.value())
    text += choices.json ? estimator::to_text(line) : text_of(line);
  if (const Status status = write_answer(choices.output, text); !status.ok())
    return complain("calibrate", status);
  return 0;
}

}  // namespace

std::function<std::optional<int>()> add_calibrate_command(CLI::App& app) {
  auto choices = std::make_shared<CalibrateChoices>();
  CLI::App* command = app.add_subcommand(
      "calibrate", "Compare what a run was measured to take with its estimate, and remember it");
  command
      ->add_option(
          "DUMP", choices->dumps,
          "Spillway dumps, torch.cuda.memory_stats() as JSON, or PyTorch memory snapshots, of one run")
      ->required();
  const auto add = [&](const char* name, auto& value, const char* kind, const char* text) {
    return command->add_option(name, value, text)->type_name(kind);
  };
  add("--run", choices->input.file, "FILE", "The run that was measured, as `spillway estimate` reads it")
      ->required();
  add("--catalog", choices->catalog, "FILE",
      "Append one line for each dump to this file, for `spillway estimate --catalog`")
      ->check(file_to_write());
  add("--set", choices->input.sets, "KEY=VALUE", "Another value for a key of the run; may be repeated");
  add("--model", choices->input.model, "FILE", "The model's config.json, beside a DeepSpeed file");
  add("--gpus", choices->input.gpus, "N", "How many GPUs the run has")->check(whole(1, 1 << 20));
  add("--gpu-kind", choices->input.gpu_kind, "NAME", "Of a Megatron-LM run: a100, h100, gb200");
  add("--hardware", choices->hardware, "NAME",
      "The device's name, where the dumps have none or another one is wanted");
  command->add_flag("--between-steps", choices->between_steps,
                    "The dumps were written between two steps: what is allocated then is held always");
  add("--output", choices->output, "FILE", "Write the answer to this file instead of stdout")
      ->check(file_to_write());
  command->add_flag("--json", choices->json, "The catalog's lines instead of a table");
  command->group("Plan");
  set_examples(
      *command,
      {{"What was measured beside what was predicted", "spillway calibrate dump.json --run run.toml"},
       {"And remembered", "spillway calibrate rank*.json --run run.toml --catalog runs.jsonl"}});
  return [choices, command]() -> std::optional<int> {
    if (!command->parsed()) return std::nullopt;
    return calibrate(*choices);
  };
}

}  // namespace spillway
