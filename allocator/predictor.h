// Remembers where the requests of a heap were served before, and tells which of them comes next: the sequence
// of large requests, and the openings of slabs, which follow it. A program that repeats itself is served by
// guesses alone.
//
// Of all heaps of an arena the busiest tells the time to others, by its sequence. Guarded by the heap's lock,
// but for the leader's clock.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

#include "allocator/cached_range.h"
#include "allocator/new_sizes.h"
#include "allocator/request.h"
#include "allocator/sequence_predictor.h"
#include "allocator/size_classes.h"
#include "allocator/slab_history.h"

namespace spillway {

class Predictor {
 public:
  // `leader`: the arena's; the sequence of its busiest heap.
  explicit Predictor(std::atomic<const SequencePredictor*>& leader) : leader_(leader) {}

  // The range that served this request when the program was last here, as far as is known without a search;
  // free or not; null where nothing is expected.
  CachedRange* guess(const Request& request) const {
    if (!remembers()) return nullptr;
    return request.is_for_slab() ? slab_histories_[request.size_class].guess(sequence_)
                                 : sequence_.guess(request.quanta);
  }
  // The same, of a request that was not served at once. Counted, for tests.
  CachedRange* guess_again(const Request& request) {
    ++guesses_;
    return guess(request);
  }
  // Returns the same with what the last locate() found out.
  CachedRange* expected(const Request& request) const;
  // Looks for where the program is; null where that says nothing of this request.
  CachedRange* locate(const Request& request);
  // For a request that is not served at once: what note() needs may come from memory meanwhile.
  [[gnu::always_inline]] void prefetch(const Request& request) const {
    if (!request.is_for_slab()) sequence_.prefetch(request.quanta);
  }
  // Notes that the range serves the request.
  void note(const Request& request, CachedRange* range) {
    if (!request.is_for_slab()) [[likely]] {
      sequence_.append(request.quanta, range, led_by_);
      if (sequence_.now() % kRequestsToReview == 0) [[unlikely]]
        review_leader();
    } else {
      slab_histories_[request.size_class].append(sequence_, range);
    }
  }

  // A request for so many quanta was served by no guess, not even after a look.
  void note_miss(uint32_t quanta) {
    const uint64_t unrepeated = sequence_.unrepeated();
    if (unrepeated == 0) new_sizes_.forget();
    new_sizes_.note(quanta);
    draws_sizes_ = unrepeated >= kRequestsToSleepSoon && (draws_sizes_ || new_sizes_.are_many());
    const bool is_light = now() - window_began_ > 2 * kMissesInWindow;
    if (!is_light && ++window_misses_ < kMissesInWindow) return;
    heavy_windows_ = is_light ? 0 : heavy_windows_ + 1;
    window_misses_ = 0;
    window_began_ = now();
  }
  // Tells whether more than half of the requests have not been served at once for long: the program may
  // repeat itself in small, but not in what it holds. What it asked for before is worth a guess and no
  // search.
  bool misses_often() const {
    return heavy_windows_ >= kWindowsToTell && now() - window_began_ <= 2 * kMissesInWindow;
  }

  // Where mappings are many, the ranges of a program that does not repeat itself are not remembered, because
  // what settles here and there by chance breaks the runs of pages that larger blocks need without a view.
  void keep_together(bool together) { keeps_together_ = together; }
  bool remembers() const {
    return !keeps_together_ || led_by_ != nullptr || sequence_.followed() >= kRequestsToTrust;
  }
  // Tells whether the program has not repeated itself for so long that what it asked for before says nothing.
  // Then ranges are not looked for where they were before, but for one request in many, which may find that
  // the program repeats itself again: ever fewer, since a look is dear where few sizes are asked for.
  bool is_asleep() const {
    return sequence_.unrepeated() >= (draws_sizes_ ? kRequestsToSleepSoon : kRequestsToSleep) &&
           (led_by_ == nullptr || led_by_->then() == SequencePredictor::kNever);
  }
  bool is_time_to_look() const {
    const uint64_t unrepeated = sequence_.unrepeated() / kRequestsForLook;
    const uint64_t interval = std::bit_floor(std::clamp(unrepeated, kFewestToLook, kMostToLook));
    return sequence_.now() % interval == 0;
  }
  // Tells whether the program is known to be where it was before.
  bool repeats() const { return sequence_.then() != SequencePredictor::kNever; }
  // Requests noted since the beginning.
  uint64_t now() const { return sequence_.now(); }
  // See SequencePredictor::mark_expected.
  uint64_t mark_expected() { return sequence_.mark_expected(); }

  // Tells whether the slab at that range is where one would be opened now, or may be so from now on:
  // `may_take` tells of another range whether it could be had. A program that repeats itself otherwise finds
  // its slabs, from pass to pass, in each other's ranges.
  template <typename MayTake>
  bool reopens(uint32_t size_class, CachedRange* range, MayTake may_take) {
    SlabHistory& openings = slab_histories_[size_class];
    if (openings.opened_now(sequence_, range)) return true;
    const CachedRange* wanted = remembers() ? openings.guess(sequence_) : nullptr;
    if (wanted != nullptr && wanted != range && may_take(*wanted)) return false;
    openings.append(sequence_, range);
    return true;
  }

  // Counts how often a request that was not served at once was tried in the range that was guessed, and how
  // often the sequence was searched. For tests.
  struct Looks {
    uint64_t guessed = 0;
    uint64_t searched = 0;
  };
  Looks looks() const { return {guesses_, sequence_.searches()}; }
  uint64_t metadata_bytes() const;

 private:
  static constexpr uint64_t kRequestsToReview = 1024;
  // In the first pass of programs that repeat themselves, eight requests in a row were as before at least
  // once in 767 (docs/decisions/unrepeated.md).
  static constexpr uint64_t kRequestsToSleep = 1024;
  // The same of a program that asks for ever new sizes: as many as are looked at for that (NewSizes).
  static constexpr uint64_t kRequestsToSleepSoon = 64;
  static constexpr uint64_t kRequestsForLook = 256;
  static constexpr uint64_t kFewestToLook = 64;
  static constexpr uint64_t kMostToLook = 1024;
  // Misses are counted in windows of so many, which are light where there were twice as many requests.
  static constexpr uint32_t kMissesInWindow = 1024;
  static constexpr uint32_t kWindowsToTell = 16;
  // Where mappings are many, a program repeats itself when so many requests in a row were as remembered.
  static constexpr uint32_t kRequestsToTrust = 64;

  // Decides whether another heap's sequence should tell this one the time: only while it is much busier. Two
  // busy threads would else pass its cache line to and fro with every request.
  void review_leader();

  SequencePredictor sequence_;
  NewSizes new_sizes_;  // since it last repeated itself
  std::array<SlabHistory, kClassCount> slab_histories_;
  uint64_t guesses_ = 0;
  uint64_t window_began_ = 0;  // at this position
  uint32_t window_misses_ = 0;
  uint32_t heavy_windows_ = 0;  // in a row
  bool draws_sizes_ = false;    // new sizes were many, and nothing was repeated since
  bool keeps_together_ = false;
  std::atomic<const SequencePredictor*>& leader_;
  const SequencePredictor* led_by_ = nullptr;
  uint64_t reviewed_own_ = 0;  // requests noted here and by the leader at the last review
  uint64_t reviewed_leader_ = 0;
};

}  // namespace spillway
