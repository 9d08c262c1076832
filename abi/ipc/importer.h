// Blocks of other processes that are open here. Pages that are open already are mapped once, however many
// handles name them. Thread-safe; who opens waits for who opens.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "abi/ipc/handle.h"
#include "driver/status.h"
#include "stats/lock.h"

namespace spillway {

class Importer {
 public:
  static Importer& instance();

  // See spw_ipc_open_handle and spw_ipc_close_handle.
  Status open(const spw_ipc_handle& handle, int device, void** out);
  Status close(void* pointer);

 private:
  // The process, its pages, how many, and the device here.
  using Key = std::tuple<ProcessId, uint64_t, uint32_t, int>;
  struct Opened {
    void* at = nullptr;
    uint32_t uses = 0;
  };

  Importer() = default;
  void close_unused() SPW_REQUIRES(mutex_);

  BlockingMutex mutex_;
  // One without uses could not be closed yet.
  std::map<Key, Opened> opened_ SPW_GUARDED_BY(mutex_);
};

}  // namespace spillway
