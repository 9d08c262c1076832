// The smallest device on which a trace still runs, in the strict sense: it runs there and on every larger
// device.
//
// Capacities lie on a grid of 0.05 % of peak live bytes, from peak live up to 1.1 times it. An allocator may
// fail on a larger device where it passes on a smaller one, so bisection proves nothing; every grid point
// counts. One shortcut is exact: a run with unlimited memory that never held more than P bytes never met a
// limit, and neither does a run with any capacity of P or more, as long as the allocator is deterministic and
// does not look at the capacity before it is refused memory. So all points from P up are decided by that run
// (the first of them is run nevertheless, to catch an allocator that does look), and the points below P are
// run one by one, downwards, until the first failure.
//
// Where even 1.1 fails (PyTorch's native allocator on some traces) the search goes on above it: points ten
// times coarser, down to the first failure, and the fine grid inside the last step.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "driver/status.h"

namespace spillway {

struct CapacityGrid {
  static constexpr uint64_t kSteps = 2000;   // grid points for each time peak live
  static constexpr uint64_t kTopStep = 200;  // 1.1 times peak live
  static constexpr uint64_t kCoarse = 10;    // fine steps in a coarse one

  uint64_t peak_live_bytes = 0;

  // The capacity at grid point k, rounded up to a byte.
  uint64_t at(uint64_t k) const;
  // The first grid point whose capacity is at least `bytes`.
  uint64_t first_from(uint64_t bytes) const;
};

// Tells whether the trace runs at each of these capacities.
using CapacityProbe = std::function<Result<std::vector<bool>>(const std::vector<uint64_t>& capacities)>;

// The smallest capacity of the grid from which every larger one succeeds. `unlimited_bytes` is what a
// successful run without a limit held at most; `width` is how many capacities the probe takes at a time.
// Empty where there is none.
Result<std::optional<uint64_t>> smallest_capacity(const CapacityGrid& grid, uint64_t unlimited_bytes,
                                                  unsigned width, const CapacityProbe& probe);

}  // namespace spillway
