// Events.
#include "sim/cuda/call.h"
#include "sim/cuda/capture.h"
#include "sim/cuda/queries.h"

using namespace spillway::sim;

namespace {

CUresult record(EntryPoint entry, CUevent event_handle, CUstream handle) {
  Call call(entry);
  if (call.refused()) return call.result();
  State& state = call.state();
  Stream* stream = find_stream(state, handle);
  Event* event = find_event(event_handle);
  if (stream == nullptr) return refuse_stream(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  // A green context takes its primary context's events, as an H100 with driver 580 showed.
  if (owner_of(stream->context) != owner_of(event->context)) return CUDA_ERROR_INVALID_HANDLE;
  return record_event(state, event, stream, call.lock());
}

// An event recorded under capture cannot be asked about; asking invalidates the capture.
CUresult refuse_captured(const Event& event) {
  event.capture->invalidated = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

}  // namespace

extern "C" {

CUresult cuEventCreate(CUevent* handle, unsigned flags) {
  Call call(EntryPoint::k_cuEventCreate, kNeedsContext);
  if (call.refused()) return call.result();
  if (handle == nullptr || (flags & ~7u) != 0) return CUDA_ERROR_INVALID_VALUE;
  constexpr unsigned kUntimed = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  if ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & kUntimed) != kUntimed) return CUDA_ERROR_INVALID_VALUE;
  Event* event = call.state().events.make();
  event->context = call.context();
  event->flags = flags;
  *handle = handle_of(event);
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent handle) {
  Call call(EntryPoint::k_cuEventDestroy);
  if (call.refused()) return call.result();
  Event* event = find_event(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  event->shared.reset();
  call.state().events.drop(event);
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  return record(EntryPoint::k_cuEventRecord, event, stream);
}
CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) {
  return cuEventRecord(event, per_thread(stream));
}
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
  return record(EntryPoint::k_cuEventRecordWithFlags, event, stream);
}
CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned flags) {
  return cuEventRecordWithFlags(event, per_thread(stream), flags);
}

CUresult cuEventQuery(CUevent handle) {
  Call call(EntryPoint::k_cuEventQuery, kUnsafeInCapture);
  if (call.refused()) return call.result();
  Event* event = find_event_asked(call.state(), handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture != nullptr) return refuse_captured(*event);
  return query_event(call.state(), event, call.lock());
}

CUresult cuEventSynchronize(CUevent handle) {
  Call call(EntryPoint::k_cuEventSynchronize, kUnsafeInCapture);
  if (call.refused()) return call.result();
  Event* event = find_event_asked(call.state(), handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture != nullptr) return refuse_captured(*event);
  ++call.state().host_waits;
  synchronize_event(call.state(), event, call.lock());
  release_beyond_thresholds(call.state());
  return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start_handle, CUevent end_handle) {
  Call call(EntryPoint::k_cuEventElapsedTime);
  if (call.refused()) return call.result();
  State& state = call.state();
  const Event* start = find_event(start_handle);
  const Event* end = find_event(end_handle);
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (start == nullptr || end == nullptr || !start->recorded || !end->recorded)
    return CUDA_ERROR_INVALID_HANDLE;
  if (((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0) return CUDA_ERROR_INVALID_HANDLE;
  if (!state.scheduler.complete(start->timeline, start->position) ||
      !state.scheduler.complete(end->timeline, end->position)) {
    return CUDA_ERROR_NOT_READY;
  }
  *milliseconds = static_cast<float>(end->virtual_ns - start->virtual_ns) / 1e6F;
  return CUDA_SUCCESS;
}

}  // extern "C"
