// The rules of diagnosis.h, each on its own. A rule answers with findings, or none where its evidence is
// missing.
#pragma once

#include <string>
#include <vector>

#include "estimator/advice/diagnosis.h"

namespace spillway::estimator {

using Findings = std::vector<Finding>;

// "1.500 GiB", as every finding says it.
std::string gib(double bytes);

// These judge one measurement, by its counters alone.
Findings model_states(const Measurement& measurement);
Findings external_fragmentation(const Measurement& measurement);
Findings caching(const Measurement& measurement);
Findings rounding_loss(const Measurement& measurement);
Findings outside_allocator(const Measurement& measurement);

// These judge one measurement, knowing its run.
Findings materialised_attention(const Measurement& measurement, const MeasuredRun& run);
Findings activations_dominate(const Measurement& measurement, const MeasuredRun& run);
Findings loss_window(const Measurement& measurement, const MeasuredRun& run);
Findings sharding_units(const Measurement& measurement, const MeasuredRun& run);

// These judge several.
Findings growth(const std::vector<Measurement>& measurements);
Findings expert_imbalance(const std::vector<Measurement>& measurements, const MeasuredRun& run);

}  // namespace spillway::estimator
