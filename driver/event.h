// Events that mark a point in a stream's work, without timing (an event with timing makes the device write a
// stamp). An event belongs to the context that was current when it was created, and may only be recorded on
// that context's streams.
#pragma once

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "driver/context.h"
#include "driver/driver.h"

namespace spillway {

// Owner of one event; move-only, 16 bytes. The Driver must outlive it. Destroying an event whose work is
// still pending is legal and waits for nothing. Destructors ignore the driver's answer, as in
// driver/memory.h.
class Event {
 public:
  Event() = default;
  Event(Event&& other) noexcept { swap(other); }
  Event& operator=(Event&& other) noexcept {
    Event(std::move(other)).swap(*this);
    return *this;
  }
  ~Event() { reset(); }

  static Result<Event> create(const Driver& driver);

  CUevent get() const { return event_; }
  explicit operator bool() const { return event_ != nullptr; }

  // Marks the end of what is enqueued on the stream now. Not allowed on a stream that is being captured.
  Status record(CUstream stream) const;
  // Tells whether all work before the last record is done; true where nothing was recorded. Never waits.
  Result<bool> completed() const;
  // Waits on the host for it.
  Status synchronize() const;
  // Makes later work of `stream` wait for it, on the device.
  Status make_wait(CUstream stream) const;

  void reset() noexcept;
  void swap(Event& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(event_, other.event_);
  }

 private:
  const Driver* driver_ = nullptr;
  CUevent event_ = nullptr;
};

// Events kept for reuse, because creating one costs a driver call. All of one context: the caller makes it
// current before acquire. Thread-safe; the lock is not held during a driver call.
class EventPool {
 public:
  // `context`, where given, is that of the events, and must outlive the pool.
  explicit EventPool(const Driver& driver, const RetainedContext* context = nullptr)
      : driver_(&driver), context_(context) {}

  // False where a question about its events is undefined, since the program has reset the device.
  bool may_ask() const { return context_ == nullptr || context_->check_alive().ok(); }

  // A kept event, or a new one. What it marks is undefined until it is recorded.
  Result<Event> acquire();
  // Keeps an event for later. Its work may still be pending: recording it again is legal.
  void give_back(Event event) noexcept;
  size_t kept() const;
  // Destroys the kept events.
  void clear();

 private:
  const Driver* driver_;
  const RetainedContext* context_;
  mutable std::mutex lock_;
  std::vector<Event> kept_;
};

}  // namespace spillway
