#include "cli/estimate/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/calibrate/evidence.h"
#include "cli/estimate/answer_json.h"
#include "cli/estimate/answer_text.h"
#include "cli/estimate/calibration_answer.h"
#include "cli/estimate/diagnosis_answer.h"
#include "cli/estimate/html.h"
#include "cli/estimate/lines.h"
#include "cli/estimate/plan.h"
#include "cli/estimate/question.h"
#include "cli/estimate/serve.h"
#include "cli/estimate/solve.h"
#include "cli/estimate/sweep.h"
#include "cli/estimate/what_if.h"
#include "cli/help/values.h"
#include "cli/output.h"
#include "estimator/inputs/hugging_face.h"
#include "estimator/inputs/known_models.h"

namespace spillway {
namespace {

struct EstimateChoices {
  InputChoices input;
  std::string lines;
  std::vector<std::string> gpus;
  std::string solve;
  std::vector<std::string> sweeps;
  std::vector<std::string> what_if;
  PlanChoices plan;
  std::string catalog;
  std::string hardware;
  std::vector<std::string> dumps;
  std::string html;
  std::string output;
  bool accuracy = false;
  bool types = false;
  bool models = false;
  bool json = false;
};

int answer_lines(const EstimateChoices& choices) {
  Result<LineAnswers> answers = estimate_lines(choices.lines);
  if (!answers.ok()) return complain("estimate", answers.status());
  const Status written = write_answer(
      choices.output, choices.accuracy ? accuracy_markdown(answers->comparisons) : answers->json);
  if (!written.ok()) return complain("estimate", written);
  std::fputs(accuracy_summary(answers->comparisons).c_str(), stderr);
  return 0;
}

Status add_catalog(const EstimateChoices& choices, Question& question, std::string& damaged) {
  Result<std::string> text = read_text_file(choices.catalog);
  if (!text.ok()) return text.take_status();
  auto catalog = std::make_shared<estimator::Catalog>(estimator::read_catalog(text.value()));
  if (!catalog->damaged.empty()) damaged = fmt::format("{}: {}", choices.catalog, catalog->damaged);
  Result<estimator::CalibratedEstimator> calibrated =
      estimator::CalibratedEstimator::open(std::move(catalog), question.run, choices.hardware);
  if (!calibrated.ok()) {
    return {calibrated.status().code(),
            fmt::format("{}: {}", damaged.empty() ? choices.catalog : damaged, calibrated.status().text())};
  }
  question.estimator = calibrated.value();
  question.calibrated = std::move(calibrated.value());
  return {};
}

struct Gpus {
  std::vector<estimator::GpuMemory> list;
  std::vector<std::string> warnings;  // of names that mean several
};

Result<Gpus> read_gpus(const EstimateChoices& choices) {
  Gpus out;
  for (const std::string& name : choices.gpus) {
    Result<estimator::GpuMemory> gpu = estimator::gpu_memory(name);
    if (!gpu.ok()) return gpu.take_status();
    out.list.push_back(std::move(gpu.value()));
    if (std::string text = estimator::gpu_ambiguity(name); !text.empty())
      out.warnings.push_back(std::move(text));
  }
  return out;
}

Result<Question> read_question(const EstimateChoices& choices, RunSource source, std::string& damaged) {
  Result<Gpus> gpus = read_gpus(choices);
  if (!gpus.ok()) return gpus.take_status();
  Result<estimator::TrainingRun> run = source.run();
  if (!run.ok()) return run.take_status();
  std::vector<std::string>& warnings = run->notes.warnings;
  warnings.insert(warnings.end(), gpus->warnings.begin(), gpus->warnings.end());
  Question out{std::move(source), std::move(run.value()), estimator::estimate, {}, std::move(gpus->list),
               choices.json};
  if (choices.catalog.empty()) return out;
  if (Status status = add_catalog(choices, out, damaged); !status.ok()) return status;
  return out;
}

// The estimate itself, by every way it is shown.
Result<Answer> answer_estimate(const Question& question, const std::string& html) {
  Result<estimator::Estimate> estimate = question.estimator(question.run);
  if (!estimate.ok()) return estimate.take_status();
  const double peak = estimate->peak().peak_bytes;
  std::optional<estimator::Calibration> calibration;
  if (question.calibrated) {
    Result<estimator::Calibration> explained = question.calibrated->explain(question.run);
    if (!explained.ok()) return explained.take_status();
    calibration = std::move(explained.value());
  }
  Answer out;
  if (question.json) {
    nlohmann::ordered_json json = answer_json(question.run, estimate.value(), question.gpus);
    if (calibration) json["calibration"] = calibration_json(*calibration, peak);
    out.text = json.dump(2) + "\n";
  } else {
    out.text = answer_text(question.run, estimate.value(), question.gpus);
    if (calibration) out.text += calibration_text(*calibration, peak);
  }
  if (!html.empty()) {
    const std::string page = answer_html(question, estimate.value(), made_by(SPILLWAY_VERSION));
    if (Status status = write_and_say(html, page); !status.ok()) return status;
  }
  out.yes = worst_verdict(estimator::needed_bytes(question.run, estimate.value()), question.gpus) !=
            estimator::Verdict::kNo;
  return out;
}

// What is searched or explained by layers has none to look at in a model of images.
Status needs_layers(const char* option, const RunSource& source) {
  if (!source.makes_images()) return {};
  return Status::unsupported(fmt::format(
      "{}: not modelled for a model of images; allowed: --solve batch, --sweep, --what-if", option));
}

Result<Answer> answer(const EstimateChoices& choices, const Question& question) {
  if (choices.plan.plan) {
    if (Status status = needs_layers("--plan", question.source); !status.ok()) return status;
  }
  if (!choices.solve.empty()) return answer_solve(question, choices.solve);
  if (!choices.sweeps.empty()) return answer_sweep(question, choices.sweeps);
  if (!choices.what_if.empty()) return answer_what_if(question, choices.what_if);
  if (choices.plan.plan) return answer_plan(question, choices.plan);
  return answer_estimate(question, choices.html);
}

// On stderr, unless the answer holds them.
void warn(const EstimateChoices& choices, const Question& question) {
  const bool held = choices.json && choices.solve.empty() && choices.sweeps.empty() &&
                    choices.what_if.empty() && !choices.plan.plan;
  if (held) return;
  for (const std::string& warning : question.run.notes.warnings)
    std::fprintf(stderr, "spillway estimate: warning: %s\n", warning.c_str());
}

// What a server holds is no question of a training run's.
std::string serving_conflict(const EstimateChoices& choices) {
  const bool others = !choices.solve.empty() || !choices.sweeps.empty() || !choices.what_if.empty() ||
                      !choices.html.empty() || !choices.dumps.empty() || !choices.catalog.empty();
  if (others)
    return "--serve, or [serve], goes without --solve, --sweep, --what-if, --html, --dump, --catalog";
  if (!choices.input.allocator.empty())
    return "--allocator does not go with --serve: a server takes its share at once";
  if (!choices.input.adapter.empty()) return "--adapter does not go with --serve: adapters are not served";
  return "";
}

int answer_serving(const EstimateChoices& choices, const RunSource& source) {
  if (const std::string text = serving_conflict(choices); !text.empty())
    return complain("estimate", Status::invalid_argument(text));
  Result<Gpus> gpus = read_gpus(choices);
  if (!gpus.ok()) return complain("estimate", gpus.status());
  Result<estimator::ServingRun> run = source.serving();
  if (!run.ok()) return complain("estimate", run.status());
  const estimator::ServingSettings& settings = run->settings;
  const int64_t ranks = settings.tensor * settings.pipeline * settings.data;
  if (choices.plan.plan) {
    Result<Answer> answered = answer_serving_plan(source, gpus->list, choices.plan,
                                                  std::max(choices.input.gpus, ranks), choices.json);
    if (!answered.ok()) return complain("estimate", answered.status());
    if (const Status written = write_answer(choices.output, answered->text); !written.ok())
      return complain("estimate", written);
    return answered->yes ? 0 : 2;
  }
  if (choices.input.gpus > 0 && choices.input.gpus != ranks)
    return complain("estimate", Status::invalid_argument(fmt::format(
                                    "--gpus {}: the server has {}; allowed: the product of serve.tensor_"
                                    "parallel_size, pipeline_parallel_size and data_parallel_size",
                                    choices.input.gpus, ranks)));
  std::vector<std::string>& warnings = run->notes.warnings;
  warnings.insert(warnings.end(), gpus->warnings.begin(), gpus->warnings.end());
  const Answer answered = answer_serve(run.value(), gpus->list, choices.json);
  if (const Status written = write_answer(choices.output, answered.text); !written.ok())
    return complain("estimate", written);
  if (!choices.json) {
    for (const std::string& warning : warnings)
      std::fprintf(stderr, "spillway estimate: warning: %s\n", warning.c_str());
  }
  return answered.yes ? 0 : 2;
}

int answer_file(const EstimateChoices& choices) {
  Result<RunSource> source = RunSource::open(choices.input);
  if (!source.ok()) return complain("estimate", source.status());
  const bool serves = choices.input.serve || source->asks_to_serve();
  if (serves && !source->makes_images()) return answer_serving(choices, source.value());
  std::string damaged;
  const Result<Question> question = read_question(choices, std::move(source.value()), damaged);
  if (!question.ok()) return complain("estimate", question.status());
  const Result<Answer> answered = answer(choices, question.value());
  if (!answered.ok()) {
    const std::string& text = answered.status().text();
    const bool named = text.rfind(choices.input.file, 0) == 0 || text.rfind("--", 0) == 0;
    return complain("estimate", Status(answered.status().code(),
                                       named ? text : fmt::format("{}: {}", choices.input.file, text)));
  }
  if (const Status written = write_answer(choices.output, answered.value().text); !written.ok())
    return complain("estimate", written);
  warn(choices, question.value());
  if (!damaged.empty()) return complain("estimate", Status::invalid_argument(damaged));
  return answered.value().yes ? 0 : 2;
}

int answer_dumps(const EstimateChoices& choices) {
  const Result<std::vector<estimator::Measurement>> measurements =
      read_evidence(choices.dumps, choices.hardware);
  if (!measurements.ok()) return complain("estimate", measurements.status());
  std::string text;
  if (choices.input.file.empty()) {
    text = diagnosis_text(measurements.value(), nullptr, choices.json);
  } else {
    std::string damaged;
    Result<RunSource> source = RunSource::open(choices.input);
    if (!source.ok()) return complain("estimate", source.status());
    if (const Status status = needs_layers("--dump", source.value()); !status.ok())
      return complain("estimate", status);
    const Result<Question> question = read_question(choices, std::move(source.value()), damaged);
    if (!question.ok()) return complain("estimate", question.status());
    const Result<estimator::Estimate> estimate = question.value().estimator(question.value().run);
    if (!estimate.ok())
      return complain("estimate", Status(estimate.status().code(), fmt::format("{}: {}", choices.input.file,
                                                                               estimate.status().text())));
    const estimator::MeasuredRun run{question.value().run, estimate.value()};
    text = diagnosis_text(measurements.value(), &run, choices.json);
  }
  const Status written = write_answer(choices.output, text);
  return written.ok() ? 0 : complain("estimate", written);
}

// Says what cannot be asked together, in one line; empty where all is well.
std::string conflict(const EstimateChoices& choices) {
  if (choices.accuracy && choices.lines.empty()) return "--accuracy goes with --jsonl";
  if (!choices.hardware.empty() && choices.catalog.empty() && choices.dumps.empty())
    return "--hardware goes with --catalog or --dump";
  const int questions = int{!choices.solve.empty()} + int{!choices.sweeps.empty()} +
                        int{!choices.what_if.empty()} + int{!choices.html.empty()} +
                        int{!choices.dumps.empty()} + int{choices.plan.plan};
  if (!choices.lines.empty()) {
    const InputChoices& input = choices.input;
    return input.file.empty() && !input.serve && input.weights.empty() && input.model.empty() &&
                   input.gpu_kind.empty() && input.read_as.empty() && input.sets.empty() && input.gpus == 0 &&
                   input.allocator.empty() && questions == 0 && choices.catalog.empty()
               ? ""
               : "--jsonl stands alone: without FILE and other questions";
  }
  if (questions > 1) return "choose one of --solve, --sweep, --what-if, --plan, --html, --dump";
  if (!choices.plan.plan && (!choices.plan.allow.empty() || !choices.plan.framework.empty()))
    return "--allow and --for go with --plan";
  if (choices.input.file.empty() && choices.dumps.empty())
    return "name one FILE, or recorded runs with --jsonl";
  if (!choices.dumps.empty() && !choices.catalog.empty()) return "--catalog does not go with --dump";
  return "";
}

int print_types() {
  std::vector<std::string_view> types = estimator::known_types();
  std::sort(types.begin(), types.end());
  const Status written = write_stdout(fmt::format("{}\n", fmt::join(types, "\n")));
  return written.ok() ? 0 : complain("estimate", written);
}

int print_models() {
  std::string out;
  for (const estimator::KnownModel& model : estimator::known_models())
    out += fmt::format("{:<30} {:>9.3f}e9 parameters  {}{}\n", model.name, model.billions, model.repository,
                       model.source == estimator::SizesSource::kNone ? "  (sizes not checked)" : "");
  const Status written = write_stdout(out);
  return written.ok() ? 0 : complain("estimate", written);
}

int run_estimate(const EstimateChoices& choices) {
  if (choices.types) return print_types();
  if (choices.models) return print_models();
  if (const std::string text = conflict(choices); !text.empty())
    return complain("estimate", Status::invalid_argument(text));
  if (!choices.lines.empty()) return answer_lines(choices);
  return choices.dumps.empty() ? answer_file(choices) : answer_dumps(choices);
}

void add_input_options(CLI::App& command, EstimateChoices& choices) {
  const auto add = [&](const char* name, auto& value, const char* kind, const char* text) {
    return command.add_option(name, value, text)->type_name(kind)->group("What is run");
  };
  command.add_option(
      "FILE", choices.input.file,
      "A run file (.toml), a Hugging Face config.json, diffusers' model_index.json, a DeepSpeed JSON, "
      "Megatron-LM's "
      "model_config.yaml or its arguments, a recipe of Axolotl, LLaMA-Factory, torchtune, NeMo "
      "Automodel or NeMo RL, TrainingArguments, accelerate's YAML; or a model's name, such as llama-3.1-8b");
  add("--gpu", choices.gpus, "NAME,SIZE",
      "GPUs to judge by, h100-80 and such, or sizes (exit code 2 where it does not fit one of them)")
      ->delimiter(',')
      ->check(names_of_gpus())
      ->default_str("h100-80");
  add("--set", choices.input.sets, "KEY=VALUE",
      "Another value for a key of the run, such as train.micro_batch=4; may be repeated");
  add("--model", choices.input.model, "FILE",
      "The model's config.json, or its name, beside a DeepSpeed file or a recipe");
  add("--as", choices.input.read_as, "TYPE",
      "Read a model whose type is not modelled as another, such as llama: a guess, which is said");
  add("--adapter", choices.input.adapter, "KIND",
      "What is trained beside a frozen model: lora, rslora, dora, qlora, ia3, prompt, or PEFT's "
      "adapter_config.json");
  add("--quant", choices.input.weights, "KIND",
      "What the model's weights are quantised to: nf4, fp4, int4, int8, fp8, mxfp4; trained for none");
  add("--allocator", choices.input.allocator, "WHOSE",
      "Whose reserved memory is counted: Spillway's, or of PyTorch's own allocator (native is the same), "
      "also with expandable segments")
      ->check(one_of({"spillway", "pytorch", "native", "expandable"}))
      ->transform([](const std::string& word) { return word == "native" ? "pytorch" : word; })
      ->default_str("as the file says, else spillway");
  add("--gpus", choices.input.gpus, "N", "How many GPUs the run has")->check(whole(1, 1 << 20));
  add("--gpu-kind", choices.input.gpu_kind, "NAME", "Of a Megatron-LM run: a100, h100, gb200");
  add("--jsonl", choices.lines, "FILE",
      "Recorded Megatron-LM runs, one JSON object a line: one answer a line, and errors against what "
      "was measured on stderr");
}

void add_question_options(CLI::App& command, EstimateChoices& choices) {
  const auto add = [&](const char* name, auto& value, const char* kind, const char* text) {
    return command.add_option(name, value, text)->type_name(kind)->group("What is asked");
  };
  add("--solve", choices.solve, "SETTING",
      "The setting that just fits: the largest batch or seq, the fewest gpus, the smallest tp, "
      "the weakest recompute (exit code 2 where none fits)");
  add("--sweep", choices.sweeps, "KEY=VALUES",
      "KEY=V1,V2,... with ranges such as 1..8, 64..1024+64, 1..64x2: every combination of all "
      "sweeps (exit code 2 where none fits); may be repeated");
  add("--what-if", choices.what_if, "KEY=VALUE",
      "The run beside itself with other settings, such as recompute=full,optimizer=adamw8bit")
      ->delimiter(',');
  command
      .add_flag("--plan", choices.plan.plan,
                "The cheapest changes that make it fit, each with what it saves and costs, and the lines for "
                "the framework (exit code 2 where nothing helps)")
      ->group("What is asked");
  add("--allow", choices.plan.allow, "KINDS",
      "With --plan: what may be tried although the results change: adapter, quant, precision; of --serve "
      "quant, length; or all")
      ->delimiter(',');
  add("--for", choices.plan.framework, "FRAMEWORK",
      "With --plan: whose lines are printed: run-file, transformers, deepspeed, megatron, torchtitan, "
      "torchtune, axolotl, vllm; unless told, by the file");
  add("--catalog", choices.catalog, "FILE",
      "What `spillway calibrate` learned: predicted, calibrated and measured side by side");
  add("--hardware", choices.hardware, "NAME", "The device's name, where the catalog has the run on several");
  add("--dump", choices.dumps, "DUMP",
      "Dumps of a run that was measured: where its memory went, and what would save some; "
      "with FILE the run's own tensors are looked for; may be repeated");
  command
      .add_flag(
          "--serve", choices.input.serve,
          "The model as a server of generated text: weights, cache of keys and values, requests at once, "
          "in the words of vLLM and SGLang; --set takes their options (exit code 2 where no request fits). A "
          "pipeline of diffusers: the images that it makes")
      ->group("What is asked");
  command.add_flag("--models", choices.models, "Print the models that are known by name")
      ->group("What is asked");
  command.add_flag("--types", choices.types, "Print the types of Hugging Face's models that are modelled")
      ->group("What is asked");
}

void add_answer_options(CLI::App& command, EstimateChoices& choices) {
  const char* const group = "Answer";
  command.add_option("--html", choices.html, "Also write the estimate as a page with pictures")
      ->type_name("FILE")
      ->check(file_to_write())
      ->group(group);
  command.add_option("--output", choices.output, "Write the answer to this file instead of stdout")
      ->type_name("FILE")
      ->check(file_to_write())
      ->group(group);
  command.add_flag("--accuracy", choices.accuracy, "With --jsonl: the errors as Markdown tables instead")
      ->group(group);
  command.add_flag("--json", choices.json, "The answer as JSON; of --sweep one object a line")->group(group);
  set_examples(
      command,
      {{"Will it fit, and what would make it fit?", "spillway estimate run.toml --gpu h100-80,a100-40"},
       {"The largest batch of a Hugging Face model", "spillway estimate config.json --solve batch"},
       {"What would make it fit, and the lines for the framework",
        "spillway estimate llama-2-7b --gpu 24GiB --plan"},
       {"A model by its name, with an adapter on four bits",
        "spillway estimate llama-3.1-8b --gpu 4090 --adapter lora --quant nf4"},
       {"How many requests of 8192 tokens does a server hold at once?",
        "spillway estimate config.json --serve --gpu h100-80 --set max_model_len=8192"}});
}

}  // namespace

std::function<std::optional<int>()> add_estimate_command(CLI::App& app) {
  auto choices = std::make_shared<EstimateChoices>();
  CLI::App* command =
      app.add_subcommand("estimate", "Predict a training run's device memory before it is run");
  add_input_options(*command, *choices);
  add_question_options(*command, *choices);
  add_answer_options(*command, *choices);
  command->group("Plan");
  // An option that is named says something.
  const CLI::Validator said([](const std::string& text) { return text.empty() ? "empty" : ""; }, "");
  for (CLI::Option* option : command->get_options()) option->check(said);
  return [choices, command]() -> std::optional<int> {
    if (!command->parsed()) return std::nullopt;
    if (choices->gpus.empty()) choices->gpus = {"h100-80"};
    return run_estimate(*choices);
  };
}

}  // namespace spillway
