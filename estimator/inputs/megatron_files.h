// Files that hold Megatron-LM runs: recorded runs as JSON lines, a test's model_config.yaml, or the bare
// arguments.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "estimator/inputs/megatron.h"

namespace spillway::estimator {

// Holds what the last rank's allocator counted.
struct MeasuredBytes {
  double steady = 0;
  double peak = 0;
  double peak_step1 = 0;
};

struct RecordedRun {
  MegatronRun run;
  std::string name;  // of the recording; empty where the line has none
  std::optional<MeasuredBytes> measured = {};
};

// One JSON object: `args`, and if there are any `env`, `gpu`, `gpus` (8 unless told), `date`, `case`, and
// what was measured. Values may be text, numbers or true.
Result<RecordedRun> read_recorded_run(const std::string& line);

// A YAML file with a MODEL_ARGS mapping and, if there is one, ENV_VARS; or one argument after the other as on
// a command line, beginning with "--".
Result<MegatronRun> read_megatron_yaml(const std::string& text);
Result<MegatronRun> read_megatron_arguments(const std::string& text);

}  // namespace spillway::estimator
