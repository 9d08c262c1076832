// The streams that a program made, by the context they belong to, as whoever sees it make and destroy them
// says. Default streams are not listed: every context has them. Thread-safe.
#pragma once

#include <cuda.h>

#include <mutex>
#include <unordered_map>
#include <vector>

namespace spillway {

class KnownStreams {
 public:
  void add(CUcontext context, CUstream stream, unsigned flags) {
    const std::lock_guard lock(mutex_);
    streams_[stream] = {context, flags};
  }
  // Null where the stream is not known.
  CUcontext context_of(CUstream stream) const {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find(stream);
    return found == streams_.end() ? nullptr : found->second.context;
  }
  void remove(CUstream stream) {
    const std::lock_guard lock(mutex_);
    streams_.erase(stream);
  }
  void remove_all(CUcontext context) {
    const std::lock_guard lock(mutex_);
    std::erase_if(streams_, [&](const auto& entry) { return entry.second.context == context; });
  }
  // Those that the legacy default stream does not wait for.
  std::vector<CUstream> non_blocking(CUcontext context) const {
    std::vector<CUstream> found;
    const std::lock_guard lock(mutex_);
    for (const auto& [stream, row] : streams_) {
      if (row.context == context && (row.flags & CU_STREAM_NON_BLOCKING) != 0) found.push_back(stream);
    }
    return found;
  }

 private:
  struct Row {
    CUcontext context;
    unsigned flags;
  };
  mutable std::mutex mutex_;
  std::unordered_map<CUstream, Row> streams_;
};

}  // namespace spillway
