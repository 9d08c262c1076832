// The whole simulated driver of the process: one object, one lock. Entry points take the lock for their whole
// body through Call (call.h); it is given up only while a host function of the program runs. The parts
// (memory, scheduler, detector, capture, calls) know nothing of each other; the functions here and the
// api_*.cpp files join them.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/cuda/calls.h"
#include "sim/cuda/config.h"
#include "sim/cuda/cuda_api.h"
#include "sim/cuda/detector.h"
#include "sim/cuda/graph_memory.h"
#include "sim/cuda/memory.h"
#include "sim/cuda/pools.h"
#include "sim/cuda/scheduler.h"
#include "sim/cuda/slots.h"

namespace spillway::sim {

struct Context;
struct Capture;
class EventTable;
struct SharedEvent;

struct Stream {
  bool alive = false;
  bool blocking = true;  // ordered against the legacy default stream
  bool legacy = false;
  bool orphaned = false;  // its green context was destroyed, or its primary one reset
  bool reset = false;     // the latter
  Context* context = nullptr;
  TimelineId timeline = kNoTimeline;
  uint64_t id = 0;
  unsigned flags = 0;
  int priority = 0;
  uint64_t fruitless_queries = 0;
  uint64_t fruitless_since = 0;  // State::enqueues at the last one
  std::shared_ptr<Capture> capture;
  std::vector<size_t> capture_tail;               // nodes that the next captured node depends on
  std::vector<CUgraphNode> capture_dependencies;  // their handles, as last handed out
};

struct Event {
  bool alive = false;
  bool recorded = false;
  bool orphaned = false;  // its primary context was reset
  Context* context = nullptr;
  unsigned flags = 0;
  TimelineId timeline = kNoTimeline;
  uint64_t position = 0;
  uint64_t virtual_ns = 0;
  uint64_t fruitless_queries = 0;
  uint64_t fruitless_since = 0;
  VectorClock clock;                 // what came before the record, itself included
  std::shared_ptr<Capture> capture;  // recorded under capture last
  std::vector<size_t> capture_nodes;
  std::shared_ptr<SharedEvent> shared;  // where other processes use it too
};

// A record of an event that other processes may wait for.
struct SharedRecord {
  std::shared_ptr<SharedEvent> event;
  uint64_t number = 0;
  TimelineId timeline = kNoTimeline;
  uint64_t position = 0;
};

// Memory of another process, opened by its handle.
struct OpenedMemory {
  uint64_t start = 0;
  uint32_t uses = 0;
};

struct Context {
  bool alive = false;
  bool primary = false;
  bool reset = false;  // and not alive: it stays current where it was
  int device = 0;
  unsigned flags = 0;
  unsigned retained = 0;
  uint64_t id = 0;
  Physical* memory = nullptr;          // that it takes of its device
  std::map<CUmodule, Physical*> code;  // and each module that it has launched
  Context* green_of = nullptr;         // the primary context that it has a share of
  unsigned multiprocessors = 0;        // its share
  Stream* legacy = nullptr;
  std::map<uint64_t, Stream*> per_thread;
  std::vector<Stream*> streams;  // all of them
};

struct State {
  std::mutex mutex;
  bool initialized = false;
  uint64_t generation = 1;             // of the configuration: thread-local contexts of an older one are void
  bool ended = false;                  // at exit: the driver answers no more
  std::atomic<bool> inherited{false};  // by a child of fork, which has no device
  Config config;
  Calls calls;
  Memory memory;
  Pools pools;
  GraphMemory graph_memory;
  Scheduler scheduler;
  Detector detector;
  Slots<Context> contexts;
  Slots<Stream> streams;
  Slots<Event> events;
  std::array<Context*, kMaxDevices> primary{};
  std::array<unsigned, kMaxDevices> primary_flags{};
  std::set<std::pair<int, int>> peers;  // device that may access, device accessed
  std::vector<Capture*> captures;       // in progress
  // Timelines of destroyed streams whose work may not be over: a wait for the context includes them.
  std::vector<std::pair<Context*, TimelineId>> abandoned;
  // For other processes, and of theirs: by process and descriptor; by process, its configuration and id.
  std::shared_ptr<EventTable> event_table;
  std::map<std::pair<int, int>, std::shared_ptr<EventTable>> foreign_tables;
  std::map<std::tuple<int, uint64_t, uint64_t>, OpenedMemory> opened_memory;
  std::vector<SharedRecord> shared_records;  // not known to be complete, oldest first
  std::condition_variable records_shared;
  bool serves_records = false;
  uint64_t next_id = 1;
  uint64_t enqueues = 0;
  uint64_t host_waits = 0;
  uint64_t dead_streams = 0;
  uint64_t stream_waits = 0;

