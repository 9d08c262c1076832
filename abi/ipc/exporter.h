// Shows blocks of this process to others: makes handles of them, and answers, in a thread of its own, who
// asks for the pages behind one. A page is exported when it is asked for and its descriptor closed when it is
// sent, so showing a block costs no descriptor.
//
// Made by the first handle, and there to the end of the process. Thread-safe.
#pragma once

#include <mutex>

#include "abi/ipc/channel.h"
#include "abi/ipc/handle.h"
#include "driver/status.h"

namespace spillway {

class Exporter {
 public:
  static Exporter& instance();

  // See spw_ipc_get_handle.
  Status show(const void* pointer, spw_ipc_handle* handle, uint64_t* offset);
  // Whether the handle was made by this process.
  bool is_own(const IpcHandle& handle);

 private:
  Exporter() = default;
  // Errors: io.
  Status start();
  [[noreturn]] void serve();
  static bool answer(const Descriptor& caller);

  std::mutex mutex_;
  ProcessId process_{};  // zero until it is started
  Descriptor listener_;
};

}  // namespace spillway
