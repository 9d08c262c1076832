#include "sim/cuda/state.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "sim/cuda/capture.h"
#include "sim/cuda/overheads.h"

namespace spillway::sim {

State& State::get() {
  // Never destroyed: other libraries call the driver from their own destructors.
  static State* const kState = new State;
  return *kState;
}

ThreadState& this_thread() {
  static std::atomic<uint64_t> next{1};
  // Deleted with its thread, but not at exit: handlers there, which run after the destructors of
  // thread-local objects, call the driver too.
  static const pthread_key_t kOwner = [] {
    pthread_key_t key = 0;
    pthread_key_create(&key, [](void* state) { delete static_cast<ThreadState*>(state); });
    return key;
  }();
  thread_local ThreadState* state = nullptr;
  if (state == nullptr) {
    state = new ThreadState;
    state->id = next.fetch_add(1);
    pthread_setspecific(kOwner, state);
  }
  return *state;
}

namespace {

// Another thread may have held the lock at the fork; a child begins with it free. What it guards may be half
// changed then, and is not looked at before the next configuration.
void leave_device_to_parent() {
  State& state = State::get();
  new (&state.mutex) std::mutex;
  state.inherited = state.initialized;
}

}  // namespace

std::string State::configure(const char* text, const char* visible) {
  Config parsed;
  std::string problem = parse_config(std::getenv("SPILLWAY_SIM_DEFAULTS"), &parsed);
  if (!problem.empty()) return "SPILLWAY_SIM_DEFAULTS: " + problem;
  problem = parse_config(text, &parsed);
  if (!problem.empty()) return problem;
  parsed.visible = visible_devices(visible, parsed.devices);
  parsed.devices = static_cast<int>(parsed.visible.size());
  Calls fresh;
  problem = fresh.reset(parsed);
  if (!problem.empty()) return problem;

  SharedAccount account;
  if (!parsed.shared_file.empty() && !account.open(parsed.shared_file)) {
    return "key 'shared', value '" + parsed.shared_file + "': " + std::strerror(errno);
  }

  calls = std::move(fresh);
  config = std::move(parsed);
  ++generation;
  for (Capture* capture : captures) capture->ended = true;
  graph_slots().drop_all();
  graph_exec_slots().drop_all();
  pools.reset();
  graph_memory.reset();
  contexts.drop_all();
  streams.drop_all();
  events.drop_all();
  primary.fill(nullptr);
  primary_flags.fill(0);
  peers.clear();
  captures.clear();
  abandoned.clear();
  opened_memory.clear();
  shared_records.clear();
  scheduler.reset(config.completion, config.seed, is_ready, run_work);
  detector.reset(config.races, &scheduler.host());
  enqueues = host_waits = stream_waits = dead_streams = 0;
  if (!memory.reset(config, std::move(account)))
    return "key 'backing', value 'memfd': the kernel refuses memory for the device";
  [[maybe_unused]] static const int kWatchesForks = pthread_atfork(nullptr, nullptr, leave_device_to_parent);
  inherited = false;
  initialized = true;
  return "";
}

namespace {

Context* entered_context(State& state) {
  ThreadState& thread = this_thread();
  if (thread.generation != state.generation) {
    thread.current.clear();
    thread.generation = state.generation;
  }
  return thread.current.empty() ? nullptr : thread.current.back();
}

}  // namespace

Context* current_context(State& state) {
  Context* context = entered_context(state);
  return Slots<Context>::is_alive(context) ? context : nullptr;
}

Context* reset_context(State& state) {
  Context* context = entered_context(state);
  return context != nullptr && context->reset && !context->alive ? context : nullptr;
}

CUresult refuse_context(State& state) {
  return reset_context(state) != nullptr ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
}

namespace {

void give_legacy_stream(State& state, Context* context) {
  context->legacy = make_stream(state, context, 0, 0);
  context->legacy->legacy = true;
}

}  // namespace

Context* make_context(State& state, int device, bool primary, unsigned flags) {
  Context* context = state.contexts.make();
  context->primary = primary;
  context->device = device;
  context->flags = flags;
  context->id = state.next_id++;
  if (!take_context_memory(state, context)) {
    state.contexts.drop(context);
    return nullptr;
  }
  give_legacy_stream(state, context);
  return context;
}

Context* primary_context(State& state, int device) {
  const auto index = static_cast<size_t>(device);
  Context*& primary = state.primary[index];
  if (primary == nullptr) primary = make_context(state, device, true, state.primary_flags[index]);
  return primary;
}

Context* make_green_context(State& state, Context* primary) {
  Context* context = state.contexts.make();
  context->device = primary->device;
  context->green_of = primary;
  context->id = state.next_id++;
  ++primary->retained;
  give_legacy_stream(state, context);
  return context;
}

void destroy_green_context(State& state, Context* context, Lock& lock) {
  wait_context(state, context, lock);
  for (Stream* stream : context->streams) {
    abandon_capture(state, stream);
    state.scheduler.close(stream->timeline);
    stream->orphaned = true;
    state.streams.retire(stream);
  }
  --context->green_of->retained;
  state.contexts.retire(context);
}

void destroy_context(State& state, Context* context, Lock& lock) {
  wait_context(state, context, lock);
  for (Mapping* mapping : state.memory.allocations_of(handle_of(context))) free_allocation(state, mapping);
  if (context->reset) {
    state.events.for_each([&](Event& event) {
      if (event.context != context) return;
      event.orphaned = true;
      state.events.retire(&event);
    });
  }
  state.events.drop_if([&](const Event& event) { return event.context == context; });
  for (Stream* stream : context->streams) {
    abandon_capture(state, stream);
    state.scheduler.close(stream->timeline);
    stream->orphaned = stream->reset = context->reset;
    if (context->reset) {
      state.streams.retire(stream);
    } else {
      state.streams.drop(stream);
    }
  }
  release_context_memory(state, context);
  if (context->reset) return state.contexts.retire(context);
  state.contexts.drop(context);
}

Stream* make_stream(State& state, Context* context, unsigned flags, int priority) {
  Stream* stream = state.streams.make();
  stream->context = context;
  stream->flags = flags;
  stream->blocking = (flags & CU_STREAM_NON_BLOCKING) == 0;
  stream->priority = priority;
  stream->id = state.next_id++;
  stream->timeline = state.scheduler.open();
  state.detector.name_timeline(stream->timeline, stream->id);
  context->streams.push_back(stream);
  return stream;
}

Stream* look_up_stream(State& state, CUstream handle) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    Context* context = current_context(state);
    return context == nullptr ? nullptr : context->legacy;
  }
  if (handle == CU_STREAM_PER_THREAD) {
    Context* context = current_context(state);
    if (context == nullptr) return nullptr;
    Stream*& stream = context->per_thread[this_thread().id];
    if (stream == nullptr) stream = make_stream(state, context, 0, 0);
    return stream;
  }
  auto* stream = reinterpret_cast<Stream*>(handle);
  return Slots<Stream>::is_alive(stream) ? stream : nullptr;
}

