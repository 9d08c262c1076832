// The functions of the simulated driver that collectives are made of (sim/cuda/sim_control.h), found in the
// library that the program has loaded. Where it is another driver, they do nothing.
#pragma once

#include "sim/cuda/sim_control.h"

namespace spillway::nccl {

class Driver {
 public:
  Driver();

  // False: the stream captures, or there is no simulated driver.
  bool enqueue(CUstream_st* stream, SpwSimReady ready, SpwSimRun run, void* argument) const {
    return enqueue_ != nullptr && enqueue_(stream, ready, run, argument) == 0;
  }
  // A piece of work that does nothing, for what a capture records.
  void touch(CUstream_st* stream) const {
    if (touch_ != nullptr) touch_(stream, nullptr, 0, 0);
  }
  void progress() const {
    if (progress_ != nullptr) progress_();
  }
  bool read(const void* from, void* to, uint64_t bytes) const {
    const SpwSimRange range{reinterpret_cast<uint64_t>(from), bytes, 0, 0};
    return peek_ != nullptr && peek_(&range, 1, to) == 0;
  }
  bool write(void* to, const void* from, uint64_t bytes) const {
    const SpwSimRange range{reinterpret_cast<uint64_t>(to), bytes, 0, 0};
    return poke_ != nullptr && poke_(&range, 1, from) == 0;
  }

 private:
  decltype(&spwSimEnqueueExternal) enqueue_ = nullptr;
  decltype(&spwSimTouch) touch_ = nullptr;
  decltype(&spwSimProgress) progress_ = nullptr;
  decltype(&spwSimPeek) peek_ = nullptr;
  decltype(&spwSimPoke) poke_ = nullptr;
};

const Driver& driver();

}  // namespace spillway::nccl
