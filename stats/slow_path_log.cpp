#include "stats/slow_path_log.h"

#include <algorithm>
#include <chrono>

namespace spillway {

void SlowPath::note(Rung rung, bool served, int64_t time_ns) {
  rung_ns[static_cast<size_t>(rung)] += std::max<int64_t>(time_ns, 1);
  if (served) outcome = rung;
}

bool SlowPath::is_notable() const {
  const auto first = rung_ns.begin() + static_cast<ptrdiff_t>(Rung::kNewPages) + 1;
  return outcome == Rung::kOutOfMemory ||
         std::any_of(first, rung_ns.end(), [](int64_t ns) { return ns != 0; });
}

void SlowPathLog::add(SlowPath climb) {
  if (!climb.is_notable()) return;
  climb.time_us = std::chrono::duration_cast<std::chrono::microseconds>(
                      std::chrono::system_clock::now().time_since_epoch())
                      .count();
  const Lock lock(mutex_);
  climbs_[added_++ % kKept] = climb;
}

std::vector<SlowPath> SlowPathLog::list() const {
  const Lock lock(mutex_);
  std::vector<SlowPath> out;
  out.reserve(kKept);
  for (size_t i = added_ - std::min(added_, kKept); i < added_; ++i) out.push_back(climbs_[i % kKept]);
  return out;
}

}  // namespace spillway
