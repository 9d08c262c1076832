#include "driver/event.h"

namespace spillway {

Result<Event> Event::create(const Driver& driver) {
  Event event;
  Status status = driver.check(driver.cuEventCreate(&event.event_, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  if (!status.ok()) return status;
  event.driver_ = &driver;
  return event;
}

Status Event::record(CUstream stream) const {
  return driver_->check(driver_->cuEventRecord(event_, stream), "cuEventRecord");
}

Result<bool> Event::completed() const {
  const CUresult answer = driver_->cuEventQuery(event_);
  if (answer == CUDA_ERROR_NOT_READY) return false;
  if (Status status = driver_->check(answer, "cuEventQuery"); !status.ok()) return status;
  return true;
}

Status Event::synchronize() const {
  return driver_->check(driver_->cuEventSynchronize(event_), "cuEventSynchronize");
}

Status Event::make_wait(CUstream stream) const {
  return driver_->check(driver_->cuStreamWaitEvent(stream, event_, CU_EVENT_WAIT_DEFAULT),
                        "cuStreamWaitEvent");
}

void Event::reset() noexcept {
  if (driver_ != nullptr) driver_->cuEventDestroy(event_);
  driver_ = nullptr;
  event_ = nullptr;
}

Result<Event> EventPool::acquire() {
  {
    const std::lock_guard guard(lock_);
    if (!kept_.empty()) {
      Event event = std::move(kept_.back());
      kept_.pop_back();
      return event;
    }
  }
  return Event::create(*driver_);
}

void EventPool::give_back(Event event) noexcept {
  const std::lock_guard guard(lock_);
  try {
    kept_.push_back(std::move(event));
  } catch (const std::bad_alloc&) {
    // It is destroyed.
  }
}

size_t EventPool::kept() const {
  const std::lock_guard guard(lock_);
  return kept_.size();
}

void EventPool::clear() {
  std::vector<Event> gone;
  const std::lock_guard guard(lock_);
  gone.swap(kept_);
}

}  // namespace spillway
