// Which queue of work a stream handle means. A driver gives the handle of a destroyed stream to the next one,
// so the handle alone does not say: the driver's number for the stream does, which never repeats. The
// per-thread default stream is another queue in every thread, which the thread's number tells.
//
// Cost: one driver call for a stream that the program made, none for default streams. Thread-safe; no state.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "driver/driver.h"

namespace spillway {

struct StreamIdentity {
  CUstream stream = nullptr;  // null is the legacy default stream, whichever of its two handles was used
  uint64_t id = 0;            // the driver's; 0 for default streams
  uint64_t thread = 0;        // of a per-thread default stream; 0 for all others
  bool operator==(const StreamIdentity&) const = default;
};

inline bool is_default_stream(CUstream stream) {
  return stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

// The number of the calling thread, and whether that thread has ended.
uint64_t thread_number();
std::shared_ptr<const std::atomic<bool>> thread_has_ended();

// Errors: invalid_argument (the driver does not know the stream).
Result<StreamIdentity> identify(const Driver& driver, CUstream stream);

// Tells whether the handle still means this stream: false where the stream is destroyed, whether or not
// another has its handle now; where the driver cannot say, it is not taken for destroyed.
bool is_alive(const Driver& driver, const StreamIdentity& stream);

// Checks that the stream is one of `context`, the one in which `device` is used; a default stream is that of
// the context current in the calling thread. Errors: invalid_argument, with a text that says what to do.
Status check_context(const Driver& driver, CUstream stream, CUcontext context, int device);

}  // namespace spillway
