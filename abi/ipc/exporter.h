// Shows blocks of this process to others: makes handles of them, and answers, in a thread of its own, who
// asks for the pages behind one. A page is exported when it is asked for and its descriptor closed when it is
// sent, so showing a block costs no descriptor.
//
// Made by the first handle, and there to the end of the process. Thread-safe.
#pragma once

#include "abi/ipc/channel.h"
#include "abi/ipc/handle.h"
#include "driver/status.h"
#include "stats/lock.h"

namespace spillway {

class Exporter {
 public:
  static Exporter& instance();

  // See spw_ipc_get_handle.
  Status show(const void* pointer, spw_ipc_handle* handle, uint64_t* offset);
  // Tells whether the handle was made by this process.
  bool is_own(const IpcHandle& handle);

 private:
  Exporter() = default;
  // Errors: io.
  Status start() SPW_REQUIRES(mutex_);
  [[noreturn]] void serve();
  static bool answer(const Descriptor& caller);

  BlockingMutex mutex_;
  ProcessId process_ SPW_GUARDED_BY(mutex_){};  // zero until it is started
  Descriptor listener_;                         // set before the thread begins, which reads it
};

}  // namespace spillway
