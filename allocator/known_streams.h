// The streams that a program made, by the context they belong to, as whoever sees it make and destroy them
// says. Default streams are not listed: every context has them. Thread-safe.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "stats/lock.h"

namespace spillway {

class KnownStreams {
 public:
  // Returns whether the handle was that of another stream, whose end nobody saw.
  bool add(CUcontext context, CUstream stream, unsigned flags) {
    const Lock lock(mutex_);
    const auto [row, is_new] = streams_.insert_or_assign(stream, Row{context, flags});
    (void)row;
    return !is_new;
  }
  // Null where the stream is not known.
  CUcontext context_of(CUstream stream) const {
    const Lock lock(mutex_);
    const auto found = streams_.find(stream);
    return found == streams_.end() ? nullptr : found->second.context;
  }
  void remove(CUstream stream) {
    const Lock lock(mutex_);
    streams_.erase(stream);
  }
  void remove_all(CUcontext context) {
    const Lock lock(mutex_);
    std::erase_if(streams_, [&](const auto& entry) { return entry.second.context == context; });
  }
  // Returns the streams that the legacy default stream does not wait for.
  std::vector<CUstream> non_blocking(CUcontext context) const {
    std::vector<CUstream> found;
    const Lock lock(mutex_);
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
  mutable BlockingMutex mutex_;
  std::unordered_map<CUstream, Row> streams_ SPW_GUARDED_BY(mutex_);
};

}  // namespace spillway
