// The file a user names, whatever kind it is, as a run.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "driver/status.h"
#include "estimator/inputs/megatron.h"
#include "estimator/inputs/run_file.h"
#include "estimator/run.h"
#include "estimator/serving/serving.h"

namespace spillway {

struct InputChoices {
  std::string file;
  std::string model;              // a Hugging Face config beside a DeepSpeed file or a recipe
  std::vector<std::string> sets;  // "train.micro_batch=4", over what the file says
  std::string gpu_kind;           // of a Megatron-LM run
  std::string read_as;            // the type that a model of another type is read as
  std::string adapter;            // a kind, or PEFT's adapter_config.json
  std::string weights;            // what the model's are quantised to, over what its file says
  std::string allocator;          // a word of allocator.model, over what the file says
  int64_t gpus = 0;               // 0: as the file says
  bool serve = false;             // names of --set without a section are those of [serve]
};

// Another value for a key of the run: of a run file, with or without its section ("train.micro_batch",
// "micro_batch"), or an argument of Megatron-LM's.
struct Change {
  std::string key;
  std::string value;
};

// "key=value". `option` is what a complaint names.
Result<Change> parse_change(const char* option, const std::string& text);

Result<std::string> read_text_file(const std::string& path);

// A run as its file gives it, which can be asked for again with other values. Immutable; safe to use from any
// number of threads.
class RunSource {
 public:
  // A name of known_models() where there is no such file. Kinds: .toml is a run file or torchtitan's; .yaml
  // and .yml Megatron-LM's or another trainer's recipe; .json TrainingArguments or DeepSpeed's where it has
  // their keys, else a Hugging Face config; a text that begins with "--" is Megatron-LM's arguments. Errors
  // name the file.
  static Result<RunSource> open(const InputChoices& choices);

  // Later changes of one key win. Errors name the file.
  Result<estimator::TrainingRun> run(const std::vector<Change>& changes = {}) const;

  // The same file as a server of generated text. Errors name the file.
  Result<estimator::ServingRun> serving(const std::vector<Change>& changes = {}) const;
  // Does the file, or what was set, have a section [serve]?
  bool asks_to_serve() const;
  // Is it a pipeline of diffusers? Serving it, images are made.
  bool makes_images() const;

  bool is_megatron() const { return std::holds_alternative<estimator::MegatronRun>(given_); }

  const std::string& file() const { return file_; }

 private:
  using Given = std::variant<estimator::RunKeys, estimator::MegatronRun>;

  RunSource(std::string file, Given given) : file_(std::move(file)), given_(std::move(given)) {}

  std::string file_;
  Given given_;
};

}  // namespace spillway
