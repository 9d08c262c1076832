#include "sim/cuda/queries.h"

#include "sim/cuda/capture.h"
#include "sim/cuda/shared_events.h"
#include "sim/cuda/work.h"

namespace spillway::sim {
namespace {

// So many answers "not ready" about one thing with nothing enqueued in between are a loop that waits for it.
constexpr uint64_t kPollingLoop = 64;
// In Completion::kLate, one query in so many finds that the work has just completed.
constexpr uint64_t kLateOdds = 3;

// Tells whether this query, of work that is not complete, finds it complete.
template <typename Asked>
bool completes_now(State& state, Asked* asked) {
  // Where work is complete at once, only a word of memory has held this up, and may be there by now.
  if (state.scheduler.completion() == Completion::kInstant) return true;
  if (asked->fruitless_since != state.enqueues) asked->fruitless_queries = 0;
  asked->fruitless_since = state.enqueues;
  if (++asked->fruitless_queries >= kPollingLoop) {
    asked->fruitless_queries = 0;
    ++state.host_waits;
    return true;
  }
  return state.scheduler.completion() == Completion::kLate && state.scheduler.draw(kLateOdds) == 0;
}

template <typename Asked>
CUresult query(State& state, Asked* asked, TimelineId timeline, uint64_t position, const VectorClock& clock,
               Lock& lock) {
  Scheduler& scheduler = state.scheduler;
  if (!scheduler.complete(timeline, position)) {
    if (!completes_now(state, asked)) return CUDA_ERROR_NOT_READY;
    VectorClock kept;  // the stream may go on while a host function runs
    kept.join(clock);
    if (!scheduler.advance(timeline, position, lock)) return CUDA_ERROR_NOT_READY;
    scheduler.host_learns(kept);
    return CUDA_SUCCESS;
  }
  scheduler.host_learns(clock);
  return CUDA_SUCCESS;
}

void wait_for_foreign(const Event& event, uint64_t record, Lock& lock) {
  const std::shared_ptr<SharedEvent> kept = event.shared;
  wait_for_record(*kept, record, lock);
}

}  // namespace

CUresult query_stream(State& state, Stream* stream, Lock& lock) {
  const TimelineId timeline = stream->timeline;
  if (stream->legacy) {
    // The default stream is idle only when the blocking streams of its context are.
    for (Stream* other : stream->context->streams) {
      if (!other->blocking || other == stream) continue;
      const CUresult result = query(state, other, other->timeline, state.scheduler.enqueued(other->timeline),
                                    state.scheduler.clock(other->timeline), lock);
      if (result != CUDA_SUCCESS) return result;
    }
  }
  return query(state, stream, timeline, state.scheduler.enqueued(timeline), state.scheduler.clock(timeline),
               lock);
}

CUresult query_event(State& state, Event* event, Lock& lock) {
  if (const uint64_t record = foreign_record(*event); record != 0) {
    if (!completes_now(state, event)) return CUDA_ERROR_NOT_READY;
    wait_for_foreign(*event, record, lock);
    return CUDA_SUCCESS;
  }
  if (!event->recorded) return CUDA_SUCCESS;
  return query(state, event, event->timeline, event->position, event->clock, lock);
}

CUresult record_event(State& state, Event* event, Stream* stream, Lock& lock) {
  if (stream->capture != nullptr) {
    if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    capture_record(stream, event);
    return CUDA_SUCCESS;
  }
  Scheduler& scheduler = state.scheduler;
  const bool idle = scheduler.complete(stream->timeline, scheduler.enqueued(stream->timeline));
  const CUresult result = enqueue(state, stream, nullptr, {}, "cuEventRecord", lock);
  if (result != CUDA_SUCCESS) return result;
  event->capture.reset();
  event->recorded = true;
  event->timeline = stream->timeline;
  event->position = state.scheduler.enqueued(stream->timeline);
  event->clock = state.scheduler.clock(stream->timeline);
  event->virtual_ns = state.calls.virtual_ns();
  // An event is no work: on a stream that has nothing left to do it is complete, and no host has to wait for
  // it.
  if (idle && !scheduler.waits(event->timeline) && scheduler.completion() == Completion::kRunAhead) {
    scheduler.force(event->timeline, event->position, lock);
  }
  if (event->shared != nullptr) note_record(state, event);
  return CUDA_SUCCESS;
}

CUresult wait_event(State& state, Stream* stream, Event* event, Lock& lock) {
  if (event->capture != nullptr) return capture_wait(stream, event);
  const uint64_t record = foreign_record(*event);
  if (record == 0 && !event->recorded) return CUDA_SUCCESS;
  if (stream->capture != nullptr) return capture_wait(stream, event);
  if (record != 0) {
    WorkPtr wait(new Work);
    wait->kind = Work::Kind::kWait;
    wait->event = event->shared;
    wait->record = record;
    return enqueue(state, stream, std::move(wait), {}, "cuStreamWaitEvent", lock);
  }
  state.scheduler.order_after(stream->timeline, event->timeline, event->position, event->clock);
  return enqueue(state, stream, nullptr, {}, "cuStreamWaitEvent", lock);
}

void synchronize_event(State& state, Event* event, Lock& lock) {
  if (const uint64_t record = foreign_record(*event); record != 0) {
    return wait_for_foreign(*event, record, lock);
  }
  if (!event->recorded) return;
  const VectorClock clock = event->clock;
  state.scheduler.force(event->timeline, event->position, lock);
  state.scheduler.host_learns(clock);
}

}  // namespace spillway::sim
