// The two streams on which blocks are copied between a device and the host, one for each direction, and who
// goes first: moves are made of parts, and what somebody waits for overtakes what was begun ahead. While
// somebody waits for bytes to come back, what is moved out keeps only one copy in flight, because traffic
// both ways slows each.
//
// Thread-safe. The context must outlive it.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "driver/driver.h"
#include "driver/event.h"
#include "offload/spill/copy_queue.h"
#include "stats/lock.h"

namespace spillway {

class CopyStreams {
 public:
  // Why so large, and so few: docs/decisions/copy-order.md.
  static constexpr size_t kPartBytes = size_t{8} << 20;
  static constexpr size_t kDepth = 4;

  // The context must be current. Errors: driver.
  static Result<std::unique_ptr<CopyStreams>> create(const Driver& driver);
  ~CopyStreams();
  CopyStreams(const CopyStreams&) = delete;
  CopyStreams& operator=(const CopyStreams&) = delete;

  CUstream out() const { return out_; }
  CUstream in() const { return in_; }
  EventPool& events() { return events_; }
  const Driver& driver() const { return driver_; }

  // Enqueued so far.
  uint64_t out_bytes() const { return out_bytes_.load(std::memory_order_relaxed); }
  uint64_t in_bytes() const { return in_bytes_.load(std::memory_order_relaxed); }

  struct Copy {
    std::byte* host = nullptr;
    CUdeviceptr device = 0;
    size_t bytes = 0;
  };
  // The parts of a move, each in its turn: returns when all are enqueued. The context must be current, and
  // the host's memory live until the copies are done. Errors: driver; parts of it may be under way then.
  Status move_out(std::span<const Copy> copies);
  Status move_in(std::span<const Copy> copies, const Urgency& urgency);
  // For those who may not wait on the host: enqueued whole, at once, behind what is there. Else the same.
  Status copy_out(std::byte* host, CUdeviceptr device, size_t bytes);
  Status copy_in(CUdeviceptr device, const std::byte* host, size_t bytes);
  // Waits for everything that was enqueued so far.
  Status drain_out() const;
  Status drain_in() const;

  // Takes note of a move that failed: where the driver's error lasts, as after a fault of a kernel, the copy
  // streams are off from then on. The context must be current. Passes the error on.
  Status note_failure(Status failed);
  // The first error of that kind, which every move is to answer then; else ok. Calls no driver.
  Status why_off() const;
  // Returns the driver's number of the same; 0 while the copy streams are on.
  int lasting_error() const { return lasting_error_.load(); }

  // Somebody waits for a move, for as long as this lives.
  class Demand {
   public:
    Demand(CopyStreams& copy_streams, Urgency& urgency) : copies_(copy_streams), urgency_(urgency) {
      copies_.wait(urgency_, 1);
    }
    ~Demand() { copies_.wait(urgency_, -1); }
    Demand(const Demand&) = delete;
    Demand& operator=(const Demand&) = delete;

   private:
    CopyStreams& copies_;
    Urgency& urgency_;
  };
  // A move brings bytes back, for as long as this lives.
  class Inbound {
   public:
    Inbound(CopyStreams& copy_streams, const Urgency& urgency) : copies_(copy_streams), urgency_(urgency) {
      copies_.begin_inbound(urgency_);
    }
    ~Inbound() { copies_.end_inbound(urgency_); }
    Inbound(const Inbound&) = delete;
    Inbound& operator=(const Inbound&) = delete;

   private:
    CopyStreams& copies_;
    const Urgency& urgency_;
  };
  bool somebody_waits() const { return waiting_.load(std::memory_order_relaxed) > 0; }
  // Moves that have parts to come.
  size_t moving_out() const { return outward_.waiting(); }
  size_t moving_in() const { return inward_.waiting(); }

 private:
  explicit CopyStreams(const Driver& driver);

  void wait(Urgency& urgency, int change);
  void begin_inbound(const Urgency& urgency);
  void end_inbound(const Urgency& urgency);
  size_t depth_out() const;

  const Driver& driver_;
  EventPool events_;
  CUstream out_ = nullptr;
  CUstream in_ = nullptr;
  std::atomic<int> waiting_{0};
  std::atomic<uint64_t> out_bytes_{0};
  std::atomic<uint64_t> in_bytes_{0};
  mutable BlockingMutex mutex_;
  std::vector<const Urgency*> inbound_ SPW_GUARDED_BY(mutex_);
  std::string why_off_ SPW_GUARDED_BY(mutex_);
  std::atomic<int> lasting_error_{0};
  CopyQueue outward_;
  CopyQueue inward_;
};

}  // namespace spillway
