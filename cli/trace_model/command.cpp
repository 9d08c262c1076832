#include "cli/trace_model/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/help/values.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/replay/program.h"
#include "cli/replay/run.h"
#include "cli/size.h"
#include "cli/trace/file.h"
#include "cli/trace/snapshot.h"
#include "cli/trace_model/answer.h"
#include "cli/trace_model/recorded.h"
#include "stats/size.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct TraceModelChoices {
  CLI::App* command = nullptr;
  TraceSetting setting;
  std::string capacity;
  std::string out;
  std::string output;
  bool no_bytes = false;
  bool json = false;
};

// A folder that is gone afterwards.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_((fs::temp_directory_path() / "spillway-trace-model-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }

  bool ok() const { return !path_.empty(); }
  std::string file(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

Status invalid(const std::string& text) {
  return Status::invalid_argument(text);
}

Status check(const TraceModelChoices& choices, std::optional<uint64_t>* capacity) {
  const size_t colon = choices.setting.function.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == choices.setting.function.size()) {
    return invalid(fmt::format("'{}' names no function; allowed: FILE.py:function or package.module:function",
                               choices.setting.function));
  }
  const TraceSetting& setting = choices.setting;
  if (setting.tensors == "fake" && is_of_device(setting))
    return invalid("--no-bytes is of the simulated device; allowed: --tensors device");
  if (setting.bound && is_of_device(setting))
    return invalid("--bound is of fake tensors; on the simulated device sizes are what the program computes");
  if (setting.world_size > 0 && setting.rank >= setting.world_size) {
    return invalid(fmt::format("--rank {}: allowed: 0 to {}, below --world-size", choices.setting.rank,
                               choices.setting.world_size - 1));
  }
  if (choices.capacity.empty()) return {};
  *capacity = parse_size(choices.capacity);
  if (!capacity->has_value()) {
    return invalid(fmt::format("--capacity '{}' is no size; allowed: such as 80GiB", choices.capacity));
  }
  if (**capacity < kLeastCapacityBytes) {
    return invalid(
        fmt::format("--capacity {}: allowed: at least 2MiB, the page in which a device gives its memory",
                    choices.capacity));
  }
  return {};
}

Status replay(const Trace& recorded, TracedModel* model) {
  const ReplayProgram program = compile(recorded);
  RunRequest request;
  request.capacity_bytes = 4 * program.peak_live_bytes + (uint64_t{4} << 30);
  Result<RunResult> unlimited = run_in_worker(program, request);
  if (!unlimited.ok()) return unlimited.take_status();
  model->unlimited = unlimited.value();
  if (!model->capacity_bytes) return {};
  request.capacity_bytes = *model->capacity_bytes;
  Result<RunResult> limited = run_in_worker(program, request);
  if (!limited.ok()) return limited.take_status();
  model->at_capacity = limited.value();
  return {};
}

// Beside the peak that Python counted stands the trace's own: they are one number.
Status read(const TemporaryFolder& folder, TracedModel* model, Trace* recorded) {
  Result<Trace> trace = read_snapshot(folder.file("trace.pickle"), {model->summary.at("device").get<int>()});
  if (!trace.ok()) return trace.take_status();
  *recorded = std::move(trace.value());
  if (recorded->peak_live_bytes != model->summary.at("peak_live_bytes").get<uint64_t>()) {
    return Status::io("the trace and its summary do not agree on the peak");
  }
  return {};
}

Status keep(const TemporaryFolder& folder, const std::string& path) {
  Result<std::string> bytes = read_file(folder.file("trace.pickle"));
  return bytes.ok() ? write_file(path, bytes.value()) : bytes.take_status();
}

Result<int> run(const TraceModelChoices& choices) {
  TracedModel model;
  for (const std::string& file : {choices.out, choices.output})
    if (Status status = check_folder(file); !status.ok()) return status;
  if (Status status = check(choices, &model.capacity_bytes); !status.ok()) return status;
  const TemporaryFolder folder;
  if (!folder.ok()) return Status::io("no temporary folder");
  Result<std::optional<Json>> summary = record(choices.setting, folder.file("trace.pickle"));
  if (!summary.ok()) return summary.take_status();
  if (!summary->has_value()) return 1;
  model.summary = std::move(*summary.value());
  Progress progress;
  progress.show("replaying " + choices.setting.function);
  Trace recorded;
  Status status = read(folder, &model, &recorded);
  if (status.ok()) status = replay(recorded, &model);
  if (status.ok() && !choices.out.empty()) status = keep(folder, choices.out);
  progress.clear();
  model.trace_path = choices.out;
  if (status.ok())
    status = write_answer(choices.output, choices.json ? to_json(model).dump(2) + "\n" : to_text(model));
  if (!status.ok()) return status;
  return model.fits() ? 0 : 2;
}

