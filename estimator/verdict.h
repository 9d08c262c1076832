// Does an estimate fit a GPU, and what would make it fit.
#pragma once

#include <string>
#include <vector>

#include "driver/status.h"
#include "estimator/estimate.h"
#include "estimator/gpus.h"

namespace spillway::estimator {

enum class Verdict { kFits, kTight, kNo };  // tight: less than a tenth is left

const char* verdict_name(Verdict verdict);

// Holds what the run's allocator is expected to reserve for the peak, and what lies outside it, against all
// of the GPU's memory.
double needed_bytes(const TrainingRun& run, const Estimate& estimate);
Verdict verdict(double needed_bytes, const GpuMemory& gpu);

// One change of the run, estimated anew.
struct Mitigation {
  std::string change;  // as keys of a run file
  double saved_bytes = 0;
  const char* cost;
};

// The changes that save memory, the cheapest kind first among those that save about as much. Savings are
// between estimates by formulas alone, whatever was calibrated; none where the run contradicts itself.
std::vector<Mitigation> mitigations(const TrainingRun& run);

}  // namespace spillway::estimator
