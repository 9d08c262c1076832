// Streams, captures and contexts that come and go.
#include <array>
#include <atomic>
#include <utility>

#include "abi/preload/hooks.h"
#include "driver/capture.h"
#include "stats/lock.h"

namespace spillway {
namespace {

std::atomic<int> captures{0};

// Holds what the program retains, of devices up to the most that are served.
struct Retained {
  int count = 0;
  CUcontext context = nullptr;  // of the last time
};
// Held over the driver's calls too: between the last release and the end nobody retains.
BlockingMutex retains_mutex;
std::array<Retained, Allocator::kMostDevices> retained SPW_GUARDED_BY(retains_mutex){};

void announce(CUresult result, const CUstream* out, unsigned flags) noexcept {
  if (result != CUDA_SUCCESS) return;
  try {
    ServedContexts::instance().stream_created(*out, flags);
  } catch (...) {
    // Host memory has run out: the stream is one that nobody saw being made.
  }
}

CUresult stream_create(CUstream* out, unsigned flags) {
  const CUresult result = real_calls->cuStreamCreate(out, flags);
  announce(result, out, flags);
  return result;
}

CUresult stream_create_with_priority(CUstream* out, unsigned flags, int priority) {
  const CUresult result = real_calls->cuStreamCreateWithPriority(out, flags, priority);
  announce(result, out, flags);
  return result;
}

#if CUDA_VERSION >= 12050
CUresult green_ctx_stream_create(CUstream* out, CUgreenCtx context, unsigned flags, int priority) {
  const CUresult result = real_calls->cuGreenCtxStreamCreate(out, context, flags, priority);
  announce(result, out, flags);
  return result;
}
#endif

CUresult stream_destroy(CUstream stream) {
  if (!is_default_stream(stream)) {
    try {
      ServedContexts::instance().stream_destroyed(stream);
    } catch (...) {
      // Host memory has run out, as at its creation.
    }
  }
  return real_calls->cuStreamDestroy_v2(stream);
}

template <typename Call>
CUresult begin_capture(Call call) {
  capture_begins();
  const CUresult result = call();
  if (result != CUDA_SUCCESS) capture_ends();
  return result;
}

// A capture ends with this call, whatever it answers, unless there was none.
template <typename Call>
CUresult end_capture(CUstream stream, Call call) {
  const bool was_captured = is_captured(stream);
  const CUresult result = call();
  if (was_captured && !is_captured(stream)) capture_ends();
  return result;
}

CUresult stream_begin_capture(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture([&] { return real_calls->cuStreamBeginCapture_v2(stream, mode); });
}
CUresult stream_begin_capture_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture([&] { return real_calls->cuStreamBeginCapture_v2_ptsz(stream, mode); });
}
CUresult stream_end_capture(CUstream stream, CUgraph* graph) {
  return end_capture(stream, [&] { return real_calls->cuStreamEndCapture(stream, graph); });
}
CUresult stream_end_capture_ptsz(CUstream stream, CUgraph* graph) {
  return end_capture(per_thread(stream), [&] { return real_calls->cuStreamEndCapture_ptsz(stream, graph); });
}

#if CUDA_VERSION >= 12030
CUresult begin_capture_to_graph(CUstream stream, CUgraph graph, const CUgraphNode* nodes,
                                const CUgraphEdgeData* edges, size_t count, CUstreamCaptureMode mode) {
  return begin_capture(
      [&] { return real_calls->cuStreamBeginCaptureToGraph(stream, graph, nodes, edges, count, mode); });
}
CUresult begin_capture_to_graph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode* nodes,
                                     const CUgraphEdgeData* edges, size_t count, CUstreamCaptureMode mode) {
  return begin_capture(
      [&] { return real_calls->cuStreamBeginCaptureToGraph_ptsz(stream, graph, nodes, edges, count, mode); });
}
#endif

// ---- Contexts

// After the driver's own end nothing is torn down: other threads may be in the memory of a context that the
// program's exit handlers destroy.
bool is_over() noexcept {
  const Driver* driver = ServedContexts::instance().driver();
  CUcontext context = nullptr;
  return driver != nullptr && driver->cuCtxGetCurrent(&context) == CUDA_ERROR_DEINITIALIZED;
}

template <typename End>
void before_end(End end) noexcept {
  if (is_over()) return;
  try {
    end(ServedContexts::instance());
  } catch (...) {
    // The driver takes the memory back with the context.
  }
}