Stream* find_stream(State& state, CUstream handle) {
  Stream* stream = look_up_stream(state, handle);
  const bool is_default = handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
  if (stream != nullptr || is_default) return stream;
  const Stream* gone = reinterpret_cast<Stream*>(handle);
  if (gone->orphaned && !gone->reset) return nullptr;
  if (!gone->reset) ++state.dead_streams;
  if (state.config.destroyed_streams_fault) std::raise(SIGSEGV);
  return nullptr;
}

CUresult refuse_stream(CUstream handle) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    return refuse_context(State::get());
  }
  return reinterpret_cast<Stream*>(handle)->orphaned ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                                     : CUDA_ERROR_INVALID_HANDLE;
}

Context* find_context(CUcontext handle) {
  auto* context = reinterpret_cast<Context*>(handle);
  return Slots<Context>::is_alive(context) ? context : nullptr;
}

Event* find_event(CUevent handle) {
  auto* event = reinterpret_cast<Event*>(handle);
  return Slots<Event>::is_alive(event) ? event : nullptr;
}

Event* find_event_asked(State& state, CUevent handle) {
  Event* event = find_event(handle);
  if (event != nullptr || handle == nullptr || !reinterpret_cast<Event*>(handle)->orphaned) return event;
  if (state.config.destroyed_streams_fault) std::raise(SIGSEGV);
  return nullptr;
}

