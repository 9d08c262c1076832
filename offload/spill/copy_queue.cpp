#include "offload/spill/copy_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace spillway {

CopyQueue::Waiters::const_iterator CopyQueue::next() const {
  const auto urgent = std::find_if(waiters_.begin(), waiters_.end(),
                                   [](const Urgency* urgency) { return urgency->is_waited_for(); });
  return urgent != waiters_.end() ? urgent : waiters_.begin();
}

Status CopyQueue::run(CUstream stream, const Urgency& urgency, const Enqueue& enqueue) {
  Lock lock(mutex_);
  Turns turns(*this, urgency);
  Status status;
  bool has_more = true;
  while (has_more && status.ok()) {
    changed_.wait(lock, [&] { return turns.is_next(); });
    // Whoever becomes urgent meanwhile is next.
    if (in_flight_.size() >= depth_()) {
      status = retire_oldest(lock);
      continue;
    }
    Result<bool> enqueued = enqueue_next(lock, stream, enqueue);
    has_more = enqueued.ok() && enqueued.value();
    if (!enqueued.ok()) status = enqueued.take_status();
    turns.go_last();
  }
  return status;
}

Status CopyQueue::retire_oldest(Lock& lock) {
  Event front = std::move(in_flight_.front());
  in_flight_.pop_front();
  const Call call(*this, lock);
  Event oldest = std::move(front);
  Status status = oldest.synchronize();
  if (status.ok()) events_.give_back(std::move(oldest));
  return status;
}

Result<Event> CopyQueue::mark(CUstream stream) {
  Result<Event> event = events_.acquire();
  if (!event.ok()) return event;
  if (Status status = event->record(stream); !status.ok()) return status;
  return event;
}

Result<bool> CopyQueue::enqueue_next(Lock& lock, CUstream stream, const Enqueue& enqueue) {
  Result<bool> enqueued = false;
  const auto enqueue_and_mark = [&]() -> Result<Event> {
    const Call call(*this, lock);
    enqueued = enqueue();
    return enqueued.ok() ? mark(stream) : Result<Event>(enqueued.take_status());
  };
  Result<Event> event = enqueue_and_mark();
  if (!event.ok()) return event.take_status();
  in_flight_.push_back(std::move(event.value()));
  return enqueued;
}

void CopyQueue::reorder() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

size_t CopyQueue::waiting() const {
  const std::lock_guard lock(mutex_);
  return waiters_.size();
}

}  // namespace spillway
