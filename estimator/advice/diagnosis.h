// Tells what an allocator's counters say about where the memory went: rules that name evidence, cause and
// cure.
#pragma once

#include <string>
#include <vector>

#include "estimator/calibration/measurement.h"
#include "estimator/estimate.h"

namespace spillway::estimator {

struct Finding {
  std::string rule;      // a name that scripts can look for
  std::string source;    // of the measurement
  std::string evidence;  // with its figures
  std::string cause;
  std::string mitigation;  // what to change; "none needed" where the bytes are no loss
  double saved_bytes = 0;  // at most; 0 where nobody can say
};

// The run that was measured, for rules that need to know what its tensors are.
struct MeasuredRun {
  const TrainingRun& run;
  const Estimate& estimate;
};

// `measurements` are of one job: any ranks, any number of dumps of each. `run` may be null: the rules that
// need it are silent then. The largest saving comes first.
std::vector<Finding> diagnose(const std::vector<Measurement>& measurements, const MeasuredRun* run);

// Reserved bytes by what they are; the parts sum to the whole.
struct Account {
  double requested = 0;
  double rounding = 0;        // allocated above requested
  double pending = 0;         // freed, and a stream is not done with them
  double inactive_split = 0;  // free parts of segments in use
  double cached_free = 0;     // free segments
  double reserved = 0;
};
Account account(const Measurement& measurement);

}  // namespace spillway::estimator
