// Device and host memory that the program took from the driver itself, by kind: what Spillway sees but does
// not serve. Totals are annotations of the device (preload_managed_bytes and so on), so dumps show them.
// Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>

#include "stats/lock.h"

namespace spillway {

enum class DriverMemory : uint8_t {
  kPlain,    // cuMemAlloc, where the driver had to serve
  kManaged,  // cuMemAllocManaged
  kArray,    // arrays and mipmapped arrays; their size as described, without what the driver adds
  kHost,     // pinned host memory
  kVmm,      // cuMemCreate, until it is released and mapped nowhere
  kPool,     // the stream-ordered calls, where the driver had to serve
  kGraph,    // allocation nodes, until a node or the program frees their memory
  kCount
};

class Accounts {
 public:
  static Accounts& instance();

  // `key`: the pointer or handle, which remove() names again. `context`: that with which it goes; null for
  // none.
  void add(DriverMemory kind, int device, const void* context, uint64_t key, uint64_t bytes) noexcept;
  // Unknown keys are ignored.
  void remove(DriverMemory kind, uint64_t key) noexcept;
  void context_ended(const void* context) noexcept;

 private:
  struct Row {
    int device;
    const void* context;
    uint64_t bytes;
  };
  void change(DriverMemory kind, const Row& row, bool is_added) SPW_REQUIRES(mutex_);

  BlockingMutex mutex_;
  std::array<std::unordered_map<uint64_t, Row>, static_cast<size_t>(DriverMemory::kCount)> rows_
      SPW_GUARDED_BY(mutex_);
  std::map<std::pair<DriverMemory, int>, uint64_t> totals_ SPW_GUARDED_BY(mutex_);  // by device
};

}  // namespace spillway
