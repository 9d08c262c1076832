// The order of one stream's work, as far as the allocator needs it. A free stamps the stream's current epoch
// on the pages it leaves free, which costs a store; an event is recorded only when another stream wants
// those pages, and closes the epoch. Waiting for that event orders everything stamped up to it, so the next
// transfer within it costs nothing.
//
// Guarded by the lock of the heap it belongs to; `waited` of the waiting heap by the waiter's lock.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "driver/event.h"

namespace spillway {

class Timeline {
 public:
  // Frees from now on are stamped with this.
  uint64_t epoch() const { return epoch_; }

  // Records an event after all work enqueued so far unless an event already covers `epoch`. Errors: driver.
  // `recorded` says whether an event was recorded.
  Status close(const Driver& driver, CUstream stream, uint64_t epoch, bool* recorded) {
    *recorded = false;
    // mutant: close-sealed
    if (sealed_) return covered_ ? Status() : Status::invalid_state("the stream is gone");
    if (epoch < recorded_) return {};  // mutant: event-covers
    if (!event_) {
      Result<Event> event = Event::create(driver);
      if (!event.ok()) return event.take_status();
      event_ = std::move(event.value());
    }
    Status status = event_.record(stream);  // mutant: close-event
    if (!status.ok()) return status;
    *recorded = true;
    recorded_ = ++epoch_;  // mutant: event-epoch
    return {};
  }
  const Event& event() const { return event_; }
  // All epochs below this are covered by the event.
  uint64_t recorded() const { return sealed_ ? epoch_ + 1 : recorded_; }

  // The stream goes: nothing is enqueued on it from now on, and close() must not name it any more. `covered`
  // says that the event was recorded after the last of its work; without that only a wait of the host for the
  // whole device orders what was stamped.
  void seal(bool covered) {
    sealed_ = true;
    covered_ = covered;
    sealed_at_ = epoch_;
  }
  bool is_covered() const { return sealed_ && covered_; }
  // A sealed timeline's own stream is known to be done. (Other streams, for which frees may still wait, are
  // not meant.)
  bool is_over() const { return sealed_ && complete_ > sealed_at_; }  // mutant: stream-over
  // Another stream takes the place of one that is done.
  void reopen() {
    sealed_ = false;
    recorded_ = complete_ = ++epoch_;
    waited_.clear();  // the new stream has not
  }

  // Around a wait of the host for the whole device: everything stamped before begin_wait() is complete after
  // end_wait().
  // Several threads may wait at a time: each hands back what its own begin_wait() answered.
  uint64_t begin_wait() { return ++epoch_; }  // mutant: wait-epoch
  void end_wait(uint64_t awaited) { complete_ = awaited > complete_ ? awaited : complete_; }
  bool is_complete(uint64_t epoch) const { return epoch < complete_; }  // mutant: complete-epochs

  // Tells whether this timeline's stream already waits for all of `other` up to and including `epoch`.
  bool has_waited(const Timeline* other, uint64_t epoch) const {
    const auto found = waited_.find(other);
    return found != waited_.end() && found->second > epoch;  // mutant: waited-epochs
  }
  void note_wait(const Timeline* other, uint64_t end_epoch) {
    uint64_t& waited = waited_[other];
    if (end_epoch > waited) waited = end_epoch;  // mutant: note-wait
  }

 private:
  uint64_t epoch_ = 1;
  // mutant: first-event
  uint64_t recorded_ = 1;  // the event covers all epochs below this
  uint64_t complete_ = 1;  // all epochs below are complete; 0 is that of pages that were never used
  bool sealed_ = false;
  bool covered_ = false;
  uint64_t sealed_at_ = 0;
  Event event_;
  std::unordered_map<const Timeline*, uint64_t> waited_;  // all epochs below the number are waited for
};

}  // namespace spillway
