// One piece of enqueued work that does something when it runs: moves bytes or calls the host. Addresses are
// resolved when it runs, as on a device: what is mapped there by then is what it touches.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "sim/cuda/cuda_api.h"
#include "sim/cuda/sim_control.h"

namespace spillway::sim {

struct SharedEvent;

struct Work {
  enum class Kind : uint8_t { kCopy, kFill, kTouch, kHostFunction, kCallback, kWait, kWaitValue, kExternal };
  Kind kind = Kind::kCopy;
  uint64_t to = 0;
  uint64_t from = 0;
  uint64_t bytes = 0;
  bool to_pageable = false;  // kCopy: ordinary host memory
  bool from_pageable = false;
  bool moves_nothing = false;       // kCopy: its bytes mean nothing
  std::array<char, 16> value{};     // kFill, kTouch
  uint32_t width = 1;               // kFill, kTouch: bytes of the value
  uint32_t awaited = 0;             // kWaitValue, of the word at `to`
  unsigned comparison = 0;          // CUstreamWaitValue_flags
  std::vector<char> staged;         // kCopy: the source, taken at the call from pageable memory
  std::vector<SpwSimRange> ranges;  // kTouch: what is written
  CUhostFn function = nullptr;      // kHostFunction
  CUstreamCallback callback = nullptr;
  CUstream stream = nullptr;  // kCallback
  void* argument = nullptr;
  std::shared_ptr<SharedEvent> event;  // kWait: for another process
  SpwSimReady ready = nullptr;         // kExternal, with `argument`; null: at once
  SpwSimRun run = nullptr;
  uint64_t record = 0;
};

}  // namespace spillway::sim
