// Tells whether somebody waits for a move. A move can become urgent while it is under way: its copies and its
// reads of the disk that are still to come go first from then on.
#pragma once

#include <atomic>

namespace spillway {

class Urgency {
 public:
  Urgency() = default;
  Urgency(const Urgency&) = delete;
  Urgency& operator=(const Urgency&) = delete;

  bool is_waited_for() const { return waiting_.load(std::memory_order_relaxed) > 0; }

 private:
  friend class CopyStreams;  // which reorders what waits when this changes
  std::atomic<int> waiting_{0};
};

}  // namespace spillway
