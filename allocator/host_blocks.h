// Blocks that lie outside of device memory (see HostPlacement), of every arena of the process. They are in no
// heap and in none of the device's counters but their own. Found by address when the address map knows no
// live block there, so that blocks of the device pay nothing for them.
//
// Thread-safe; no lock is held while a placement is called.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "allocator/last_rungs.h"
#include "driver/status.h"
#include "stats/counters.h"
#include "stats/lock.h"

namespace spillway {

class HostBlocks {
 public:
  static HostBlocks& instance();

  // A block of `placement`, counted in `counters`, which must outlive it; null where there is none.
  void* place(const std::shared_ptr<const HostPlacement>& placement, uint64_t bytes, CUstream stream,
              DeviceCounters& counters);
  // These do what those of Arena do; `unknown` is the answer where no placed block begins.
  Status free(uint64_t va, Status unknown);
  Status record_stream(uint64_t va, CUstream stream, Status unknown);
  Status quarantine(uint64_t va, Status unknown);
  Status release_quarantined(uint64_t va, Status unknown);
  // Gives back every block that is counted there.
  void release_all(const DeviceCounters& counters);

 private:
  struct Block {
    uint64_t bytes;
    std::vector<CUstream> streams;
    std::shared_ptr<const HostPlacement> placement;
    DeviceCounters* counters;
    bool quarantined = false;
  };
  using Blocks = std::map<uint64_t, Block>;  // by address

  static void release(const Blocks::node_type& block);
  Status take(uint64_t va, bool quarantined, Status unknown);

  BlockingMutex mutex_;
  Blocks blocks_ SPW_GUARDED_BY(mutex_);
};

}  // namespace spillway
