// Call stacks, each kept once and named by a number.
//
// A stack is known by a hash of 64 bits of what it was captured as (return addresses; code objects and
// positions). Asking whether one is known takes no lock and allocates nothing. A new one is added with its
// frames under a lock; that is rare: a program has some hundreds to thousands. The table is of fixed size;
// when it is nearly full, further stacks have number 0, which is counted.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "stats/lock.h"

namespace spillway {

// A frame by its names, or, with an address, one that is named when it is written.
struct StackFrame {
  uint64_t address = 0;  // a return address
  std::string function;
  std::string file;
  uint64_t line = 0;
};

class StackTable {
 public:
  static constexpr uint32_t kCapacity = 1u << 17;
  struct Stack {
    uint32_t number = 0;
    std::vector<StackFrame> frames;  // innermost first
  };

  // Has so many slots.
  explicit StackTable(uint32_t capacity = kCapacity)
      : capacity_(capacity), slots_(new std::atomic<uint64_t>[capacity]()) {}

  // 0: not known. `hash` is not 0.
  uint32_t find(uint64_t hash) const {
    for (uint32_t i = 0; i < kProbes; ++i) {
      const uint32_t slot = slot_of(hash, i);
      const uint64_t held = slots_[slot].load(std::memory_order_acquire);
      if (held == hash) return slot + 1;
      if (held == 0) return 0;
    }
    return 0;
  }

  // The number of the stack from now on; that of another thread's call if it came first, 0 if there is no
  // room.
  uint32_t add(uint64_t hash, std::vector<StackFrame> frames) {
    const Lock lock(mutex_);
    if (const uint32_t known = find(hash); known != 0) return known;
    for (uint32_t i = 0; i < kProbes; ++i) {
      const uint32_t slot = slot_of(hash, i);
      if (slots_[slot].load(std::memory_order_relaxed) != 0) continue;
      added_.push_back({slot + 1, std::move(frames)});
      slots_[slot].store(hash, std::memory_order_release);
      return slot + 1;
    }
    refused_.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }

  // Returns those added since the last call.
  std::vector<Stack> take_added() {
    const Lock lock(mutex_);
    return std::exchange(added_, {});
  }
  uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kProbes = 64;
  uint32_t slot_of(uint64_t hash, uint32_t probe) const {
    return static_cast<uint32_t>(hash + probe) % capacity_;
  }

  const uint32_t capacity_;
  const std::unique_ptr<std::atomic<uint64_t>[]> slots_;
  BlockingMutex mutex_;
  std::vector<Stack> added_ SPW_GUARDED_BY(mutex_);
  std::atomic<uint64_t> refused_{0};
};

}  // namespace spillway
