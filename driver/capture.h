// Stream capture, as far as whoever calls the driver behind a program's back must respect it.
#pragma once

#include "driver/driver.h"

namespace spillway {

// Tells whether the stream takes no work, event or wait that its capture is not to contain. Makes one driver
// call, legal at any time.
inline bool is_capturing(const Driver& driver, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  // The legacy stream answers with an error while another stream captures: then it cannot be ordered either.
  return driver.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// Returns what a driver answers of a context that was reset or destroyed, where it is entered all the same;
// ok otherwise.
inline Status context_gone(const Driver& driver) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult answer = driver.cuStreamIsCapturing(CU_STREAM_LEGACY, &status);
  const bool is_gone = answer == CUDA_ERROR_CONTEXT_IS_DESTROYED || answer == CUDA_ERROR_INVALID_CONTEXT;
  return is_gone ? driver.check(answer, "cuStreamIsCapturing") : Status();
}

// While it lives, driver calls that a capture of this thread would forbid are allowed: creating and mapping
// memory, questions about events. The Driver must outlive it.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) {
    exchanged_ = driver_.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS;
  }
  ~RelaxedCapture() {
    if (exchanged_) (void)driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool exchanged_ = false;
};

}  // namespace spillway
