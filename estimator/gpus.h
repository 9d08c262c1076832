// Memory of GPUs as CUDA gives it to a process, which is less than nvidia-smi shows and than cards are named
// after.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "driver/status.h"

namespace spillway::estimator {

struct GpuMemory {
  std::string name;
  double bytes = 0;
};

// A name of the table ("h100-80", "a100-40"), as people and nvidia-smi write it ("H100", "NVIDIA H100 80GB
// HBM3", "4090"), or a size ("24GiB"; "24GB" is 24e9 bytes). The name that comes back is the table's.
Result<GpuMemory> gpu_memory(const std::string& text);

// The smallest of the table that has so many bytes; none where no one has.
std::optional<GpuMemory> smallest_gpu(double bytes);

// Says what a name that means several was taken for; empty where it means one.
std::string gpu_ambiguity(const std::string& text);

// "; did you mean 'h100-80'?" of a name that is nearly a row's; else empty.
std::string gpu_meant_perhaps(const std::string& text);

// Returns those of all rows.
std::vector<std::string> gpu_names();

}  // namespace spillway::estimator
