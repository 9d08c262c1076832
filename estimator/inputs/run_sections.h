// Sections [communication] and [offload] of a run file. docs/estimate.md lists their keys.
#pragma once

#include "driver/status.h"
#include "estimator/inputs/key_values.h"
#include "estimator/run.h"

namespace spillway::estimator {

// Bytes: "2GiB", "512MiB" or a number.
double read_size(KeyValues& values, const std::string& key, double otherwise);

// Both complain through `values`; the sharding must have been read.
void read_communication(KeyValues& values, TrainingRun& run);
void read_offload(KeyValues& values, TrainingRun& run);

}  // namespace spillway::estimator
