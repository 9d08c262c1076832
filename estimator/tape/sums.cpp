#include "estimator/tape/sums.h"

#include <algorithm>
#include <cmath>

namespace spillway::estimator {
namespace {

// What a sum over `rows` of `columns` takes while it runs: partial results where blocks share an output
// (Reduce.cuh, setReduceConfig, for a contiguous fastest dimension that stays). Up to 8 bytes for each
// element, and some 130 MiB.
double partial_sum_bytes(double rows, double columns) {
  // Of an H100; an A100 has 108 multiprocessors.
  constexpr double kMultiprocessors = 132, kThreadsOfOne = 2048, kThreads = 512;
  constexpr double kWidth = 32, kLeastValues = 16, kMostValues = 256;
  const double vector = std::fmod(columns, 4) == 0 ? 4 : std::fmod(columns, 2) == 0 ? 2 : 1;
  const double height = kThreads / vector / kWidth;
  if (columns / vector < kWidth || rows < std::min(height * 16, kMostValues)) return 0;
  const double grid = std::ceil(columns / vector / kWidth);
  const double target = kMultiprocessors * std::floor(kThreadsOfOne / (kWidth * height));
  const double values = std::ceil(rows / height);
  if (values < kMostValues || grid > target) return 0;
  const double blocks = std::max(std::min(std::ceil(target / grid), std::ceil(values / kLeastValues)),
                                 std::ceil(values / kMostValues));
  return blocks > 1 ? 4 * columns * blocks * kWidth * vector : 0;
}

}  // namespace

double embedding_sum_bytes(double tokens, double rows, double width) {
  constexpr double kMostUnsorted = 3072, kFewRows = 128, kPartRows = 10, kColumns = 32;
  if (tokens <= kMostUnsorted) return 0;
  const double most_rows = std::min(tokens, rows);
  const double parts = std::floor(tokens / kPartRows) + most_rows;
  const double sums = rows <= kFewRows ? 8 * parts : 4 * parts * std::ceil(width / kColumns) * kColumns;
  return 8 * (3 * tokens + 2 * most_rows + parts) + sums;
}

Share summed(Backward& run, double rows, double columns, double element) {
  Share out = run.make(columns * element);
  const Share partial = run.make(partial_sum_bytes(rows, columns));
  return out;
}

}  // namespace spillway::estimator
