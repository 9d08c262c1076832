// Spillway's own description of a run: sections [model] [train] [parallel] [communication]
// [offload] [overhead] [allocator], documented
// in docs/estimate.md. Every other input that is not Megatron-LM's is turned into these keys first.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "driver/status.h"
#include "estimator/run.h"

namespace spillway::estimator {

// "train.micro_batch" and so on; "recipe.trainer" says whose recipe they were read from.
using RunKeys = std::map<std::string, std::string>;

// What a reader has to say beside the keys travels among them, as "warning.0" and so on.
void add_warnings(const std::vector<std::string>& warnings, RunKeys& keys);

// The config.json in a folder that has one, else the path itself.
std::string config_of(const std::string& path);

// TOML to keys. `model.config`, a path beside the file, is read as a Hugging Face config.
Result<RunKeys> read_run_toml(const std::string& text, const std::string& folder);

// A Hugging Face config says more than its sizes; a person who names a key of [model] wants it to count.
// Errors: the first of `said` that nothing is read from.
Status check_model_keys(const RunKeys& keys, const std::vector<std::string>& said);

// A Hugging Face config to the keys of [model].
Result<RunKeys> read_model_json(const std::string& text);

// DeepSpeed's JSON to the keys of [train], [parallel], [communication] and [offload]. Keys without effect on
// memory are passed over; those with one that is not modelled are refused by name.
// `gpus`: how many there are; 0 where nobody said, and the batch sizes decide.
Result<RunKeys> read_deepspeed_json(const std::string& text, int64_t gpus = 0);

// torchtitan's job file, of the time when it was TOML, to the same keys; how many GPUs there are is not in
// it.
bool is_torchtitan_toml(const std::string& text);
Result<RunKeys> read_torchtitan_toml(const std::string& text, int64_t gpus);

// Errors: a missing or wrong value, or a key that is not known, by its name.
Result<TrainingRun> read_run(const RunKeys& keys);

}  // namespace spillway::estimator
