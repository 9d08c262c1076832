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
  // A request at this position of the heap's sequence. Views cost little where all are small.
  void note_request(uint32_t quanta, uint64_t position) {
    if (quanta >= kManyMappings * kPageQuanta) spares_until_ = position + kRequests;
  }
  // Tells whether views of many mappings were asked for lately.
  bool spares_mappings(uint64_t position) const { return position < spares_until_; }
  // The same at any time.
  bool spared_mappings() const { return spares_until_ > 0; }
  // So many bytes are needed at once, a request among them that is to be served.
  void note_need(uint64_t bytes) {
    if (bytes <= most_needed_bytes_) return;
    most_needed_bytes_ = bytes;
    mapped_pages_ = 0;
  }
  // A view was made of so many pages: what is bought does not do.
  void note_view(uint32_t pages) { mapped_pages_ += pages; }
  // Pages have left: what was needed before is no measure any more.
  void forget_need() { most_needed_bytes_ = mapped_pages_ = 0; }

  // With `slack_percent` more than was needed at most.
  uint64_t most_pages(double slack_percent) const {
    return bytes_to_pages(
        static_cast<uint64_t>(static_cast<double>(most_needed_bytes_) * (1 + slack_percent / 100)));
  }

  // What a heap that owns `owned` lacks of that.
  uint64_t pages_left(double slack_percent, uint64_t owned) const {
    const uint64_t most = most_pages(slack_percent);
    return most - std::min(most, owned);
  }
  // Returns how many pages a heap that owns `owned` may buy for a request of `wanted`: as many as leave it
  // with `slack_percent` more than was needed. A request that is larger than the rest would be served by
  // views for ever: once views have been made of a quarter of what is needed, since that last grew, it gets
  // its pages as long as they leave `most_slack_percent`.
  uint64_t pages_to_buy(double slack_percent, double most_slack_percent, uint64_t owned,
                        uint64_t wanted) const {
    const uint64_t left = pages_left(slack_percent, owned);
    const bool is_wanting = left < wanted && mapped_pages_ > bytes_to_pages(most_needed_bytes_) / 4;
    return is_wanting && owned + wanted <= most_pages(most_slack_percent) ? wanted : left;
  }
  // Returns how many pages more than it asked for are created for a heap that will own `owned` then, so that
  // a run ends in an extent: what is left of the share, as the option says. As long as no view was made since
  // the need last grew, at least the `usual` ones of heaps that spend nothing: they are needed next.
  uint32_t spare_pages(double slack_percent, uint64_t owned, uint32_t usual) const {
    const uint64_t left = pages_left(slack_percent, owned);
    const uint64_t least = mapped_pages_ == 0 ? usual : 0;
    return static_cast<uint32_t>(std::min(std::max(left, least), kMostSpare));
  }

 private:
  static constexpr uint64_t kMostSpare = 1u << 16;  // more than any run needs
  static constexpr uint32_t kManyMappings = 4;
  static constexpr uint64_t kRequests = 1024;

  uint64_t most_needed_bytes_ = 0;
  uint64_t spares_until_ = 0;
  uint64_t mapped_pages_ = 0;  // into views, since the need last grew
};

}  // namespace spillway
