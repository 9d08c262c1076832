#include <algorithm>
#include <cstring>
#include <mutex>

#include "sim/cuda/bytes.h"
#include "sim/cuda/call.h"
#include "sim/cuda/work.h"

using namespace spillway::sim;

namespace {

// The control functions are no calls of the driver: they count as nothing and are never refused.
struct Control {
  State& state = State::get();
  Lock lock{state.mutex};
};

std::vector<RangeAccess> accesses_of(const SpwSimRange* ranges, size_t count, unsigned flags) {
  std::vector<RangeAccess> accesses;
  accesses.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const unsigned access = ranges[i].access != 0 ? ranges[i].access : flags;
    accesses.push_back({ranges[i].ptr, ranges[i].bytes, (access & SPW_SIM_WRITE) != 0, false});
  }
  return accesses;
}

// Writes fill their ranges with the value, where bytes are kept at all.
CUresult grid(Control& control, CUstream handle, const SpwSimRange* ranges, size_t count, unsigned flags,
              const void* value, size_t value_bytes) {
  State& state = control.state;
  if (!state.initialized || state.inherited) return CUDA_ERROR_NOT_INITIALIZED;
  Stream* stream = look_up_stream(state, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  WorkPtr work;
  for (size_t i = 0; i < count && state.config.backed; ++i) {
    const unsigned access = ranges[i].access != 0 ? ranges[i].access : flags;
    if ((access & SPW_SIM_WRITE) == 0 || (access & SPW_SIM_KEEP_BYTES) != 0) continue;
    if (work == nullptr) {
      work.reset(new Work);
      work->kind = Work::Kind::kTouch;
      work->width = static_cast<uint32_t>(value_bytes);
      std::memcpy(work->value.data(), value, value_bytes);
    }
    work->ranges.push_back(ranges[i]);
  }
  return enqueue(state, stream, std::move(work), accesses_of(ranges, count, flags), "grid", control.lock);
}

// Visits the host's view of the ranges, piece by piece, with the place of each piece among them. False where
// there is none.
template <typename Visit>
bool each_piece(Memory& memory, const SpwSimRange* ranges, size_t count, const Visit& visit) {
  uint64_t place = 0;
  for (size_t i = 0; i < count; ++i) {
    for (uint64_t done = 0; done < ranges[i].bytes;) {
      uint64_t left = 0;
      char* bytes = memory.bytes_at(ranges[i].ptr + done, &left);
      if (bytes == nullptr) return false;
      const uint64_t part = std::min(ranges[i].bytes - done, left);
      visit(bytes, place, part);
      done += part;
      place += part;
    }
  }
  return true;
}

}  // namespace

