// How many pages a heap may hold before views are made of those it has, while its program does not repeat
// itself and memory is plentiful: so that requests are served from holes, and driver calls are made for none
// of them. Below that, what no hole serves is given new pages where a view would do. The measurements are in
// docs/decisions/unrepeated.md.
//
// Guarded by the heap's lock.
#pragma once

#include <algorithm>
#include <cstdint>

#include "allocator/units.h"

namespace spillway {

class Purchase {
 public:
  // So many bytes are needed at once, a request among them that is to be served.
  void note_need(uint64_t bytes) { most_needed_bytes_ = std::max(most_needed_bytes_, bytes); }
  // Pages have left: what was needed before is no measure any more.
  void forget_need() { most_needed_bytes_ = 0; }

  // With `slack_percent` more than was needed at most.
  uint64_t most_pages(double slack_percent) const {
    return bytes_to_pages(
        static_cast<uint64_t>(static_cast<double>(most_needed_bytes_) * (1 + slack_percent / 100)));
  }

 private:
  uint64_t most_needed_bytes_ = 0;
};

}  // namespace spillway
