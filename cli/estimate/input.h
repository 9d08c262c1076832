// The file a user names, whatever kind it is, as a run.
#pragma once

#include <string>
#include <vector>

#include "driver/status.h"
#include "estimator/run.h"

namespace spillway {

struct InputChoices {
  std::string file;
  std::string model;              // a Hugging Face config beside a DeepSpeed file
  std::vector<std::string> sets;  // "train.micro_batch=4", over what the file says
  std::string gpu_kind;           // of a Megatron-LM run
  int64_t gpus = 0;               // 0: as the file says
};

Result<std::string> read_text_file(const std::string& path);

// Kinds: .toml is a run file or torchtitan's; .yaml and .yml Megatron-LM's; .json DeepSpeed's where it has
// its keys, else a Hugging Face config; a text that begins with "--" is Megatron-LM's arguments. Errors name
// the file.
Result<estimator::TrainingRun> read_input(const InputChoices& choices);

}  // namespace spillway
