// Reads which low-rank adapters are trained, as PEFT has them: the section `adapter` of a run, or the keys of
// its adapter_config.json.
#pragma once

#include <string>

#include "driver/status.h"
#include "estimator/inputs/key_values.h"
#include "estimator/inputs/run_file.h"
#include "estimator/run.h"

namespace spillway::estimator {

// The keys of the section `adapter` that an adapter_config.json gives. Errors: no JSON; another kind of
// adapter.
Result<RunKeys> read_adapter_json(const std::string& text);

void read_adapter(KeyValues& values, TrainingRun& run);

}  // namespace spillway::estimator
