// Streams, events, and what an allocator asks about captures.
#include "sim/cudart/runtime.h"

using spillway::cudart::call;
using spillway::cudart::DriverTable;

static_assert(static_cast<int>(cudaStreamCaptureStatusInvalidated) ==
              static_cast<int>(CU_STREAM_CAPTURE_STATUS_INVALIDATED));
static_assert(static_cast<int>(cudaStreamCaptureModeRelaxed) ==
              static_cast<int>(CU_STREAM_CAPTURE_MODE_RELAXED));
static_assert(cudaStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(cudaEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(sizeof(cudaGraphEdgeData) == sizeof(CUgraphEdgeData));

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return call(&DriverTable::stream_create, stream, unsigned{cudaStreamDefault});
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return call(&DriverTable::stream_create, stream, flags);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  return call(&DriverTable::stream_create_with_priority, stream, flags, priority);
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return call(&DriverTable::stream_get_priority, stream, priority);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call(&DriverTable::stream_destroy, stream);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return call(&DriverTable::stream_query, stream);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call(&DriverTable::stream_synchronize, stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  return call(&DriverTable::stream_wait_event, stream, event, flags);
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                  unsigned int flags) {
  static_assert(sizeof(cudaError_t) == sizeof(CUresult));
  return call(&DriverTable::stream_add_callback, stream, reinterpret_cast<CUstreamCallback>(callback), data,
              flags);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return call(&DriverTable::launch_host_func, stream, function, data);
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return call(&DriverTable::event_create, event, unsigned{cudaEventDefault});
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return call(&DriverTable::event_create, event, flags);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call(&DriverTable::event_destroy, event);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call(&DriverTable::event_record, event, stream);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
  return call(&DriverTable::event_record_with_flags, event, stream, flags);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call(&DriverTable::event_query, event);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call(&DriverTable::event_synchronize, event);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return call(&DriverTable::event_elapsed_time, milliseconds, start, end);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return call(&DriverTable::stream_is_capturing, stream, reinterpret_cast<CUstreamCaptureStatus*>(status));
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return call(&DriverTable::exchange_capture_mode, reinterpret_cast<CUstreamCaptureMode*>(mode));
}

}  // extern "C"
