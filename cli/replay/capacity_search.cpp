#include "cli/replay/capacity_search.h"

#include <algorithm>

namespace spillway {

namespace {

// Runs the points in their order, `width` at a time, until one fails. The number of points that succeeded
// before it.
Result<size_t> succeed_in_order(const CapacityGrid& grid, const std::vector<uint64_t>& points, unsigned width,
                                const CapacityProbe& probe) {
  for (size_t at = 0; at < points.size();) {
    const size_t end = std::min<size_t>(points.size(), at + std::max(1u, width));
    std::vector<uint64_t> capacities;
    for (size_t i = at; i < end; ++i) capacities.push_back(grid.at(points[i]));
    auto outcomes = probe(capacities);
    if (!outcomes.ok()) return outcomes.take_status();
    const auto& succeeded = outcomes.value();
    const auto failed = std::find(succeeded.begin(), succeeded.end(), false);
    if (failed != succeeded.end()) return at + static_cast<size_t>(failed - succeeded.begin());
    at = end;
  }
  return points.size();
}

std::vector<uint64_t> downwards(uint64_t from, uint64_t to, uint64_t step) {
  std::vector<uint64_t> points;
  for (uint64_t k = from;; k -= step) {
    points.push_back(k);
    if (k < to + step) break;
  }
  return points;
}

}  // namespace

uint64_t CapacityGrid::at(uint64_t k) const {
  // In two parts, so that no product overflows.
  const uint64_t whole = peak_live_bytes / kSteps * k;
  const uint64_t rest = peak_live_bytes % kSteps * k;
  return peak_live_bytes + whole + (rest + kSteps - 1) / kSteps;
}

uint64_t CapacityGrid::first_from(uint64_t bytes) const {
  uint64_t low = 0;
  uint64_t high = 1;
  while (at(high) < bytes) high *= 2;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (at(middle) >= bytes) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

Result<std::optional<uint64_t>> smallest_capacity(const CapacityGrid& grid, uint64_t unlimited_bytes,
                                                  unsigned width, const CapacityProbe& probe) {
  constexpr uint64_t kTop = CapacityGrid::kTopStep;
  uint64_t top = grid.first_from(std::max(unlimited_bytes, grid.peak_live_bytes));
  std::optional<uint64_t> best;

  if (top > kTop) {
    // From the first coarse point that no limit touches down to 1.1.
    top = kTop + (top - kTop + CapacityGrid::kCoarse - 1) / CapacityGrid::kCoarse * CapacityGrid::kCoarse;
    const auto coarse = downwards(top, kTop, CapacityGrid::kCoarse);
    auto passed = succeed_in_order(grid, coarse, width, probe);
    if (!passed.ok()) return passed.take_status();
    if (passed.value() == 0) return std::optional<uint64_t>();
    best = coarse[passed.value() - 1];
    const uint64_t floor = *best == kTop ? 0 : *best - CapacityGrid::kCoarse + 1;
    if (*best > floor) {
      const auto fine = downwards(*best - 1, floor, 1);
      passed = succeed_in_order(grid, fine, width, probe);
      if (!passed.ok()) return passed.take_status();
      if (passed.value() > 0) best = fine[passed.value() - 1];
    }
    return std::optional<uint64_t>(grid.at(*best));
  }

  auto first = succeed_in_order(grid, {top}, 1, probe);
  if (!first.ok()) return first.take_status();
  // An allocator that looks at the capacity: no point is decided without a run of its own.
  const bool decided = first.value() == 1;
  if (decided) best = top;
  if (decided && top == 0) return std::optional<uint64_t>(grid.at(0));
  const auto points = downwards(decided ? top - 1 : kTop, 0, 1);
  auto passed = succeed_in_order(grid, points, width, probe);
  if (!passed.ok()) return passed.take_status();
  if (passed.value() > 0) best = points[passed.value() - 1];
  if (!best) return best;
  return std::optional<uint64_t>(grid.at(*best));
}

}  // namespace spillway
