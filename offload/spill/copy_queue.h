// Decides who copies next on one stream. A large move is many copies, of which only a few are in flight: what
// somebody waits for overtakes the rest of what nobody waits for yet, and equals take turns.
//
// It has no thread: whoever moves something enqueues its own copies, and waits here for its turn.
// Thread-safe; no lock is held during a call of the driver.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>

#include "driver/event.h"
#include "stats/lock.h"

namespace spillway {

// Tells whether somebody waits for a move. A move can become urgent while it is under way: its copies and its
// reads of the disk that are still to come go first from then on.
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

class CopyQueue {
 public:
  // `depth`: how many copies may be in flight now, at least 1. It must not use the queue.
  CopyQueue(EventPool& events, std::function<size_t()> depth) : events_(events), depth_(std::move(depth)) {}
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;

  // Enqueues the next copy of a move, and says whether there are more.
  using Enqueue = std::function<Result<bool>()>;
  // All copies of a move, each in its turn. The stream's context must be current. Errors: those of `enqueue`;
  // driver, then what was enqueued so far may still be under way.
  Status run(CUstream stream, const Urgency& urgency, const Enqueue& enqueue);
  // To be called when an urgency has changed.
  void reorder();
  // Moves that have copies to come.
  size_t waiting() const;

 private:
  using Waiters = std::list<const Urgency*>;

  // A call of the driver for the queue: the mutex is given up meanwhile.
  class SPW_SCOPED_CAPABILITY Call {
   public:
    explicit Call(CopyQueue& queue) SPW_RELEASE(queue.mutex_) : queue_(queue) {
      queue_.is_calling_ = true;
      queue_.mutex_.unlock();
    }
    ~Call() SPW_RELEASE() {  // of the call: takes the mutex again
      queue_.mutex_.lock();
      queue_.is_calling_ = false;
      queue_.changed_.notify_all();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    CopyQueue& queue_;
  };
  // A move that has copies to come. The mutex is held where one ends, too.
  class Turns {
   public:
    Turns(CopyQueue& queue, const Urgency& urgency) SPW_REQUIRES(queue.mutex_)
        : queue_(queue), self_(queue.waiters_.insert(queue.waiters_.end(), &urgency)) {}
    ~Turns() {
      queue_.waiters_.erase(self_);
      queue_.changed_.notify_all();
    }
    Turns(const Turns&) = delete;
    Turns& operator=(const Turns&) = delete;

    Waiters::const_iterator self() const { return self_; }

   private:
    CopyQueue& queue_;
    const Waiters::const_iterator self_;
  };

  Waiters::const_iterator next() const SPW_REQUIRES(mutex_);
  bool is_next(const Turns& turns) const SPW_REQUIRES(mutex_) {
    return !is_calling_ && next() == turns.self();
  }
  void go_last(const Turns& turns) SPW_REQUIRES(mutex_) {
    waiters_.splice(waiters_.end(), waiters_, turns.self());
  }
  // These give the mutex up during their calls.
  Status retire_oldest() SPW_REQUIRES(mutex_);
  Result<bool> enqueue_next(CUstream stream, const Enqueue& enqueue) SPW_REQUIRES(mutex_);
  // Calls of the driver.
  Result<Event> mark(CUstream stream) SPW_EXCLUDES(mutex_);
  Status wait_for(Event event) SPW_EXCLUDES(mutex_);

  EventPool& events_;
  const std::function<size_t()> depth_;
  mutable BlockingMutex mutex_;
  Condition changed_ SPW_GUARDED_BY(mutex_);            // whoever is about to wait must not miss it
  Waiters waiters_ SPW_GUARDED_BY(mutex_);              // in the order of their turns
  std::deque<Event> in_flight_ SPW_GUARDED_BY(mutex_);  // of each copy, or done since nobody looked
  bool is_calling_ SPW_GUARDED_BY(mutex_) = false;      // somebody is in the driver for the queue
};

}  // namespace spillway
