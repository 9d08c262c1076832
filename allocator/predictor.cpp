#include "allocator/predictor.h"

#include "allocator/units.h"

namespace spillway {
namespace {

// Requests by which a heap must be ahead to be the leader: what others noted by the old one's time is lost.
constexpr uint64_t kLeastLead = 1024;
// A heap follows the leader while that serves more than so many requests for each of its own.
constexpr uint64_t kMuchBusier = 4;
constexpr uint64_t kFewestToReview = 64;

}  // namespace

CachedRange* Predictor::expected(const Request& request) const {
  if (request.is_for_slab() || !remembers()) return guess(request);
  CachedRange* range = sequence_.best_candidate();
  return range != nullptr && range->quanta == request.quanta ? range : guess(request);
}

CachedRange* Predictor::locate(const Request& request) {
  if (request.is_for_slab() || (is_asleep() && !is_time_to_look())) return nullptr;
  review_leader();
  CachedRange* range = sequence_.search(request.quanta, led_by_);
  if (!remembers()) return nullptr;
  return request.quanta < kPageQuanta && !sequence_.is_sure() ? nullptr : range;
}

void Predictor::review_leader() {
  // Acquired and released: another thread may have made the leader a moment ago.
  const SequencePredictor* leader = leader_.load(std::memory_order_acquire);
  if (leader == nullptr || sequence_.now() > 2 * leader->now() + kLeastLead) {
    leader_.store(leader = &sequence_, std::memory_order_release);
  }
  const uint64_t own = sequence_.now() - reviewed_own_;
  const uint64_t others = leader->now() - reviewed_leader_;
  if (leader != &sequence_ && own < kFewestToReview) {
    if (led_by_ == nullptr && reviewed_own_ == 0) led_by_ = leader;
    return;
  }
  led_by_ = leader != &sequence_ && own * kMuchBusier < others ? leader : nullptr;
  reviewed_own_ = sequence_.now();
  reviewed_leader_ = leader->now();
}

uint64_t Predictor::metadata_bytes() const {
  uint64_t bytes = sequence_.metadata_bytes();
  for (const SlabHistory& openings : slab_histories_) bytes += openings.metadata_bytes();
  return bytes;
}

}  // namespace spillway