CUresult ctx_destroy(CUcontext context) {
  before_end([&](ServedContexts& contexts) {
    if (!contexts.is_primary(context)) contexts.context_ends(context);
  });
  return real_calls->cuCtxDestroy_v2(context);
}

bool is_counted(CUdevice device) {
  return device >= 0 && device < Allocator::kMostDevices;
}

CUresult primary_ctx_retain(CUcontext* out, CUdevice device) {
  const Lock lock(retains_mutex);
  const CUresult result = real_calls->cuDevicePrimaryCtxRetain(out, device);
  if (result != CUDA_SUCCESS || !is_counted(device)) return result;
  Retained& primary = retained[static_cast<size_t>(device)];
  primary.context = *out;
  ++primary.count;
  return result;
}

// Tells whether somebody has functions of the driver's that no look-up shows: the CUDA runtime retains
// contexts by one of them.
std::atomic<bool> has_tables{false};

CUresult get_export_table(const void** table, const CUuuid* id) {
  const CUresult result = real_calls->cuGetExportTable(table, id);
  if (result == CUDA_SUCCESS) has_tables.store(true, std::memory_order_relaxed);
  return result;
}

void primary_context_ends(CUdevice device) SPW_REQUIRES(retains_mutex) {
  CUcontext context = nullptr;
  if (is_counted(device)) context = std::exchange(retained[static_cast<size_t>(device)].context, nullptr);
  before_end([&](ServedContexts& contexts) { contexts.primary_context_ends(device, context); });
}

// With the program's last release the context ends, and Spillway's own claim on it must not keep it. Where
// somebody may retain it unseen, nobody knows which release is the last, and it stays until a reset.
CUresult primary_ctx_release(CUdevice device) {
  bool is_last = false;
  const Lock lock(retains_mutex);
  if (is_counted(device)) {
    int& count = retained[static_cast<size_t>(device)].count;
    is_last = count == 1;
    if (count > 0) --count;
  }
  if (is_last && !has_tables.load(std::memory_order_relaxed)) primary_context_ends(device);
  return real_calls->cuDevicePrimaryCtxRelease_v2(device);
}

CUresult primary_ctx_reset(CUdevice device) {
  const Lock lock(retains_mutex);
  primary_context_ends(device);
  return real_calls->cuDevicePrimaryCtxReset_v2(device);
}

}  // namespace

bool is_captured(CUstream stream) {
  if (captures.load(std::memory_order_relaxed) == 0) return false;
  const Driver* driver = ServedContexts::instance().driver();
  return driver != nullptr && is_capturing(*driver, stream);
}

void capture_begins() {
  captures.fetch_add(1, std::memory_order_relaxed);
}

void capture_ends() {
  captures.fetch_sub(1, std::memory_order_relaxed);
}

void fill_lifetime_hooks(DriverCalls& calls) {
  calls.cuStreamCreate = stream_create;
  calls.cuStreamCreateWithPriority = stream_create_with_priority;
#if CUDA_VERSION >= 12050
  if (calls.cuGreenCtxStreamCreate != nullptr) calls.cuGreenCtxStreamCreate = green_ctx_stream_create;
#endif
  calls.cuStreamDestroy_v2 = stream_destroy;
  calls.cuStreamBeginCapture_v2 = stream_begin_capture;
  calls.cuStreamEndCapture = stream_end_capture;
  if (calls.cuStreamBeginCapture_v2_ptsz != nullptr)
    calls.cuStreamBeginCapture_v2_ptsz = stream_begin_capture_ptsz;
  if (calls.cuStreamEndCapture_ptsz != nullptr) calls.cuStreamEndCapture_ptsz = stream_end_capture_ptsz;
#if CUDA_VERSION >= 12030
  if (calls.cuStreamBeginCaptureToGraph != nullptr)
    calls.cuStreamBeginCaptureToGraph = begin_capture_to_graph;
  if (calls.cuStreamBeginCaptureToGraph_ptsz != nullptr)
    calls.cuStreamBeginCaptureToGraph_ptsz = begin_capture_to_graph_ptsz;
#endif
  calls.cuCtxDestroy_v2 = ctx_destroy;
  if (calls.cuGetExportTable != nullptr) calls.cuGetExportTable = get_export_table;
  calls.cuDevicePrimaryCtxRetain = primary_ctx_retain;
  calls.cuDevicePrimaryCtxRelease_v2 = primary_ctx_release;
  calls.cuDevicePrimaryCtxReset_v2 = primary_ctx_reset;
}

}  // namespace spillway
