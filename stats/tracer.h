// Records a process' events, until a TraceWriter has put them into a file.
//
// Each heap has a ring of its own for its blocks' events. Everything rarer goes through one list under a
// lock. Both are bounded: where the writer falls behind, events are dropped and counted, and nobody waits for
// it.
//
// Thread-safe, but for collect() and below, which are one thread's. Lives as long as what it gave rings to.
#pragma once

#include <semaphore.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stats/lock.h"
#include "stats/stack_table.h"
#include "stats/trace_record.h"
#include "stats/trace_ring.h"

namespace spillway {

class Tracer {
 public:
  // A record, and its payload where its kind has one.
  struct Note {
    TraceRecord record;
    std::string payload;
  };
  static constexpr size_t kMostNotes = 1 << 16;
  static constexpr size_t kMostTags = UINT16_MAX;
  static constexpr size_t kLongestText = 256;

  Tracer();
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // For a heap; lives as long as the tracer. Throws std::bad_alloc.
  TraceRing* add_ring(int device);

  // Anything but a heap's blocks; `record.ticks` is set here.
  void note(TraceRecord record, std::string payload = {}) noexcept;
  // The text is cut at kLongestText bytes.
  void mark(std::string_view text) noexcept;
  // A number for the name, to be put in trace_thread.tag; 0 for no name, and when there are too many.
  uint16_t tag(std::string_view name);

  StackTable& stacks() { return stacks_; }
  bool ticks_are_steady() const { return steady_; }
  uint64_t dropped() const;

  // Waits until a ring is half full, stop_waiting() was called, or so much time has passed.
  void wait(uint64_t milliseconds);
  void stop_waiting();
  // Collects what was recorded before `until_ticks`, in order of time as far as threads' clocks agree; of
  // each ring in its order. Notes and new tags come first.
  void collect(uint64_t until_ticks, std::vector<Note>& notes, std::vector<TraceRecord>& records);

 private:
  void drop_note() noexcept;

  const bool steady_;
  sem_t wake_;
  StackTable stacks_;
  mutable BlockingMutex mutex_;
  std::vector<std::unique_ptr<TraceRing>> rings_ SPW_GUARDED_BY(mutex_);
  std::vector<Note> notes_ SPW_GUARDED_BY(mutex_);
  std::map<std::string, uint16_t, std::less<>> tags_ SPW_GUARDED_BY(mutex_);
  uint64_t dropped_notes_ SPW_GUARDED_BY(mutex_) = 0;
};

}  // namespace spillway
