// Says which tensors' bytes collectives move, by SPILLWAY_DRYRUN_VALUES: "small" (unset), "all" or "none".
// Small are 64 KiB of floating-point numbers and 16 MiB of integers: losses, flags, counts, sizes and pickled
// objects, not weights.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "sim/nccl/types.h"

namespace spillway::nccl {

constexpr uint64_t kSmallFloatBytes = uint64_t{64} << 10;
constexpr uint64_t kSmallIntegerBytes = uint64_t{16} << 20;

inline bool are_bytes_moved(int type, uint64_t bytes) {
  const char* text = std::getenv("SPILLWAY_DRYRUN_VALUES");
  const std::string_view values = text == nullptr ? "small" : text;
  if (values == "none") return false;
  if (values == "all") return true;
  return bytes <= (is_floating(type) ? kSmallFloatBytes : kSmallIntegerBytes);
}

}  // namespace spillway::nccl
