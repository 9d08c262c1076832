#include "allocator/sequence_predictor.h"

#include "allocator/units.h"

namespace spillway {
namespace {

// Requests by which a heap must be ahead to be the leader: what others noted by the old one's time is lost.
constexpr uint64_t kLeastLead = 1024;
// A heap follows the leader while that serves more than so many requests for each of its own.
constexpr uint64_t kMuchBusier = 4;
constexpr uint64_t kFewestToReview = 64;

}  // namespace

Place* SequencePredictor::expected(const Request& request) const {
  if (request.is_for_slab() || !remembers()) return guess(request);
  Place* place = journal_.best_candidate();
  return place != nullptr && place->lines == request.lines ? place : guess(request);
}

Place* SequencePredictor::locate(const Request& request) {
  if (request.is_for_slab()) return nullptr;
  review_leader();
  Place* place = journal_.search(request.lines, led_by_);
  if (!remembers()) return nullptr;
  return request.lines < kPageLines && !journal_.is_sure() ? nullptr : place;
}

void SequencePredictor::review_leader() {
  const Journal* leader = leader_.load(std::memory_order_relaxed);
  if (leader == nullptr || journal_.now() > 2 * leader->now() + kLeastLead) {
    leader_.store(leader = &journal_, std::memory_order_relaxed);
  }
  const uint64_t own = journal_.now() - reviewed_own_;
  const uint64_t others = leader->now() - reviewed_leader_;
  if (leader != &journal_ && own < kFewestToReview) {
    if (led_by_ == nullptr && reviewed_own_ == 0) led_by_ = leader;
    return;
  }
  led_by_ = leader != &journal_ && own * kMuchBusier < others ? leader : nullptr;
  reviewed_own_ = journal_.now();
  reviewed_leader_ = leader->now();
}

uint64_t SequencePredictor::metadata_bytes() const {
  uint64_t bytes = journal_.metadata_bytes();
  for (const Openings& openings : openings_) bytes += openings.metadata_bytes();
  return bytes;
}

}  // namespace spillway
