// When enqueued work runs. Each stream has a timeline: positions 1, 2, 3 ... of the work enqueued on it. Work
// runs only when something forces a position (a host wait, a query that comes out true, spwSimCompleteTo):
// then that position and everything it depends on runs, in a seeded random order among the legal ones, and
// nothing else does. So work runs as late as the program permits. In Completion::kInstant it runs when it is
// enqueued.
//
// A stream that waits for a word of memory (cuStreamWaitValue32) stands still until the word is there, in
// every mode; whoever asks about it or waits for it looks.
//
// A position without bytes to move costs a counter; only copies, fills, host functions and waits for other
// timelines that are not complete are stored, so millions of positions take no memory.
//
// Order is tracked beside execution and whatever the completion mode: each timeline has a vector clock of
// what comes before its next work, and host() is what the host has learnt to be complete by waiting and
// asking. A new piece of work comes after all that the host knew when it was enqueued. Guarded by State's
// lock, which force() gives up only while a host function runs.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "sim/cuda/clock.h"
#include "sim/cuda/config.h"

namespace spillway::sim {

struct Work;
struct WorkDeleter {
  void operator()(Work* work) const;
};
using WorkPtr = std::unique_ptr<Work, WorkDeleter>;
using Lock = std::unique_lock<std::mutex>;

// A point of a timeline, and what came before it, itself included; as it is made, one that is long over.
struct WorkPoint {
  TimelineId timeline = kNoTimeline;
  uint64_t position = 0;
  VectorClock clock;
};

class Scheduler {
 public:
  // Tells whether the work may run now, as far as memory says.
  using IsReady = bool (*)(const Work& work);
  // Runs the work. If it must be run without the lock, gives it up and takes it again.
  using Run = void (*)(Work& work, Lock& lock);

  // Says what a thread does that waits for work of others (work.h, kExternal).
  struct Hold {
    uint64_t (*look)() = nullptr;
    void (*wait)(uint64_t looked) = nullptr;
  };
  void set_hold(Hold hold) { hold_ = hold; }

  void reset(Completion completion, uint64_t seed, IsReady is_ready, Run run);

  TimelineId open();
  void close(TimelineId id);

  // Adds work (null: only a position) to the end of the timeline and returns its position.
  uint64_t enqueue(TimelineId id, WorkPtr work, Lock& lock);
  // What the timeline does next comes after this point of another one, of which `clock` is what came before
  // it.
  void order_after(TimelineId id, TimelineId other, uint64_t position, const VectorClock& clock);
  void order_after(TimelineId id, const WorkPoint& point) {
    if (point.timeline != kNoTimeline) order_after(id, point.timeline, point.position, point.clock);
  }

  uint64_t enqueued(TimelineId id) const { return timelines_[id].enqueued; }
  WorkPoint end_of(TimelineId id) const { return {id, enqueued(id), clock(id)}; }
  bool complete(TimelineId id, uint64_t position) const { return timelines_[id].completed >= position; }
  bool is_complete(const WorkPoint& point) const {
    return point.timeline == kNoTimeline || complete(point.timeline, point.position);
  }
  bool host_knows(const WorkPoint& point) const {
    return point.timeline == kNoTimeline || host_.reached(point.timeline, point.position);
  }
  // Tells whether anything on the timeline has bytes to move or another timeline to wait for.
  bool waits(TimelineId id) const { return !timelines_[id].pending.empty(); }
  // Runs what can run of this position and all that it depends on; false if something holds it up.
  bool advance(TimelineId id, uint64_t position, Lock& lock);
  // The same for all that is enqueued anywhere.
  void advance_all(Lock& lock);
  // As advance, and waits for what holds it up.
  void force(TimelineId id, uint64_t position, Lock& lock);
  void force(const WorkPoint& point, Lock& lock) {
    if (point.timeline != kNoTimeline) force(point.timeline, point.position, lock);
  }

  // Returns what came before the timeline's next work, the host's knowledge at the last enqueue included.
  const VectorClock& clock(TimelineId id) const { return timelines_[id].clock; }
  const VectorClock& host() const { return host_; }
  void host_learns(const VectorClock& clock) { host_version_ += host_.join(clock) ? 1 : 0; }

  Completion completion() const { return completion_; }
  // Uniform in [0, count), from the seed.
  uint64_t draw(uint64_t count) { return random_() % count; }

 private:
  struct Item {
    uint64_t position;
    TimelineId after;  // kNoTimeline: this is work
    uint64_t after_position;
    WorkPtr work;
    bool running;
  };
  struct Timeline {
    uint64_t enqueued = 0;
    uint64_t completed = 0;
    uint64_t host_version = 0;
    VectorClock clock;
    std::deque<Item> pending;
  };

  bool is_held_up(const Item& item);
  bool step(TimelineId id, uint64_t until, Lock& lock);
  std::vector<uint64_t> closure(TimelineId id, uint64_t position) const;

  Completion completion_ = Completion::kInstant;
  IsReady is_ready_ = nullptr;
  Run run_ = nullptr;
  std::mt19937_64 random_;
  std::deque<Timeline> timelines_;
  std::vector<TimelineId> closed_;
  VectorClock host_;
  uint64_t host_version_ = 1;
  std::condition_variable ran_;
  Hold hold_;
  // These are of the last look that moved nothing: what it met.
  bool met_external_ = false;
  bool met_running_ = false;
};

}  // namespace spillway::sim
