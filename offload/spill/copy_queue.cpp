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
  const Lock lock(mutex_);
  const Turns turns(*this, urgency);
  Status status;
  bool has_more = true;
  while (has_more && status.ok()) {
    changed_.wait(mutex_, [&]() SPW_REQUIRES(mutex_) { return is_next(turns); });
    // Whoever becomes urgent meanwhile is next.
    if (in_flight_.size() >= depth_()) {
      status = retire_oldest();
      continue;
    }
    Result<bool> enqueued = enqueue_next(stream, enqueue);
    has_more = enqueued.ok() && enqueued.value();
    if (!enqueued.ok()) status = enqueued.take_status();
    go_last(turns);
  }
  return status;
}

Status CopyQueue::retire_oldest() {
  Event oldest = std::move(in_flight_.front());
  in_flight_.pop_front();
  const Call call(*this);
  return wait_for(std::move(oldest));
}

Status CopyQueue::wait_for(Event event) {
  Status status = event.synchronize();
  if (status.ok()) events_.give_back(std::move(event));
  return status;
}

Result<Event> CopyQueue::mark(CUstream stream) {
  Result<Event> event = events_.acquire();
  if (!event.ok()) return event;
  if (Status status = event->record(stream); !status.ok()) return status;
  return event;
}

Result<bool> CopyQueue::enqueue_next(CUstream stream, const Enqueue& enqueue) {
  Result<bool> enqueued = false;
  const auto enqueue_and_mark = [&]() SPW_REQUIRES(mutex_) -> Result<Event> {
    const Call call(*this);
    enqueued = enqueue();
    return enqueued.ok() ? mark(stream) : Result<Event>(enqueued.take_status());
  };
  Result<Event> event = enqueue_and_mark();
  if (!event.ok()) return event.take_status();
  in_flight_.push_back(std::move(event.value()));
  return enqueued;
}

void CopyQueue::reorder() {
  const Lock lock(mutex_);
  changed_.notify_all();
}

size_t CopyQueue::waiting() const {
  const Lock lock(mutex_);
  return waiters_.size();
}

}  // namespace spillway
