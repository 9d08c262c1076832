#include "history.h"

#include <spillway/spillway.h>

#include <algorithm>
#include <utility>

#include "release.h"

namespace spillway_torch {
namespace {

using recording::RecordContext;
using recording::TraceEntry;

thread_local std::vector<std::string> compile_contexts;
thread_local std::string metadata_of_thread;

std::string compile_context() {
  return compile_contexts.empty() ? "N/A" : compile_contexts.back();
}

template <typename Item>
void keep_latest(std::deque<Item>& items, size_t most) {
  while (items.size() > most) items.pop_front();
}

}  // namespace

void History::configure(bool enabled, int devices, recording::CreateContextFn gather, size_t most_entries,
                        RecordContext when, bool clear, const std::vector<std::string>& skipped_actions) {
  std::vector<Entry::Action> skipped;
  for (const std::string& action : skipped_actions) {
    skipped.push_back(action_named(action));
  }
  const std::lock_guard lock(mutex_);
  skipped_ = std::move(skipped);
  most_entries_ = std::max<size_t>(1, most_entries);
  gather_.store(enabled ? gather : nullptr);
  when_.store(enabled ? when : RecordContext::NEVER);
  if (clear || !enabled) {
    entries_.clear();
    annotations_.clear();
  }
  for (auto& [device, entries] : entries_) keep_latest(entries, most_entries_);
  keep_latest(annotations_, most_entries_);
  if (!enabled || clear || !enabled_.load()) segments_.clear();
  for (int device = 0; enabled && device < devices; ++device) {
    const auto index = static_cast<c10::DeviceIndex>(device);
    if (segments_.count(index) == 0) segments_[index] = segments_of(index);
  }
  if (!enabled) live_.clear();
  enabled_.store(enabled);
  listens_.store(enabled || !trackers_.empty());
}

void History::attach(recording::AllocatorTraceTracker tracker) {
  const std::lock_guard lock(mutex_);
  trackers_.push_back(std::move(tracker));
  listens_.store(true);
}

History::Context History::gather(RecordContext least) const {
  if (when_.load(std::memory_order_relaxed) < least) return nullptr;
  const auto gather = gather_.load(std::memory_order_relaxed);
  return gather == nullptr ? nullptr : gather();
}

bool History::is_skipped(Entry::Action action) const {
  return std::find(skipped_.begin(), skipped_.end(), action) != skipped_.end();
}

void History::add(Entry entry) {
  add(std::move(entry), metadata_of_thread);
}

void History::add(Entry entry, const std::string& metadata) {
  entry.compile_context_ = compile_context();
  set_metadata(entry, metadata);
  for (const auto& tracker : trackers_) tracker(entry);
  record(std::move(entry));
}

void History::record(Entry entry) {
  if (!enabled_.load(std::memory_order_relaxed) || is_skipped(entry.action_)) return;
  // The list keeps a stack only where stacks of events were asked for.
  if (when_.load(std::memory_order_relaxed) < RecordContext::ALLOC) entry.context_ = nullptr;
  std::deque<Entry>& entries = entries_[entry.device_];
  entries.push_back(std::move(entry));
  keep_latest(entries, most_entries_);
}

void History::add(Entry::Action action, const Block& block, Context context) {
  add(Entry(action, block.device, reinterpret_cast<size_t>(block.pointer), block.bytes, block.stream,
            block.pool, c10::getApproximateTime(), std::move(context)));
}

void History::allocated(const Block& block, Context context) {
  const std::lock_guard lock(mutex_);
  complete_finished();
  if (enabled_.load(std::memory_order_relaxed)) {
    if (context != nullptr) live_[block.pointer] = context;
    // Memory that another stream or pool had is mapped for this one before the block.
    const auto address = reinterpret_cast<uint64_t>(block.pointer);
    const Segment bytes{address, block.bytes, block.stream, block.pool};
    // Who keeps one event listens to blocks, and has no use for segments.
    const bool shows_segments = most_entries_ > 1 || when_.load() != RecordContext::ALLOC;
    if (shows_segments && !holds(segments_[block.device], bytes)) update_segments(block.device, context);
  }
  add(Entry::ALLOC, block, std::move(context));
}

void History::look_at_segments(c10::DeviceIndex device, Context context) {
  const std::lock_guard lock(mutex_);
  // Their memory may be unmapped, or another's, by now.
  complete_finished();
  if (enabled_.load(std::memory_order_relaxed)) update_segments(device, context);
}

void History::update_segments(c10::DeviceIndex device, const Context& context) {
  const Segments now = segments_of(device);
  Segments& known = segments_[device];
  const Segments gone = difference(known, now);
  Segments come = difference(now, known);
  for (Segment& part : come) part.context = context;
  const auto record_all = [&](Entry::Action action, const Segments& parts) {
    for (const Segment& part : parts) {
      Entry entry(action, device, part.address, part.bytes, part.stream, part.pool, c10::getApproximateTime(),
                  context);
      entry.compile_context_ = compile_context();
      set_metadata(entry, metadata_of_thread);
      record(std::move(entry));
    }
  };
  record_all(Entry::SEGMENT_UNMAP, gone);
  record_all(Entry::SEGMENT_MAP, come);
  known = together(difference(known, gone), come);
}

void History::free_requested(const Block& block, Context context) {
  const std::lock_guard lock(mutex_);
  live_.erase(block.pointer);
  add(Entry::FREE_REQUESTED, block, context);
  pending_.push_back({block, std::move(context)});
}

void History::complete(const PendingFree& pending) {
  on_other_streams_.erase(pending.block.pointer);
  add(Entry::FREE_COMPLETED, pending.block, pending.context);
}

void History::annotated(const Block& block, const std::string& metadata, Context context) {
  const std::lock_guard lock(mutex_);
  add(Entry(kAnnotateAction, block.device, reinterpret_cast<size_t>(block.pointer), block.bytes, block.stream,
            block.pool, c10::getApproximateTime(), std::move(context)),
      metadata);
}

void History::complete_frees() {
  const std::lock_guard lock(mutex_);
  complete_finished();
}

void History::complete_finished() {
  const auto is_complete = [&](const PendingFree& pending) {
    if (on_other_streams_.count(pending.block.pointer) == 0) return true;
    spw_block block{};
    int device = 0;
    return spw_find_block(pending.block.pointer, &block, &device) != SPW_OK ||
           block.state != SPW_BLOCK_PENDING_FREE;
  };
  for (auto pending = pending_.begin(); pending != pending_.end();) {
    if (is_complete(*pending)) {
      complete(*pending);
      pending = pending_.erase(pending);
    } else {
      ++pending;
    }
  }
}

void History::out_of_memory(const Block& request, size_t free_bytes, Context context) {
  const std::lock_guard lock(mutex_);
  add(Entry(Entry::OOM, request.device, free_bytes, request.bytes, request.stream, request.pool,
            c10::getApproximateTime(), std::move(context)));
}

void History::snapshot_taken(c10::DeviceIndex device, size_t active_bytes) {
  const std::lock_guard lock(mutex_);
  add(Entry(Entry::SNAPSHOT, device, 0, active_bytes, nullptr, {0, 0}, c10::getApproximateTime()));
}

void History::used_on_stream(void* pointer) {
  const std::lock_guard lock(mutex_);
  on_other_streams_.insert(pointer);
}

void History::annotate(c10::DeviceIndex device,
                       const std::vector<std::pair<std::string, std::string>>& annotation) {
  const std::lock_guard lock(mutex_);
  if (!enabled_.load(std::memory_order_relaxed)) return;
  recording::AnnotationEntry entry(device, c10::getApproximateTime());
  for (const auto& [name, value] : annotation) entry.recordUserMetadata(name, value);
  annotations_.push_back(std::move(entry));
  keep_latest(annotations_, most_entries_);
}

void History::push_compile_context(const std::string& context) {
  compile_contexts.push_back(context);
}

void History::pop_compile_context() {
  if (!compile_contexts.empty()) compile_contexts.pop_back();
}

void History::set_user_metadata(const std::string& metadata) {
  metadata_of_thread = metadata;
}

std::string History::user_metadata() const {
  return metadata_of_thread;
}

std::vector<History::Entry> History::entries(c10::DeviceIndex device) {
  const auto to_ns = clock_.makeConverter();
  const std::lock_guard lock(mutex_);
  std::vector<Entry> out;
  for (const Entry& entry : entries_[device]) {
    out.push_back(entry);
    out.back().time_.t_ = to_ns(entry.time_.approx_t_) / 1000;
  }
  return out;
}

std::vector<recording::AnnotationEntry> History::annotations() {
  const auto to_ns = clock_.makeConverter();
  const std::lock_guard lock(mutex_);
  std::vector<recording::AnnotationEntry> out(annotations_.begin(), annotations_.end());
  for (auto& entry : out) entry.time_.t_ = to_ns(entry.time_.approx_t_) / 1000;
  return out;
}

History::Context History::context_of_segment(c10::DeviceIndex device, uint64_t address) const {
  const std::lock_guard lock(mutex_);
  const auto segments = segments_.find(device);
  const Segment* segment = segments == segments_.end() ? nullptr : find(segments->second, address);
  return segment == nullptr ? nullptr : segment->context;
}

History::Context History::context_of(const void* pointer) const {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(pointer);
  return found == live_.end() ? nullptr : found->second;
}

}  // namespace spillway_torch
