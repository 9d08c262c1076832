// Estimates side by side, bucket by bucket.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "estimator/estimate.h"
#include "estimator/verdict.h"

namespace spillway {

struct Column {
  std::string title;
  const estimator::TrainingRun& run;
  const estimator::Estimate& estimate;
};

// A table in GiB: buckets of the rank classes that peak, totals, what is needed of each GPU. Columns are
// compared with the first where `saved` is asked for.
std::string columns_text(const std::vector<Column>& columns, const std::vector<estimator::GpuMemory>& gpus,
                         bool saved);

// One setting in few members: bytes and the worst verdict.
nlohmann::ordered_json setting_json(const estimator::TrainingRun& run, const estimator::Estimate& estimate,
                                    const std::vector<estimator::GpuMemory>& gpus);

// Bytes that the second of two estimates saves, for each bucket of either.
nlohmann::ordered_json saved_json(const estimator::Estimate& before, const estimator::Estimate& after);

}  // namespace spillway
