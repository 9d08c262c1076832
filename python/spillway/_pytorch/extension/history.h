// Keeps what torch.cuda.memory._record_memory_history() records: a bounded list of events for each device,
// and the stack of each live block. While nothing is recorded and nobody listens, an allocation pays for
// reading one flag.
//
// Segments are those of the snapshot, and like PyTorch's expandable ones they grow and shrink: segment_map
// and segment_unmap say by which parts, each of one stream and pool. They are looked at when a block lies
// outside of those known of its stream and pool, when memory was given back, and for a snapshot, so that
// every block of the history lies in a segment, and what was there at the beginning and all parts since add
// up to the reserved memory. Each look walks all blocks.
//
// Thread-safe. Listeners are called with a lock held, as PyTorch's contract has it; they hear of blocks
// alone.
#pragma once

#include <c10/util/ApproximateClock.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "release.h"
#include "segments.h"

namespace spillway_torch {

class History {
 public:
  using Entry = recording::TraceEntry;
  using Context = std::shared_ptr<c10::GatheredContext>;

  struct Block {
    c10::DeviceIndex device;
    void* pointer;
    size_t bytes;  // requested
    cudaStream_t stream;
    c10::MempoolId_t pool;
  };

  // Tells whether anything below wants to know of an event.
  bool listens() const { return listens_.load(std::memory_order_relaxed); }
  bool is_enabled() const { return enabled_.load(std::memory_order_relaxed); }

  // `devices`: how many there are.
  void configure(bool enabled, int devices, recording::CreateContextFn gather, size_t most_entries,
                 recording::RecordContext when, bool clear, const std::vector<std::string>& skipped_actions);
  void attach(recording::AllocatorTraceTracker tracker);

  // Stacks are gathered before any lock is taken: it may need the GIL.
  Context gather(recording::RecordContext least) const;

  void allocated(const Block& block, Context context);
  void free_requested(const Block& block, Context context);
  // Frees that had to wait for other streams and have completed since.
  void complete_frees();
  // The segments of a device may have changed.
  void look_at_segments(c10::DeviceIndex device, Context context);
  // `request` has no pointer.
  void out_of_memory(const Block& request, size_t free_bytes, Context context);
  void snapshot_taken(c10::DeviceIndex device, size_t active_bytes);
  void used_on_stream(void* pointer);
  void annotated(const Block& block, const std::string& metadata, Context context);

  void annotate(c10::DeviceIndex device, const std::vector<std::pair<std::string, std::string>>& annotation);
  void push_compile_context(const std::string& context);
  void pop_compile_context();
  void set_user_metadata(const std::string& metadata);
  std::string user_metadata() const;

  // Oldest first, with times in microseconds since 1970.
  std::vector<Entry> entries(c10::DeviceIndex device);
  std::vector<recording::AnnotationEntry> annotations();
  Context context_of(const void* pointer) const;
  // Where the segment that begins there was mapped.
  Context context_of_segment(c10::DeviceIndex device, uint64_t address) const;

 private:
  struct PendingFree {
    Block block;
    Context context;
  };

  // With the mutex held, like those below.
  void add(Entry entry);
  void add(Entry entry, const std::string& metadata);
  // Without the listeners.
  void record(Entry entry);
  void add(Entry::Action action, const Block& block, Context context);
  void update_segments(c10::DeviceIndex device, const Context& context);
  void complete_finished();
  void complete(const PendingFree& pending);
  bool is_skipped(Entry::Action action) const;

  std::atomic<bool> enabled_{false};
  std::atomic<bool> listens_{false};
  std::atomic<recording::CreateContextFn> gather_{nullptr};
  std::atomic<recording::RecordContext> when_{recording::RecordContext::NEVER};

  // Measures the clock of entries against real time, from its construction to each use.
  c10::ApproximateClockToUnixTimeConverter clock_;

  mutable std::mutex mutex_;
  size_t most_entries_ = 0;
  std::vector<Entry::Action> skipped_;
  std::map<c10::DeviceIndex, std::deque<Entry>> entries_;
  std::deque<recording::AnnotationEntry> annotations_;
  std::vector<recording::AllocatorTraceTracker> trackers_;
  std::unordered_map<const void*, Context> live_;
  std::unordered_set<void*> on_other_streams_;
  std::deque<PendingFree> pending_;
  std::map<c10::DeviceIndex, Segments> segments_;  // as far as the events tell
};

}  // namespace spillway_torch
