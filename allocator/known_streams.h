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
  // A stream as it is listed; the driver may give its handle to another once it is gone.
  struct Listed {
    CUstream stream = nullptr;
    uint64_t number = 0;
  };

  // Returns whether the handle was that of another stream, whose end nobody saw.
  bool add(CUcontext context, CUstream stream, unsigned flags) {
    const Lock lock(mutex_);
    const auto [row, is_new] = streams_.insert_or_assign(stream, Row{context, flags, ++last_number_});
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
  // The driver knows it no more. Its handle stays known, so that add() tells of the next one to have it.
  void gone(const Listed& listed) {
    const Lock lock(mutex_);
    const auto found = streams_.find(listed.stream);
    if (found != streams_.end() && found->second.number == listed.number) found->second.is_gone = true;
  }
  // Returns the streams that the legacy default stream does not wait for.
  std::vector<Listed> non_blocking(CUcontext context) const {
    std::vector<Listed> found;
    const Lock lock(mutex_);
    for (const auto& [stream, row] : streams_) {
      if (row.context == context && (row.flags & CU_STREAM_NON_BLOCKING) != 0 && !row.is_gone)
        found.push_back({stream, row.number});
    }
    return found;
  }

 private:
  struct Row {
    CUcontext context;
    unsigned flags;
    uint64_t number;
    bool is_gone = false;
  };
  mutable BlockingMutex mutex_;
  std::unordered_map<CUstream, Row> streams_ SPW_GUARDED_BY(mutex_);
  uint64_t last_number_ SPW_GUARDED_BY(mutex_) = 0;
};

}  // namespace spillway
