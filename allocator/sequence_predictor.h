// Where the requests of a heap were served before, and which of them comes next: the journal of large
// requests, and the openings of slabs, which follow it. A program that repeats itself is served by guesses
// alone.
//
// Of all heaps of an arena the busiest tells the time to others, by its journal. Guarded by the heap's lock,
// but for the leader's clock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "allocator/journal.h"
#include "allocator/openings.h"
#include "allocator/place.h"
#include "allocator/request.h"
#include "allocator/size_classes.h"

namespace spillway {

class SequencePredictor {
 public:
  // `leader`: the arena's; the journal of its busiest heap.
  explicit SequencePredictor(std::atomic<const Journal*>& leader) : leader_(leader) {}

  // The place that served this request when the program was last here, as far as is known without a search;
  // free or not; null where nothing is expected.
  Place* guess(const Request& request) const {
    if (!remembers()) return nullptr;
    return request.is_for_slab() ? openings_[request.size_class].guess(journal_)
                                 : journal_.guess(request.lines);
  }
  // The same, of a request that was not served at once. Counted, for tests.
  Place* guess_again(const Request& request) {
    ++guesses_;
    return guess(request);
  }
  // The same with what the last locate() found out.
  Place* expected(const Request& request) const;
  // Looks for where the program is; null where that says nothing of this request.
  Place* locate(const Request& request);
  // Notes that the place serves the request.
  void note(const Request& request, Place* place) {
    if (!request.is_for_slab()) [[likely]] {
      journal_.append(request.lines, place, led_by_);
      if (journal_.now() % kRequestsToReview == 0) [[unlikely]]
        review_leader();
    } else {
      openings_[request.size_class].append(journal_, place);
    }
  }

  // Where mappings are many, the places of a program that does not repeat itself are not remembered, because
  // what settles here and there by chance breaks the runs of pages that larger blocks need without a view.
  void keep_together(bool together) { keeps_together_ = together; }
  bool remembers() const {
    return !keeps_together_ || led_by_ != nullptr || journal_.followed() >= kRequestsToTrust;
  }
  // Whether the program is known to be where it was before.
  bool repeats() const { return journal_.then() != Journal::kNever; }
  // Requests noted since the beginning.
  uint64_t now() const { return journal_.now(); }
  // See Journal::mark_expected.
  uint64_t mark_expected() { return journal_.mark_expected(); }

  // Whether the slab at that place is where one would be opened now, or may be so from now on: `may_take`
  // tells of another place whether it could be had. A program that repeats itself otherwise finds its slabs,
  // from pass to pass, in each other's places.
  template <typename MayTake>
  bool reopens(uint32_t size_class, Place* place, MayTake may_take) {
    Openings& openings = openings_[size_class];
    if (openings.opened_now(journal_, place)) return true;
    const Place* wanted = remembers() ? openings.guess(journal_) : nullptr;
    if (wanted != nullptr && wanted != place && may_take(*wanted)) return false;
    openings.append(journal_, place);
    return true;
  }

  // How often a request that was not served at once was tried in the place that was guessed, and how often
  // the journal was searched. For tests.
  struct Looks {
    uint64_t guessed = 0;
    uint64_t searched = 0;
  };
  Looks looks() const { return {guesses_, journal_.searches()}; }
  uint64_t metadata_bytes() const;

 private:
  static constexpr uint64_t kRequestsToReview = 1024;
  // Where mappings are many, a program repeats itself when so many requests in a row were as remembered.
  static constexpr uint32_t kRequestsToTrust = 64;

  // Whether another heap's journal should tell this one the time: only while it is much busier. Two busy
  // threads would else pass its cache line to and fro with every request.
  void review_leader();

  Journal journal_;
  std::array<Openings, kClassCount> openings_;
  uint64_t guesses_ = 0;
  bool keeps_together_ = false;
  std::atomic<const Journal*>& leader_;
  const Journal* led_by_ = nullptr;
  uint64_t reviewed_own_ = 0;  // requests noted here and by the leader at the last review
  uint64_t reviewed_leader_ = 0;
};

}  // namespace spillway
