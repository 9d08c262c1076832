// Recipes of other trainers as keys of a run file: Axolotl's, LLaMA-Factory's, torchtune's, NeMo Automodel's,
// Hugging Face's TrainingArguments, accelerate's configuration; YAML or JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "driver/status.h"
#include "estimator/inputs/run_file.h"

namespace spillway::estimator {

struct RecipeFiles {
  std::string folder = {};            // of the recipe: files that it names are looked for here and above
  int64_t gpus = 0;                   // 0: as the recipe says, else 1
  std::optional<RunKeys> model = {};  // instead of the one that the recipe names
};

// Tells whether the JSON has the keys of TrainingArguments, and not those of a model.
bool is_trainer_json(const std::string& text);

// Errors: keys of no recipe that is known, something that is not modelled, a model that no file and no name
// has.
Result<RunKeys> read_recipe(const std::string& text, const RecipeFiles& files);

}  // namespace spillway::estimator
