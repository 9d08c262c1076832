#include "sim/nccl/peers.h"

#include <algorithm>

namespace spillway::nccl {

size_t nearest(const std::vector<int>& real, int rank) {
  const auto above = std::lower_bound(real.begin(), real.end(), rank);
  const auto index = static_cast<size_t>(above - real.begin());
  if (above == real.end()) return index - 1;
  if (above == real.begin() || *above == rank) return index;
  return rank - real[index - 1] <= *above - rank ? index - 1 : index;
}

std::vector<uint64_t> followers(const std::vector<int>& real, int size) {
  std::vector<uint64_t> times(real.size(), 0);
  for (int rank = 0; rank < size; ++rank) ++times[nearest(real, rank)];
  return times;
}

}  // namespace spillway::nccl