namespace {

// The legacy default stream waits for all earlier work of the blocking streams of its context, and they for
// its.
void order_by_legacy_rules(State& state, Stream* stream) {
  if (!stream->blocking) return;
  Scheduler& scheduler = state.scheduler;
  const auto after = [&](const Stream* other) {
    scheduler.order_after(stream->timeline, other->timeline, scheduler.enqueued(other->timeline),
                          scheduler.clock(other->timeline));
  };
  if (!stream->legacy) {
    after(stream->context->legacy);
    return;
  }
  for (const Stream* other : stream->context->streams) {
    if (other->blocking && other != stream) after(other);
  }
}

}  // namespace

CUresult enqueue(State& state, Stream* stream, WorkPtr work, std::vector<RangeAccess> accesses,
                 const char* what, Lock& lock) {
  ++state.enqueues;
  if (!state.captures.empty()) {
    if (stream->capture != nullptr) return capture_node(stream, std::move(work), std::move(accesses), what);
    if (const CUresult result = check_legacy(state, stream); result != CUDA_SUCCESS) return result;
  }
  order_by_legacy_rules(state, stream);
  enqueue_on(state, stream->timeline, *stream, std::move(work), accesses, what, lock);
  return CUDA_SUCCESS;
}

void enqueue_on(State& state, TimelineId timeline, const Stream& stream, WorkPtr work,
                const std::vector<RangeAccess>& accesses, const char* what, Lock& lock) {
  Scheduler& scheduler = state.scheduler;
  if (!accesses.empty() && state.detector.enabled()) {
    // Checked before the work is enqueued, which may run it: what it will be is known.
    VectorClock clock = scheduler.clock(timeline);
    clock.join(scheduler.host());
    const Actor actor{timeline, scheduler.enqueued(timeline) + 1, stream.context->device, stream.id, what};
    state.detector.grid(state.memory, state.peers, accesses, actor, clock);
  }
  scheduler.enqueue(timeline, std::move(work), lock);
}

void wait_stream(State& state, Stream* stream, Lock& lock) {
  Scheduler& scheduler = state.scheduler;
  const TimelineId timeline = stream->timeline;
  // Waiting for the legacy default stream waits for the blocking streams of its context too.
  if (stream->legacy) {
    order_by_legacy_rules(state, stream);
    scheduler.enqueue(timeline, nullptr, lock);
  }
  const uint64_t position = scheduler.enqueued(timeline);
  const VectorClock clock = scheduler.clock(timeline);
  scheduler.force(timeline, position, lock);
  scheduler.host_learns(clock);
}

void wait_context(State& state, Context* context, Lock& lock) {
  // A primary context waits for the green ones of its device too.
  std::vector<Context*> green;
  state.contexts.for_each([&](Context& other) {
    if (other.green_of == context) green.push_back(&other);
  });
  for (Context* part : green) wait_context(state, part, lock);
  const std::vector<Stream*> streams = context->streams;
  for (Stream* stream : streams) wait_stream(state, stream, lock);
  const auto abandoned = state.abandoned;
  for (const auto& [owner, timeline] : abandoned) {
    if (owner != context) continue;
    const VectorClock clock = state.scheduler.clock(timeline);
    state.scheduler.force(timeline, state.scheduler.enqueued(timeline), lock);
    state.scheduler.host_learns(clock);
  }
  std::erase_if(state.abandoned, [&](const auto& entry) {
    return state.scheduler.host().reached(entry.second, state.scheduler.enqueued(entry.second));
  });
}

void free_allocation(State& state, Mapping* mapping) {
  forget_pool_block(state, mapping->start);
  forget_graph_block(state, mapping->start);
  const auto [start, bytes] = state.memory.reservation_of(mapping->start);
  state.memory.unmap(mapping);
  state.memory.unreserve(start, bytes);
}

}  // namespace spillway::sim