int run_and_complain(const TraceModelChoices& choices) {
  Result<int> code = run(choices);
  if (code.ok()) return code.value();
  std::string text = code.status().text();
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::fprintf(stderr, "spillway trace-model: %s\n", text.c_str());
  return 1;
}

}  // namespace

std::function<std::optional<int>()> add_trace_model_command(CLI::App& app) {
  auto choices = std::make_shared<TraceModelChoices>();
  choices->command =
      app.add_subcommand("trace-model",
                         "Run a model's training step without a GPU, on fake tensors or on the "
                         "simulated device, and replay what it allocates (exit code 2 where "
                         "the capacity is too small)");
  choices->command
      ->add_option("FUNCTION", choices->setting.function,
                   "FILE.py:function or package.module:function, which makes the model on \"cuda\" and "
                   "returns a function for one step")
      ->required();
  choices->command->group("Plan");
  choices->command
      ->add_option("--capacity", choices->capacity,
                   "Memory that the allocator may have: a size (75GiB), or a GPU's (h100-80)")
      ->type_name("SIZE")
      ->transform(name_of_gpu());
  choices->command
      ->add_option("--steps", choices->setting.steps,
                   "How many are run; the second has the optimizer's states")
      ->type_name("N")
      ->check(whole(1, 100))
      ->capture_default_str();
  choices->command
      ->add_option(
          "--tensors", choices->setting.tensors,
          "fake: sizes alone, no memory of the host; device: on the simulated device, as dryrun; auto: fake, "
          "and on the device where those refuse the program")
      ->type_name("KIND")
      ->check(one_of({"auto", "fake", "device"}))
      ->capture_default_str();
  choices->command
      ->add_option("--bound", choices->setting.bound,
                   "With fake tensors: what nonzero(), x[mask] and unique() find, as a share of all elements")
      ->type_name("SHARE")
      ->check(number(0, 1));
  CLI::Option* world =
      choices->command
          ->add_option("--world-size", choices->setting.world_size,
                       "Ranks of a job, of which one runs; the others are taken to do the same")
          ->type_name("N")
          ->check(whole(1, 1 << 20));
  choices->command->add_option("--rank", choices->setting.rank, "Which one runs")
      ->type_name("R")
      ->check(whole(0, (1 << 20) - 1))
      ->needs(world);
  choices->command->add_option("--devices", choices->setting.devices, "How many GPUs a node has")
      ->type_name("N")
      ->check(whole(1, 16))
      ->capture_default_str();
  choices->command->add_flag(
      "--no-bytes", choices->no_bytes,
      "On the simulated device: no memory of the host is taken, and no value is computed");
  choices->command->add_option("--out", choices->out, "Keep the trace in this file, for `spillway replay`")
      ->type_name("FILE")
      ->check(file_to_write());
  choices->command->add_flag("--strict", choices->setting.strict,
                             "Whatever makes the trace inexact is an error");
  choices->command->add_option("--output", choices->output, "Write the answer to this file instead of stdout")
      ->type_name("FILE")
      ->check(file_to_write());
  choices->command->add_flag("--json", choices->json, "JSON instead of text");
  set_examples(*choices->command,
               {{"What does a step of this model take?", "spillway trace-model train.py:make_step"},
                {"Would it fit an A100?", "spillway trace-model my.models:gpt --capacity a100-40"},
                {"Rank 511 of a sharded job?",
                 "spillway trace-model train.py:make_step --world-size 512 --rank 511 --devices 8"}});
  return [choices]() -> std::optional<int> {
    if (!choices->command->parsed()) return std::nullopt;
    choices->setting.keeps_bytes = !choices->no_bytes;
    return run_and_complain(*choices);
  };
}

}  // namespace spillway
