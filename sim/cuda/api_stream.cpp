// Streams, and host functions on them.
#include <algorithm>

#include "sim/cuda/call.h"
#include "sim/cuda/capture.h"
#include "sim/cuda/queries.h"
#include "sim/cuda/work.h"

using namespace spillway::sim;

namespace {

// The frame of calls that only ask about a stream.
struct StreamCall {
  Call call;
  Stream* stream = nullptr;
  CUresult result;
  StreamCall(EntryPoint entry, CUstream handle, unsigned needs = kNeedsNothing)
      : call(entry, needs), result(call.result()) {
    if (call.refused()) return;
    stream = find_stream(call.state(), handle);
    if (stream != nullptr) return;
    result = refuse_stream(handle);
  }
  bool refused() const { return result != CUDA_SUCCESS; }
};

CUresult create(EntryPoint entry, CUstream* stream, unsigned flags, int priority) {
  Call call(entry, kNeedsContext);
  if (call.refused()) return call.result();
  if (stream == nullptr || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *stream = handle_of(make_stream(call.state(), call.context(), flags, std::clamp(priority, -5, 0)));
  return CUDA_SUCCESS;
}

CUresult enqueue_host(EntryPoint entry, CUstream handle, WorkPtr work) {
  StreamCall in(entry, handle);
  if (in.refused()) return in.result;
  work->stream = handle;
  return enqueue(in.call.state(), in.stream, std::move(work), {}, entry_point_name(entry), in.call.lock());
}

}  // namespace

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return create(EntryPoint::k_cuStreamCreate, stream, flags, 0);
}
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  return create(EntryPoint::k_cuStreamCreateWithPriority, stream, flags, priority);
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  StreamCall in(EntryPoint::k_cuStreamDestroy, handle);
  if (in.refused()) return in.result;
  State& state = in.call.state();
  abandon_capture(state, in.stream);
  // Its work goes on: the timeline stays until it is over and known to be.
  std::erase(in.stream->context->streams, in.stream);
  state.scheduler.close(in.stream->timeline);
  state.abandoned.push_back({in.stream->context, in.stream->timeline});
  state.streams.drop(in.stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream handle) {
  StreamCall in(EntryPoint::k_cuStreamQuery, handle, kUnsafeInCapture);
  if (in.refused()) return in.result;
  if (const CUresult result = check_not_capturing(in.stream); result != CUDA_SUCCESS) return result;
  return query_stream(in.call.state(), in.stream, in.call.lock());
}

CUresult cuStreamSynchronize(CUstream handle) {
  StreamCall in(EntryPoint::k_cuStreamSynchronize, handle, kUnsafeInCapture);
  if (in.refused()) return in.result;
  if (const CUresult result = check_not_capturing(in.stream); result != CUDA_SUCCESS) return result;
  ++in.call.state().host_waits;
  wait_stream(in.call.state(), in.stream, in.call.lock());
  release_beyond_thresholds(in.call.state());
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags) {
  StreamCall in(EntryPoint::k_cuStreamWaitEvent, handle);
  if (in.refused()) return in.result;
  State& state = in.call.state();
  Event* event = find_event(event_handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
  ++state.stream_waits;
  return wait_event(state, in.stream, event, in.call.lock());
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  StreamCall in(EntryPoint::k_cuStreamGetCtx, handle);
  if (in.refused()) return in.result;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = handle_of(in.stream->context);
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext* context, CUgreenCtx* green) {
  StreamCall in(EntryPoint::k_cuStreamGetCtx, handle);
  if (in.refused()) return in.result;
  if (context == nullptr || green == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* own = in.stream->context;
  *green = own->green_of != nullptr ? green_handle_of(own) : nullptr;
  *context = handle_of(owner_of(own));
  return CUDA_SUCCESS;
}

CUresult cuStreamGetGreenCtx(CUstream handle, CUgreenCtx* green) {
  StreamCall in(EntryPoint::k_cuStreamGetGreenCtx, handle);
  if (in.refused()) return in.result;
  if (green == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* own = in.stream->context;
  *green = own->green_of != nullptr ? green_handle_of(own) : nullptr;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx green, unsigned flags, int priority) {
  Call call(EntryPoint::k_cuGreenCtxStreamCreate);
  if (call.refused()) return call.result();
  Context* context = find_green_context(green);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (stream == nullptr || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  *stream = handle_of(make_stream(call.state(), context, flags, std::clamp(priority, -5, 0)));
  return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  StreamCall in(EntryPoint::k_cuStreamGetId, handle);
  if (in.refused()) return in.result;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = check_not_capturing(in.stream); result != CUDA_SUCCESS) return result;
  *id = in.stream->id;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
  StreamCall in(EntryPoint::k_cuStreamGetFlags, handle);
  if (in.refused()) return in.result;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = check_not_capturing(in.stream); result != CUDA_SUCCESS) return result;
  *flags = in.stream->flags;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  StreamCall in(EntryPoint::k_cuStreamGetPriority, handle);
  if (in.refused()) return in.result;
  if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *priority = in.stream->priority;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice* device) {
  StreamCall in(EntryPoint::k_cuStreamGetDevice, handle);
  if (in.refused()) return in.result;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = check_not_capturing(in.stream); result != CUDA_SUCCESS) return result;
  *device = in.stream->context->device;
  return CUDA_SUCCESS;
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* data, unsigned flags) {
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  WorkPtr work(new Work);
  work->kind = Work::Kind::kCallback;
  work->callback = callback;
  work->argument = data;
  return enqueue_host(EntryPoint::k_cuStreamAddCallback, stream, std::move(work));
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  WorkPtr work(new Work);
  work->kind = Work::Kind::kHostFunction;
  work->function = function;
  work->argument = data;
  return enqueue_host(EntryPoint::k_cuLaunchHostFunc, stream, std::move(work));
}

CUresult cuStreamQuery_ptsz(CUstream stream) {
  return cuStreamQuery(per_thread(stream));
}
CUresult cuStreamSynchronize_ptsz(CUstream stream) {
  return cuStreamSynchronize(per_thread(stream));
}
CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags) {
  return cuStreamWaitEvent(per_thread(stream), event, flags);
}
CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext* context) {
  return cuStreamGetCtx(per_thread(stream), context);
}
CUresult cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext* context, CUgreenCtx* green) {
  return cuStreamGetCtx_v2(per_thread(stream), context, green);
}
CUresult cuStreamGetId_ptsz(CUstream stream, unsigned long long* id) {
  return cuStreamGetId(per_thread(stream), id);
}
CUresult cuStreamGetFlags_ptsz(CUstream stream, unsigned* flags) {
  return cuStreamGetFlags(per_thread(stream), flags);
}
CUresult cuStreamGetPriority_ptsz(CUstream stream, int* priority) {
  return cuStreamGetPriority(per_thread(stream), priority);
}
CUresult cuStreamGetDevice_ptsz(CUstream stream, CUdevice* device) {
  return cuStreamGetDevice(per_thread(stream), device);
}
CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback, void* data, unsigned flags) {
  return cuStreamAddCallback(per_thread(stream), callback, data, flags);
}
CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void* data) {
  return cuLaunchHostFunc(per_thread(stream), function, data);
}

}  // extern "C"
