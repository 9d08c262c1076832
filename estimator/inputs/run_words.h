// Names of a run's keys and values as people write them, turned into those of a run file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "driver/status.h"
#include "estimator/inputs/run_file.h"

namespace spillway::estimator {

// "train.micro_batch" and so on, as docs/estimate.md lists them; those of [model] are the model's own.
const std::vector<std::string_view>& run_key_names();

struct NamedValue {
  std::string key;
  std::string value;
};

// A key with or without its section ("micro_batch", "train.micro_batch"), or another trainer's word for it
// ("per_device_train_batch_size", "gradient_checkpointing"). A name of two sections is the first one's. What
// is not known stays as it is.
NamedValue run_key(const std::string& name, const std::string& value);

// The same for every key. Errors: two names of one key.
Result<RunKeys> translate_words(const RunKeys& keys);

// "; did you mean 'train.micro_batch'?", or nothing.
std::string meant_run_key(const std::string& name);

}  // namespace spillway::estimator