  static State& get();
  // `visible` is the text of CUDA_VISIBLE_DEVICES; null: all devices are. "" or one line; on failure nothing
  // has changed.
  std::string configure(const char* text, const char* visible = nullptr);
};

// Thread-local: the text of spwSimLastError, the contexts made current, whether a host function is running,
// what copies to the host bring instead of their bytes.
struct ThreadState {
  std::string last_error;
  std::vector<Context*> current;
  uint64_t generation = 0;
  uint64_t id = 0;
  bool in_host_function = false;
  int64_t answer = 0;  // of spwSimAnswer
  unsigned answered_copies = 0;
  bool copies_nothing = false;  // of spwSimCopyNothing
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
};
ThreadState& this_thread();

// The context current in this thread, or null.
Context* current_context(State& state);
// Returns what the thread has current where that is a primary context that was reset; null otherwise.
Context* reset_context(State& state);
// Why no context is current.
CUresult refuse_context(State& state);
// Null: the device is out of memory.
Context* make_context(State& state, int device, bool primary, unsigned flags);
// The device's, made where there is none. Null as above.
Context* primary_context(State& state, int device);
// Retains the primary context, which it has a share of.
Context* make_green_context(State& state, Context* primary);
// Its streams are of no use afterwards.
void destroy_green_context(State& state, Context* context, Lock& lock);
// The context that owns memory made and modules launched in this one.
inline Context* owner_of(Context* context) {
  return context->green_of != nullptr ? context->green_of : context;
}
// Completes its work and destroys its streams, events and cuMemAlloc memory.
void destroy_context(State& state, Context* context, Lock& lock);
Stream* make_stream(State& state, Context* context, unsigned flags, int priority);
// The stream behind a handle: null and CU_STREAM_LEGACY are the current context's default stream,
// CU_STREAM_PER_THREAD is this thread's. Null if there is none.
Stream* look_up_stream(State& state, CUstream handle);
// For a call of the program, whose stream is to be one: counted, or a fault, where it is none.
Stream* find_stream(State& state, CUstream handle);
// Returns what a call answers that was given a stream that is none.
CUresult refuse_stream(CUstream handle);
Context* find_context(CUcontext handle);
Event* find_event(CUevent handle);
// For a question about it: of an event whose context was reset that is a segmentation fault, as an H100 with
// driver 580 had it.
Event* find_event_asked(State& state, CUevent handle);

inline CUstream handle_of(Stream* stream) {
  return reinterpret_cast<CUstream>(stream);
}
inline CUcontext handle_of(Context* context) {
  return reinterpret_cast<CUcontext>(context);
}
// Not the handle of the context that it is converted to.
inline CUgreenCtx green_handle_of(Context* context) {
  return reinterpret_cast<CUgreenCtx>(reinterpret_cast<char*>(context) + 1);
}
// Null if it is none.
inline Context* find_green_context(CUgreenCtx handle) {
  if ((reinterpret_cast<uintptr_t>(handle) & 1) == 0) return nullptr;
  auto* context = reinterpret_cast<Context*>(reinterpret_cast<char*>(handle) - 1);
  return Slots<Context>::is_alive(context) && context->green_of != nullptr ? context : nullptr;
}
inline CUevent handle_of(Event* event) {
  return reinterpret_cast<CUevent>(event);
}

// Puts work at the end of the stream, after whatever the legacy default stream's rules order it. `accesses`
// are what it reads and writes, for the detector. Under capture it becomes a node instead.
CUresult enqueue(State& state, Stream* stream, WorkPtr work, std::vector<RangeAccess> accesses,
                 const char* what, Lock& lock);
// As enqueue, on a timeline of its own that belongs to work of the stream.
void enqueue_on(State& state, TimelineId timeline, const Stream& stream, WorkPtr work,
                const std::vector<RangeAccess>& accesses, const char* what, Lock& lock);
// The host waits for everything enqueued on the stream, or in the context.
void wait_stream(State& state, Stream* stream, Lock& lock);
void wait_context(State& state, Context* context, Lock& lock);
// Frees a block of cuMemAlloc, of a pool or of a graph, and its addresses.
void free_allocation(State& state, Mapping* mapping);
// The scheduler asks these of a piece of work, and does them with it.
bool is_ready(const Work& work);
void run_work(Work& work, Lock& lock);

}  // namespace spillway::sim
