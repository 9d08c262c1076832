// A model of Hugging Face with a section [serve] as a server of generated text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "driver/status.h"
#include "estimator/inputs/key_values.h"
#include "estimator/inputs/run_file.h"
#include "estimator/serving/serving.h"

namespace spillway::estimator {

// Keys of [serve], as docs/estimate-serving.md lists them: "serve.max_model_len" and so on.
const std::vector<std::string_view>& serving_key_names();
// Those of a model that makes images (docs/estimate-images.md).
const std::vector<std::string_view>& image_key_names();

// True where a key of [serve] is among them.
bool asks_to_serve(const RunKeys& keys);

// A name with or without "serve." or as vLLM's command line writes it ("--max-model-len"); what is none of
// these stays as it is.
std::string serving_key(const std::string& name);

// The model's keys that only serving reads count as read.
void mark_serving_model_keys(KeyValues& values);

// Errors: a missing or wrong value, a key that is not known, a model that generates no text.
Result<ServingRun> read_serving(const RunKeys& keys);

}  // namespace spillway::estimator
