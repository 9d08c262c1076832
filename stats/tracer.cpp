#include "stats/tracer.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace spillway {

Tracer::Tracer() : steady_(has_steady_ticks()) {
  sem_init(&wake_, 0, 0);
}

Tracer::~Tracer() {
  sem_destroy(&wake_);
}

TraceRing* Tracer::add_ring(int device) {
  auto ring = std::make_unique<TraceRing>(device, wake_);
  const Lock lock(mutex_);
  return rings_.emplace_back(std::move(ring)).get();
}

void Tracer::note(TraceRecord record, std::string payload) noexcept {
  const Lock lock(mutex_);
  record.ticks = trace_ticks(steady_);
  if (has_payload(record.kind)) record.requested_bytes = payload.size();
  try {
    if (notes_.size() >= kMostNotes) throw std::bad_alloc();
    notes_.push_back({record, std::move(payload)});
  } catch (const std::bad_alloc&) {
    ++dropped_notes_;
  }
}

void Tracer::mark(std::string_view text) noexcept {
  TraceRecord record;
  record.kind = TraceKind::kMark;
  record.tag = trace_thread.tag;
  try {
    note(record, std::string(text.substr(0, kLongestText)));
  } catch (const std::bad_alloc&) {
    drop_note();
  }
}

void Tracer::drop_note() noexcept {
  const Lock lock(mutex_);
  ++dropped_notes_;
}

uint16_t Tracer::tag(std::string_view name) {
  if (name.empty()) return 0;
  name = name.substr(0, kLongestText);
  TraceRecord record;
  {
    const Lock lock(mutex_);
    if (const auto found = tags_.find(name); found != tags_.end()) return found->second;
    if (tags_.size() >= kMostTags) return 0;
    record.tag = static_cast<uint16_t>(tags_.size() + 1);
    tags_.emplace(name, record.tag);
  }
  record.kind = TraceKind::kTag;
  note(record, std::string(name));
  return record.tag;
}

uint64_t Tracer::dropped() const {
  const Lock lock(mutex_);
  uint64_t dropped = dropped_notes_;
  for (const std::unique_ptr<TraceRing>& ring : rings_) dropped += ring->dropped();
  return dropped;
}

void Tracer::wait(uint64_t milliseconds) {
  const uint64_t until = clock_ns(CLOCK_REALTIME) + milliseconds * 1'000'000;
  const timespec deadline{static_cast<time_t>(until / 1'000'000'000),
                          static_cast<long>(until % 1'000'000'000)};
  while (sem_timedwait(&wake_, &deadline) != 0 && errno == EINTR) {
  }
}

void Tracer::stop_waiting() {
  sem_post(&wake_);
}

void Tracer::collect(uint64_t until_ticks, std::vector<Note>& notes, std::vector<TraceRecord>& records) {
  std::vector<TraceRing*> rings;
  {
    const Lock lock(mutex_);
    notes = std::exchange(notes_, {});
    for (const std::unique_ptr<TraceRing>& ring : rings_) rings.push_back(ring.get());
  }
  records.clear();
  for (TraceRing* ring : rings) {
    ring->drain(until_ticks, [&](const TraceRecord& record) { records.push_back(record); });
  }
  std::stable_sort(records.begin(), records.end(),
                   [](const TraceRecord& a, const TraceRecord& b) { return a.ticks < b.ticks; });
}

}  // namespace spillway
