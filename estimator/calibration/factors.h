// Tells what measurements say about an estimate, group by group: how many times as much a group takes as was
// predicted, and how sure that is.
//
// A peak is model states and a rest. The program says what its states are (Measurement::annotations); what
// it does not say is taken as predicted. The rest belongs to the phase that peaks: activations and loss at
// the end of the forward pass.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "driver/status.h"
#include "estimator/calibration/measurement.h"
#include "estimator/estimate.h"

namespace spillway::estimator {

enum class Group {
  kWeights,    // weights, their fp32 copies, buffers
  kOptimizer,  // what the optimizer keeps
  kGradients,
  kFixed,      // between steps, none of the above: workspaces and buffers of communication
  kTransient,  // the peak less all that is held between steps
};
constexpr size_t kGroups = 5;
const char* group_name(Group group);

// Bytes of each group; none where nothing is known.
using GroupBytes = std::array<std::optional<double>, kGroups>;

// Returns what an estimate of one rank class says.
GroupBytes predicted_groups(const RankClass& rank);
// The phase that is the peak.
const char* peak_phase(const RankClass& rank);

// Tells whether the phase that peaks stands out: it has at least twice what any other has above the bytes
// between steps. Else a measured peak may be of another phase, and says nothing about this one.
bool peak_stands_out(const RankClass& rank);

// The groups of a measured peak; transient bytes only where the predicted peak stands out. With
// `between_steps` the counters were read when no step was under way, so what is allocated then and is no
// model state is fixed. Errors: a peak below the model's states, and
// states that are not this run's: less than half or more than twice as much as predicted.
Result<GroupBytes> measured_groups(const Measurement& measurement, const RankClass& predicted,
                                   bool between_steps);

// One measurement beside the estimate of its run.
struct Observation {
  std::string kernels;  // Signature::kernels and shape
  std::string shape;
  std::string phase;  // that peaks
  GroupBytes predicted = {};
  GroupBytes measured = {};
  double predicted_peak = 0;
  double measured_peak = 0;
};

struct Factor {
  double value = 1;
  double fixed_bytes = 0;  // above `value` times what is predicted, from two sizes and more
  std::optional<double> spread =
      {};  // largest relative error over the observations; none where nothing is left to compare
  size_t observations = 0;
  double observed_at = 0;  // the prediction that a single observation was of

  // Says how far a single observation may mislead at another size: what it differs by may be in proportion or
  // may be fixed.
  double doubt(double predicted) const;

  double of(double predicted) const { return fixed_bytes + value * predicted; }
};

// Least squares over observations of one key. Transient bytes only from those with these kernels; two
// predictions that differ by a tenth and more also give what is fixed, or how much of the predicted
// workspaces is not there.
class Factors {
 public:
  Factors(const std::vector<Observation>& observations, const std::string& kernels);

  const Factor& of(Group group) const { return states_[static_cast<size_t>(group)]; }
  // Returns the factor of the bytes that one phase has above those between steps.
  const Factor& of_phase(const std::string& phase) const;

  // The estimate with each group times its factor: buckets, phases, peaks, interval.
  Estimate apply(const Estimate& estimate) const;

 private:
  RankClass apply(const RankClass& rank) const;

  std::array<Factor, kGroups> states_;
  std::vector<std::pair<std::string, Factor>> phases_;
  Factor none_;
};

}  // namespace spillway::estimator
