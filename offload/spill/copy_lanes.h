// The two streams on which blocks are copied between a device and the host, one for each direction, and who
// goes first: while somebody waits for bytes to come back, what is moved out keeps only one copy in flight,
// because traffic both ways slows each.
//
// Thread-safe. The context must outlive it.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "driver/driver.h"
#include "driver/event.h"

namespace spillway {

class CopyLanes {
 public:
  // The context must be current. Errors: driver.
  static Result<std::unique_ptr<CopyLanes>> create(const Driver& driver);
  ~CopyLanes();
  CopyLanes(const CopyLanes&) = delete;
  CopyLanes& operator=(const CopyLanes&) = delete;

  CUstream out() const { return out_; }
  CUstream in() const { return in_; }
  EventPool& events() { return events_; }
  const Driver& driver() const { return driver_; }

  // Enqueued so far.
  uint64_t out_bytes() const { return out_bytes_.load(std::memory_order_relaxed); }
  uint64_t in_bytes() const { return in_bytes_.load(std::memory_order_relaxed); }

  // Enqueued only. The context must be current, and the host's memory live until the copy is done.
  Status copy_out(std::byte* host, CUdeviceptr device, size_t bytes);
  Status copy_in(CUdeviceptr device, const std::byte* host, size_t bytes);
  // Waits for everything that was enqueued so far.
  Status drain_out() const;
  Status drain_in() const;

  // Somebody waits, for as long as this lives.
  class Demand {
   public:
    explicit Demand(CopyLanes& lanes) : lanes_(lanes) {
      lanes_.waiting_.fetch_add(1, std::memory_order_relaxed);
    }
    ~Demand() { lanes_.waiting_.fetch_sub(1, std::memory_order_relaxed); }
    Demand(const Demand&) = delete;
    Demand& operator=(const Demand&) = delete;

   private:
    CopyLanes& lanes_;
  };
  bool somebody_waits() const { return waiting_.load(std::memory_order_relaxed) > 0; }

 private:
  explicit CopyLanes(const Driver& driver) : driver_(driver), events_(driver) {}

  const Driver& driver_;
  EventPool events_;
  CUstream out_ = nullptr;
  CUstream in_ = nullptr;
  std::atomic<int> waiting_{0};
  std::atomic<uint64_t> out_bytes_{0};
  std::atomic<uint64_t> in_bytes_{0};
};

}  // namespace spillway
