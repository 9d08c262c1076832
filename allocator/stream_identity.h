// Says which queue of work a stream handle means. A driver gives the handle of a destroyed stream to the next
// one, so the handle alone does not say: the driver's number for the stream does, which never repeats. The
// per-thread default stream is another queue in every thread, which the thread's number tells.
//
// A driver faults when it is asked anything by the handle of a stream that is gone, so only a stream that the
// program names in this very call is asked for its number. It refuses to tell that of a stream that is being
// captured, whatever the mode of the capture, and invalidates the capture.
//
// Cost: two driver calls for a stream that the program made, none for default streams. Thread-safe; no state.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "driver/driver.h"

namespace spillway {

// The number of a stream that was being captured when it was named.
inline constexpr uint64_t kIdNotAsked = ~uint64_t{0};

struct StreamIdentity {
  CUstream stream = nullptr;  // null is the legacy default stream, whichever of its two handles was used
  uint64_t id = 0;            // the driver's, or kIdNotAsked; 0 for default streams
  uint64_t thread = 0;        // of a per-thread default stream; 0 for all others
  // The program may destroy it without a word: it is named to the driver only where the program just has.
  bool ends_unseen = false;

  // A number that was not asked is taken for the other's.
  bool operator==(const StreamIdentity& other) const {
    return stream == other.stream && thread == other.thread &&
           (id == other.id || id == kIdNotAsked || other.id == kIdNotAsked);
  }
};

inline bool is_default_stream(CUstream stream) {
  return stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

// The number of the calling thread, and whether that thread has ended.
uint64_t thread_number();
std::shared_ptr<const std::atomic<bool>> thread_has_ended();

// Says what is known of the life of a heap's stream.
struct StreamLife {
  std::shared_ptr<const std::atomic<bool>> thread_ended = nullptr;  // of a per-thread default stream
  bool was_captured = false;         // when the program named it last, where its end may be unseen
  bool users_end_unseen = false;     // of the other streams that use its blocks
  std::atomic<bool> is_over{false};  // the heap serves nobody until it has another
};

// The calling thread may name it to the driver: it is not another thread's default stream, and not one that
// may be gone.
inline bool is_in_reach(const StreamIdentity& stream) {
  return (stream.thread == 0 || stream.thread == thread_number()) && !stream.ends_unseen;  // mutant: reach
}

// Returns that of a stream that the program just named. Errors: invalid_argument (the driver does not know
// the stream).
Result<StreamIdentity> identify(const Driver& driver, CUstream stream);

// The program just named a stream by this one's handle: is it this one? Where the driver does not say, it is
// taken for it. Of a stream whose end may be unseen, a number that was not asked is not taken for its own.
bool is_same(const Driver& driver, const StreamIdentity& stream);

// Checks that the stream is one of `context`, the one in which `device` is used; a default stream is that of
// the context current in the calling thread. Errors: invalid_argument, with a text that says what to do.
Status check_context(const Driver& driver, CUstream stream, CUcontext context, int device);

}  // namespace spillway
