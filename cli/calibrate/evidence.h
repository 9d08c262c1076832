// The files that allocators leave behind, as measurements.
#pragma once

#include <string>
#include <vector>

#include "driver/status.h"
#include "estimator/calibration/measurement.h"

namespace spillway {

// A Spillway dump, torch.cuda.memory_stats() as JSON, or a PyTorch memory snapshot with a trace (a pickle,
// gzip'd or not): a snapshot counts requests, over the device with the most events. `hardware`, where not
// empty, is the device's name instead of what the file says. Errors name the file.
Result<std::vector<estimator::Measurement>> read_evidence(const std::string& path,
                                                          const std::string& hardware);

// All of several files, in their order.
Result<std::vector<estimator::Measurement>> read_evidence(const std::vector<std::string>& paths,
                                                          const std::string& hardware);

}  // namespace spillway
