// Who copies next on one stream. A large move is many copies, of which only a few are in flight: what
// somebody waits for overtakes the rest of what nobody waits for yet, and equals take turns.
//
// It has no thread: whoever moves something enqueues its own copies, and waits here for its turn.
// Thread-safe; no lock is held during a call of the driver.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <mutex>

#include "driver/event.h"
#include "offload/spill/urgency.h"

namespace spillway {

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
  using Lock = std::unique_lock<std::mutex>;
  using Waiters = std::list<const Urgency*>;

  // A call of the driver for the queue: the mutex is given up meanwhile.
  class Call {
   public:
    Call(CopyQueue& queue, Lock& lock) : queue_(queue), lock_(lock) {
      queue_.is_calling_ = true;
      lock_.unlock();
    }
    ~Call() {
      lock_.lock();
      queue_.is_calling_ = false;
      queue_.changed_.notify_all();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    CopyQueue& queue_;
    Lock& lock_;
  };
  // A move that has copies to come.
  class Turns {
   public:
    Turns(CopyQueue& queue, const Urgency& urgency)
        : queue_(queue), self_(queue.waiters_.insert(queue.waiters_.end(), &urgency)) {}
    ~Turns() {
      queue_.waiters_.erase(self_);
      queue_.changed_.notify_all();
    }
    Turns(const Turns&) = delete;
    Turns& operator=(const Turns&) = delete;

    bool is_next() const { return !queue_.is_calling_ && queue_.next() == self_; }
    void go_last() { queue_.waiters_.splice(queue_.waiters_.end(), queue_.waiters_, self_); }

   private:
    CopyQueue& queue_;
    const Waiters::const_iterator self_;
  };

  // With the mutex held, like those below; calls give it up meanwhile.
  Waiters::const_iterator next() const;
  Status retire_oldest(Lock& lock);
  Result<bool> enqueue_next(Lock& lock, CUstream stream, const Enqueue& enqueue);
  Result<Event> mark(CUstream stream);

  EventPool& events_;
  const std::function<size_t()> depth_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Waiters waiters_;              // in the order of their turns
  std::deque<Event> in_flight_;  // of each copy, or done since nobody looked
  bool is_calling_ = false;      // somebody is in the driver for the queue
};

}  // namespace spillway
