// The program's own memory of cuMemCreate: counted until it is released as often as it was created and
// retained, and mapped nowhere, which is when the driver takes it back. Memory that is not known (of the
// host, of other processes, from before the hooks) is ignored. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>

#include "stats/lock.h"

namespace spillway {

class CreatedMemory {
 public:
  static CreatedMemory& instance();

  // Each after the driver's call succeeded.
  void created(uint64_t handle, int device, uint64_t bytes) noexcept;
  void retained(uint64_t handle) noexcept;  // cuMemRetainAllocationHandle, or by import
  void released(uint64_t handle) noexcept;
  void mapped(uint64_t address, uint64_t handle) noexcept;
  // All that is mapped in the range.
  void unmapped(uint64_t address, uint64_t bytes) noexcept;

 private:
  // The driver gives no handle anew while it is held or mapped.
  struct Uses {
    uint64_t references = 0;
    uint64_t mappings = 0;
  };
  using Handles = std::unordered_map<uint64_t, Uses>;

  void drop_unused(Handles::iterator handle) SPW_REQUIRES(mutex_);

  BlockingMutex mutex_;
  Handles handles_ SPW_GUARDED_BY(mutex_);
  std::map<uint64_t, uint64_t> mappings_ SPW_GUARDED_BY(mutex_);  // handles by address
};

}  // namespace spillway
