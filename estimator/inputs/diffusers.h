// Reads models that make images as diffusers keeps them: a model_index.json with a folder for each part, or
// the config.json of a denoiser alone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "estimator/inputs/key_values.h"
#include "estimator/inputs/run_file.h"

namespace spillway::estimator {

// Says whether a file is one of diffusers'.
bool is_diffusers_json(const std::string& text);

// Keys of [model], parts under their names. `folder`: where parts are. Errors: a part that cannot be read, a
// class that is not modelled.
Result<RunKeys> read_diffusers_json(const std::string& text, const std::string& folder);

// Says whether keys are of such a model.
bool has_pipeline(const RunKeys& keys);
// The model, with `pipeline`. Errors: a key that changes sizes and is not modelled, sizes that contradict
// each other, a text encoder that is not modelled.
Result<Model> read_pipeline(KeyValues& values, Notes& notes);

// What is done with it, of which resolution: [serve] where run.imaging.generates is set, else [train]. Needs
// run.model. What is wrong is complained of in `values`.
void read_imaging(KeyValues& values, TrainingRun& run);

// Classes of denoisers that are modelled.
std::vector<std::string_view> denoiser_types();

}  // namespace spillway::estimator