extern "C" {

int spwSimConfigure(const char* text) {
  Control control;
  const std::string problem = control.state.configure(text);
  if (problem.empty()) return CUDA_SUCCESS;
  return fail(CUDA_ERROR_INVALID_VALUE, "SPILLWAY_SIM: " + problem);
}

const char* spwSimLastError() {
  return this_thread().last_error.c_str();
}

const char* spwSimFate(uint64_t address) {
  State& state = State::get();
  const std::unique_lock lock(state.mutex, std::try_to_lock);
  if (!lock.owns_lock()) return "";
  return state.memory.find(address) != nullptr ? "mapped" : state.memory.fate_of(address);
}

int spwSimTouch(CUstream handle, const SpwSimRange* ranges, size_t count, unsigned flags) {
  Control control;
  const char value = static_cast<char>((control.state.enqueues & 0xff) | 1);
  return grid(control, handle, ranges, count, flags, &value, 1);
}

int spwSimFill(CUstream handle, const SpwSimRange* ranges, size_t count, const void* value,
               size_t value_bytes) {
  Control control;
  if (value == nullptr || value_bytes == 0 || value_bytes > sizeof(Work::value)) {
    return fail(CUDA_ERROR_INVALID_VALUE, "spwSimFill: a value has 1 to 16 bytes");
  }
  return grid(control, handle, ranges, count, SPW_SIM_WRITE, value, value_bytes);
}

int spwSimPeek(const SpwSimRange* ranges, size_t count, void* to) {
  Control control;
  const auto read = [to](char* bytes, uint64_t place, uint64_t part) {
    move_bytes(static_cast<char*>(to) + place, bytes, part);
  };
  return each_piece(control.state.memory, ranges, count, read) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

int spwSimPoke(const SpwSimRange* ranges, size_t count, const void* from) {
  Control control;
  const auto write = [from](char* bytes, uint64_t place, uint64_t part) {
    move_bytes(bytes, static_cast<const char*>(from) + place, part);
  };
  return each_piece(control.state.memory, ranges, count, write) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void spwSimAnswer(int64_t value, unsigned copies) {
  this_thread().answer = value;
  this_thread().answered_copies = copies;
}

void spwSimCopyNothing(int on) {
  this_thread().copies_nothing = on != 0;
}

int spwSimIsCapturing() {
  Control control;
  return control.state.captures.empty() ? 0 : 1;
}

int spwSimHostAccess(const void* ptr, uint64_t bytes, unsigned flags) {
  Control control;
  if (!control.state.initialized) return CUDA_ERROR_NOT_INITIALIZED;
  control.state.detector.host_access(control.state.memory, reinterpret_cast<uint64_t>(ptr), bytes,
                                     (flags & SPW_SIM_WRITE) != 0);
  return CUDA_SUCCESS;
}

int spwSimEnqueueExternal(CUstream handle, SpwSimReady ready, SpwSimRun run, void* argument) {
  Control control;
  State& state = control.state;
  if (!state.initialized || state.inherited) return CUDA_ERROR_NOT_INITIALIZED;
  Stream* stream = look_up_stream(state, handle);
  if (stream == nullptr || run == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  WorkPtr work(new Work);
  work->kind = Work::Kind::kExternal;
  work->ready = ready;
  work->run = run;
  work->argument = argument;
  return enqueue(state, stream, std::move(work), {}, "external work", control.lock);
}

void spwSimProgress() {
  Control control;
  if (!control.state.initialized || control.state.scheduler.completion() != Completion::kInstant) return;
  control.state.scheduler.advance_all(control.lock);
}

void spwSimSetHold(uint64_t (*look)(), void (*wait)(uint64_t looked)) {
  Control control;
  control.state.scheduler.set_hold({look, wait});
}

uint64_t spwSimMark(CUstream handle) {
  Control control;
  const Stream* stream = look_up_stream(control.state, handle);
  return stream == nullptr ? 0 : control.state.scheduler.enqueued(stream->timeline);
}

int spwSimCompleteTo(CUstream handle, uint64_t mark) {
  Control control;
  State& state = control.state;
  const Stream* stream = look_up_stream(state, handle);
  if (stream == nullptr) return CUDA_SUCCESS;
  const TimelineId timeline = stream->timeline;
  if (mark > state.scheduler.enqueued(timeline)) return CUDA_ERROR_INVALID_VALUE;
  state.scheduler.force(timeline, mark, control.lock);
  return CUDA_SUCCESS;
}

int spwSimIsComplete(CUstream handle, uint64_t mark) {
  Control control;
  const Stream* stream = look_up_stream(control.state, handle);
  return stream == nullptr || control.state.scheduler.complete(stream->timeline, mark) ? 1 : 0;
}

void spwSimNoteAlloc(uint64_t ptr, uint64_t bytes, CUstream handle) {
  Control control;
  const Stream* stream = look_up_stream(control.state, handle);
  control.state.detector.note_alloc(ptr, bytes, stream == nullptr ? 0 : stream->id);
}

void spwSimNoteFree(uint64_t ptr) {
  Control control;
  control.state.detector.note_free(ptr);
}

size_t spwSimReportCount() {
  Control control;
  return control.state.detector.count();
}
const char* spwSimReport(size_t index) {
  Control control;
  return control.state.detector.text(index);
}
void spwSimClearReports() {
  Control control;
  control.state.detector.clear_reports();
}

int spwSimInjectFault(const char* name, uint64_t nth, int result) {
  Control control;
  const EntryPoint entry = name == nullptr ? EntryPoint::kCount : find_entry_point(name);
  if (entry == EntryPoint::kCount || nth == 0 || result <= 0) {
    return fail(CUDA_ERROR_INVALID_VALUE, "spwSimInjectFault: no entry point '" +
                                              std::string(name ? name : "") +
                                              "', call 0, or a result that is no failure");
  }
  control.state.calls.inject(entry, nth, result);
  return CUDA_SUCCESS;
}
void spwSimClearFaults() {
  Control control;
  control.state.calls.clear_faults();
}

uint64_t spwSimCalls(const char* name) {
  Control control;
  const EntryPoint entry = name == nullptr ? EntryPoint::kCount : find_entry_point(name);
  return entry == EntryPoint::kCount ? 0 : control.state.calls.count(entry);
}
uint64_t spwSimTotalCalls() {
  Control control;
  return control.state.calls.total();
}
const char* spwSimEntryPoint(size_t index) {
  return index < kEntryPoints ? entry_point_name(static_cast<EntryPoint>(index)) : nullptr;
}
void spwSimResetCounters() {
  Control control;
  control.state.calls.reset_counters();
  control.state.memory.reset_peaks();
  control.state.host_waits = 0;
  control.state.dead_streams = 0;
  control.state.stream_waits = 0;
}
uint64_t spwSimHostWaits() {
  Control control;
  return control.state.host_waits;
}
uint64_t spwSimStreamWaits() {
  Control control;
  return control.state.stream_waits;
}
uint64_t spwSimDeadStreams() {
  Control control;
  return control.state.dead_streams;
}
uint64_t spwSimVirtualNs() {
  Control control;
  const State& state = control.state;
  return state.config.access_cost_per_mapping ? state.calls.virtual_ns_per_mapping()
                                              : state.calls.virtual_ns();
}
uint64_t spwSimVirtualNsPerMapping() {
  Control control;
  return control.state.calls.virtual_ns_per_mapping();
}
uint64_t spwSimLiveMappings() {
  Control control;
  return control.state.memory.live_mappings();
}
uint64_t spwSimPeakMappings() {
  Control control;
  return control.state.memory.peak_mappings();
}
uint64_t spwSimPhysicalBytes(int device) {
  Control control;
  return device < 0 || device >= kMaxDevices ? 0 : control.state.memory.used_bytes(device);
}
uint64_t spwSimPeakPhysicalBytes(int device) {
  Control control;
  return device < 0 || device >= kMaxDevices ? 0 : control.state.memory.peak_bytes(device);
}
uint64_t spwSimLiveHandles() {
  Control control;
  return control.state.memory.live_handles();
}

}  // extern "C"
