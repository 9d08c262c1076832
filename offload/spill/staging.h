// A ring of host buffers through which bytes pass between a device and a disk. A buffer is used by one side,
// then by the other, then again.
//
// Buffers are pinned where that is granted; else plain memory, through which copies are slower and go on.
// Belongs to one thread, but for Work, which ends on any.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "driver/event.h"
#include "offload/pinned_arena.h"
#include "offload/spill/copy_streams.h"
#include "stats/lock.h"

namespace spillway {

// Operations of a disk that a buffer waits for.
class DiskWork {
 public:
  void begin(size_t operations);
  // Called by whoever ends one.
  void end(Status status);
  // Until all have ended; the first error among them.
  Status wait();

 private:
  BlockingMutex mutex_;
  Condition ended_;
  size_t left_ SPW_GUARDED_BY(mutex_) = 0;
  Status status_ SPW_GUARDED_BY(mutex_);
};

class Staging {
 public:
  static constexpr size_t kBufferBytes = size_t{8} << 20;

  struct Buffer {
    std::byte* memory = nullptr;
    Event copied;                // the last copy from it or to it
    CUstream copying = nullptr;  // the stream of a copy that may still be under way
    DiskWork disk;
  };

  // Makes as many buffers as `bytes` can use, at most `most`. Unless `wants_pinned` they are plain memory
  // from the beginning. The context must be current. Errors: out_of_memory, where the host has no memory for
  // one buffer; driver.
  static Result<std::unique_ptr<Staging>> create(CopyStreams& copy_streams, PinnedArena& arena,
                                                 uint64_t bytes, size_t most, bool wants_pinned);
  // Waits for what still uses the buffers; where that fails, their memory is never used again.
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  size_t size() const { return buffers_.size(); }
  bool is_pinned() const { return is_pinned_; }
  // Waits for what still uses the buffers; false where that cannot be told.
  bool settle();
  Buffer& at(size_t i) { return *buffers_[i % buffers_.size()]; }
  // Waits until the buffer's copy is done: for its mark, or where that cannot be waited for, for all of its
  // stream. Errors: driver.
  Status wait_for_copy(Buffer& buffer);
  // Marks the copy just enqueued on `stream`.
  Status mark_copy(Buffer& buffer, CUstream stream);

 private:
  Staging(CopyStreams& copy_streams, PinnedArena& arena) : copies_(copy_streams), arena_(arena) {}

  CopyStreams& copies_;
  PinnedArena& arena_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  bool is_pinned_ = true;
};

}  // namespace spillway
