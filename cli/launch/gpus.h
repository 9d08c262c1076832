// Says what a dry run needs of a GPU, and whether the GPUs that were asked for have it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "driver/status.h"
#include "estimator/gpus.h"
#include "estimator/verdict.h"

namespace spillway {

// Returns what lies outside of the allocator, as `spillway estimate` has it.
struct FixedParts {
  uint64_t context_bytes = 0;       // CUDA's, and of libraries
  uint64_t communicator_bytes = 0;  // NCCL's
  uint64_t bytes() const { return context_bytes + communicator_bytes; }
};
FixedParts fixed_parts(bool has_many_ranks);

// Those of --gpu by size, the largest first, each with room for more than the fixed parts. Errors:
// invalid_argument.
Result<std::vector<estimator::GpuMemory>> gpus_of(const std::string& names, const FixedParts& fixed);

// Returns what the allocator may have of it.
uint64_t capacity_of(const estimator::GpuMemory& gpu, const FixedParts& fixed);

struct GpuAnswer {
  estimator::GpuMemory gpu;
  std::optional<estimator::Verdict> verdict;  // none: not known
  uint64_t needed_bytes = 0;                  // 0: not known, as where the program died earlier
};

std::string gpus_text(const std::vector<GpuAnswer>& answers);
nlohmann::json gpus_json(const std::vector<GpuAnswer>& answers);

}  // namespace spillway
