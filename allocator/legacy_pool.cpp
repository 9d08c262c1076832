#include "allocator/legacy_pool.h"

#include <algorithm>
#include <utility>

#include "driver/capture.h"

namespace spillway {

Result<std::unique_ptr<LegacyPool>> LegacyPool::create(std::shared_ptr<const Driver> driver, Arena& arena,
                                                       KnownStreams& streams) {
  std::unique_ptr<LegacyPool> made(new LegacyPool(std::move(driver), arena, streams));
  const Driver& calls = *made->driver_;
  const ScopedContext context(calls, arena.context());
  if (!context.status().ok()) return context.status();
  const RelaxedCapture relaxed(calls);
  const CUresult created = calls.cuStreamCreate(&made->own_, CU_STREAM_NON_BLOCKING);
  if (Status status = calls.check(created, "cuStreamCreate"); !status.ok()) return status;
  made->rung_ =
      arena.last_rungs().add(Rung::kCallback, [self = made.get()](uint64_t) { return self->flush(); });
  return made;
}

LegacyPool::~LegacyPool() {
  if (rung_ != 0) arena_.last_rungs().remove(rung_);
  const ScopedContext context(*driver_, arena_.context());
  if (own_ == nullptr || !context.status().ok()) return;
  (void)arena_.stream_destroyed(own_);
  driver_->cuStreamDestroy(own_);
}

Status LegacyPool::allocate(size_t bytes, void** out) {
  if (pending_bytes() > 0) {
    std::vector<Epoch> complete;
    {
      const Lock lock(mutex_);
      complete = take_complete();
    }
    release(complete);
  }
  if (Status status = arena_.allocate(bytes, own_, out); !status.ok()) return status;
  return settle();  // mutant: borrowed-settles
}

Status LegacyPool::settle() {
  const uint64_t waits = arena_.stream_waits();
  if (waits == settled_.load(std::memory_order_acquire)) return {};
  const ScopedContext context(*driver_, arena_.context());
  const RelaxedCapture relaxed(*driver_);
  if (driver_->cuStreamQuery(own_) != CUDA_SUCCESS) {
    host_waits_.fetch_add(1, std::memory_order_relaxed);
    const CUresult waited = driver_->cuStreamSynchronize(own_);
    if (Status status = driver_->check(waited, "cuStreamSynchronize"); !status.ok()) return status;
  }
  uint64_t before = settled_.load(std::memory_order_relaxed);
  while (before < waits && !settled_.compare_exchange_weak(before, waits, std::memory_order_release)) {
  }
  return {};
}

Status LegacyPool::free(void* pointer) {
  uint64_t bytes = 0;
  if (Status status = Arena::quarantine(pointer, &bytes); !status.ok()) return status;
  const Lock lock(mutex_);
  ++stats_.frees;
  open_.blocks.push_back(pointer);
  open_.bytes += bytes;
  pending_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  if (open_.bytes < kEpochBytes && open_.blocks.size() < kEpochBlocks) return {};
  const ScopedContext context(*driver_, arena_.context());
  if (context.status().ok()) (void)close_epoch();
  return {};
}

std::shared_ptr<Event> LegacyPool::mark(CUstream stream, bool* known) {
  *known = true;
  // For the legacy stream the query answers for its own work alone, not for the streams that it waits for.
  if (stream != CU_STREAM_LEGACY && driver_->cuStreamQuery(stream) == CUDA_SUCCESS) return nullptr;
  *known = false;
  Result<Event> event = Event::create(*driver_);
  if (!event.ok() || !event->record(stream).ok()) return nullptr;
  *known = true;
  ++stats_.events;
  return std::make_shared<Event>(std::move(event.value()));
}

bool LegacyPool::close_epoch() {
  if (open_.blocks.empty()) return true;
  const RelaxedCapture relaxed(*driver_);
  // The legacy stream answers for all streams that it waits for.
  std::vector<CUstream> all{CU_STREAM_LEGACY};  // mutant: ask-legacy
  if (is_capturing(*driver_, CU_STREAM_LEGACY)) return false;
  for (CUstream stream : streams_.non_blocking(arena_.context())) {
    if (is_capturing(*driver_, stream)) return false;  // mutant: epoch-captures
    all.push_back(stream);                             // mutant: ask-streams
  }
  std::vector<std::shared_ptr<Event>> events = orphans_;  // mutant: ask-gone
  for (CUstream stream : all) {
    bool known = false;
    std::shared_ptr<Event> event = mark(stream, &known);
    if (!known) return false;
    if (event != nullptr) events.push_back(std::move(event));
  }
  open_.events = std::move(events);
  closed_.push_back(std::exchange(open_, {}));
  ++stats_.epochs;
  return true;
}

std::vector<LegacyPool::Epoch> LegacyPool::take_complete() {
  std::vector<Epoch> complete;
  if (closed_.empty()) return complete;
  const ScopedContext context(*driver_, arena_.context());
  if (!context.status().ok()) return complete;
  const RelaxedCapture relaxed(*driver_);
  const auto is_reached = [](const std::shared_ptr<Event>& event) {
    const Result<bool> done = event->completed();
    return done.ok() && done.value();
  };
  while (!closed_.empty()) {
    std::vector<std::shared_ptr<Event>>& events = closed_.front().events;
    while (!events.empty() && is_reached(events.back())) events.pop_back();  // mutant: all-reached
    if (!events.empty()) break;                                              // mutant: epoch-open
    complete.push_back(std::move(closed_.front()));
    closed_.pop_front();
  }
  std::erase_if(orphans_, is_reached);
  return complete;
}

uint64_t LegacyPool::release(const std::vector<Epoch>& epochs) {
  uint64_t bytes = 0;
  for (const Epoch& epoch : epochs) {
    for (void* block : epoch.blocks) (void)Arena::release_quarantined(block);
    bytes += epoch.bytes;
  }
  pending_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  return bytes;
}

void LegacyPool::stream_destroyed(CUstream stream) {
  const ScopedContext context(*driver_, arena_.context());
  const RelaxedCapture relaxed(*driver_);
  const Lock lock(mutex_);
  streams_.remove(stream);
  // Its capture ends without a graph; what it did before is not known to be over.
  if (!context.status().ok() || is_capturing(*driver_, stream)) return;
  bool known = false;
  if (std::shared_ptr<Event> event = mark(stream, &known); event != nullptr) {
    orphans_.push_back(std::move(event));  // mutant: gone-event
  }
}

uint64_t LegacyPool::flush() {
  const ScopedContext context(*driver_, arena_.context());
  if (!context.status().ok()) return 0;
  std::vector<Epoch> all;
  {
    const Lock lock(mutex_);
    (void)close_epoch();
    all.assign(std::make_move_iterator(closed_.begin()), std::make_move_iterator(closed_.end()));
    closed_.clear();
  }
  const RelaxedCapture relaxed(*driver_);
  for (size_t i = 0; i < all.size(); ++i) {
    for (const std::shared_ptr<Event>& event : all[i].events) {
      host_waits_.fetch_add(1, std::memory_order_relaxed);
      if (event->synchronize().ok()) continue;  // mutant: frees-wait
      // Not known to be over: these wait on.
      const Lock lock(mutex_);
      closed_.insert(closed_.begin(), std::make_move_iterator(all.begin() + static_cast<ptrdiff_t>(i)),
                     std::make_move_iterator(all.end()));
      all.resize(i);
      return release(all);
    }
  }
  return release(all);
}

LegacyPoolStats LegacyPool::stats() const {
  const Lock lock(mutex_);
  LegacyPoolStats stats = stats_;
  stats.waits = host_waits_.load(std::memory_order_relaxed);
  stats.pending_bytes = pending_bytes();
  return stats;
}

}  // namespace spillway
