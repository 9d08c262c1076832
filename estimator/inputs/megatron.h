// Megatron-LM's command line as a run. What is not modelled is refused by name; what does not touch memory is
// accepted; what is unknown is echoed as an assumption.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "driver/status.h"
#include "estimator/inputs/key_values.h"
#include "estimator/run.h"

namespace spillway::estimator {

struct MegatronRun {
  std::map<std::string, std::string> arguments = {};  // without the leading dashes; "true" for a flag
  std::map<std::string, std::string> environment = {};
  std::string gpu = {};  // a100, h100, gb200
  int64_t gpus = 8;
  std::string date = {};       // of the run, as 2026-01-31; empty: today's versions of everything
  std::string allocator = {};  // a word of allocator.model; empty: PyTorch's, as the environment says
  std::string program = {};    // gpt, bert, t5, hybrid, vlm; empty: concluded from the arguments
};

// Errors: invalid_argument for a value that is wrong, unsupported for what is not modelled.
Result<TrainingRun> read_megatron(const MegatronRun& run);

// Parts of it, one file each.
Status read_megatron_model(KeyValues& values, const MegatronRun& given, const std::string& program,
                           TrainingRun& run);
Status read_megatron_parallel(KeyValues& values, const MegatronRun& given, TrainingRun& run);
void read_megatron_graphs(KeyValues& values, const MegatronRun& given, TrainingRun& run);
void read_megatron_offloading(KeyValues& values, TrainingRun& run);
Status refuse_unmodelled(const KeyValues& values);
// True where an argument is known to say nothing about memory.
bool known_without_effect(std::string_view key);
Status set_versions(KeyValues& values, const MegatronRun& given, TrainingRun& run);

}  // namespace spillway::estimator
