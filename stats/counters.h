// Exact counters of a device, cheap enough for every malloc and free.
//
// A heap counts in plain integers of its own. Device-wide currents are sums over heaps, taken when somebody
// asks. The hard part is a device-wide peak, which is a property of the sum at every moment; it is kept
// without a shared atomic:
//   - For each gauge, peak = device's own part + sum of the heaps' ceilings, and no heap passes its ceilings
//   in silence.
//     Below them an operation only compares. With one heap, the peak *is* its ceiling and rises in place.
//   - A heap that passes a ceiling while there are others stops them, sums, and raises the peak if the sum
//   needs it.
//   - Stopping: an operation sets busy_, then looks at stop_; who stops sets stop_, then waits until busy_ is
//   clear
//     (light_barrier / heavy_barrier order the two). Stopped heaps count under the device's mutex, each
//     operation comparing true sums; after some hundred operations the unused room below the peak is dealt
//     out as ceilings, first to those that came near it, and they run free.
// So peaks, and any snapshot, describe states that the operations really passed through, in an order that
// agrees with every thread's own.
//
// Pages: used_page_bytes is the size of all pages with at least one byte in use. Then, always,
//   inactive_split_bytes = used pages - active        cached_free = reserved - used pages
//   small pool: inactive_split_bytes = slabs - active small. An allocator that keeps a slab without used
//   slots on a page without other used bytes takes it out of on_slabs, or the large pool's share would fall
//   below zero.
//
// Thread-safety: the mutating calls of one heap under that heap's lock; everything else from any thread. A
// DeviceCounters outlives its heaps. Calls never fail, never block on the driver, and take no lock but the
// device's mutex. Cost: about 2 ns an operation when nothing is passed; 10 to 100 ns while stopped; a stop
// costs microseconds.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stats/barrier.h"
#include "stats/device_stats.h"
#include "stats/lock.h"
#include "stats/tracer.h"

namespace spillway {

enum class SizePool : uint8_t { kSmall, kLarge };

enum class Rung : uint8_t {
#define SPW_STATS_MEMBER(name, Name) k##Name,
  SPW_STATS_RUNGS(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
      kCount
};

enum class DriverCall : uint8_t {
#define SPW_STATS_MEMBER(name, Name) k##Name,
  SPW_STATS_DRIVER_CALLS(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
      kCount
};

// Every gauge that has a peak, three rows each: of both pools, of the small one, of the large one.
enum class Metric : uint8_t {
#define SPW_STATS_MEMBER(name) name,
  SPW_STATS_POOLED(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
      kCount
};
enum class Row : uint8_t { kAll, kSmall, kLarge, kCount };
inline constexpr size_t kGauges = static_cast<size_t>(Metric::kCount) * static_cast<size_t>(Row::kCount);
using Gauges = std::array<int64_t, kGauges>;
constexpr size_t gauge(Metric metric, Row row) {
  return static_cast<size_t>(metric) * static_cast<size_t>(Row::kCount) + static_cast<size_t>(row);
}

class HeapCounters;

class DeviceCounters {
 public:
  // What is counted is also recorded by the tracer, where there is one; it outlives the counters.
  explicit DeviceCounters(Tracer* tracer = nullptr, int device = 0);
  ~DeviceCounters();
  DeviceCounters(const DeviceCounters&) = delete;
  DeviceCounters& operator=(const DeviceCounters&) = delete;

  // Memory came from the driver (positive) or went back. It counts as cached_free: new pages have no byte in
  // use.
  void on_reserve(int64_t bytes, int64_t segments);

  void on_rung(Rung rung, bool served,
               int64_t time_ns);  // out_of_memory: served = true, once for each failed request
  void on_driver_call(DriverCall call, int64_t count = 1) {
    driver_calls_[static_cast<size_t>(call)].fetch_add(count, std::memory_order_relaxed);
  }
  // A stream waits for another from now on: counted once the wait is enqueued, and never reset.
  void on_stream_waited() { stream_waits_.fetch_add(1, std::memory_order_release); }
  uint64_t stream_waits() const { return stream_waits_.load(std::memory_order_acquire); }
  void on_host_wait() { host_waits_.fetch_add(1, std::memory_order_relaxed); }
  // A request was served only after a rung that waits on the host.
  void on_alloc_retry() {
    alloc_retries_.fetch_add(1, std::memory_order_relaxed);
    trace(TraceKind::kRetry, 0, 0, 0);
  }
  // For what is recorded and not counted.
  void trace(TraceKind kind, uint64_t address, uint64_t requested_bytes, uint64_t block_bytes,
             uint64_t stream = 0) const noexcept;
  // A block was placed in host memory (positive), or went.
  void on_host_placed(int64_t bytes) {
    host_placed_blocks_.fetch_add(bytes < 0 ? -1 : 1, std::memory_order_relaxed);
    host_placed_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  void on_sync_all_streams() { sync_all_streams_.fetch_add(1, std::memory_order_relaxed); }

  // Every counter at one moment, the identities included. Not filled here: largest_free_bytes, limit_bytes,
  // live_mappings, metadata_bytes.
  DeviceStats snapshot() const;
  // Returns how many operations were counted under the mutex, the dear way.
  uint64_t counted_stopped() const { return counted_stopped_.load(std::memory_order_relaxed); }
  // The last heap is gone, and what was still in use then with it: that counts as freed.
  void on_memory_gone();
  void reset_peaks();        // peaks start again from the current values, means from now
  void reset_accumulated();  // running totals and event counts start again from zero

 private:
  friend class HeapCounters;

  // Null where nothing is recorded, or host memory has run out.
  TraceRing* new_trace_ring() const noexcept;
  void add_heap(HeapCounters& heap);
  void remove_heap(HeapCounters& heap);
  void leave(HeapCounters& heap);
  void rejoin(HeapCounters& heap);
  void settle_passed_ceiling(HeapCounters& heap) SPW_EXCLUDES(mutex_);  // which is not busy

  // After this no heap counts without the mutex, and sums_ and peaks_ are true.
  void stop() const SPW_REQUIRES(mutex_);
  // Ends a stop that was only made to look.
  void resume() const SPW_REQUIRES(mutex_);
  void let_run() const SPW_REQUIRES(mutex_);
  // Brings its part of the sums up to date.
  void settle(HeapCounters& heap) const SPW_REQUIRES(mutex_);
  // Settles, and lets the heaps run when it is time.
  void count_stopped(HeapCounters& heap) const SPW_REQUIRES(mutex_);
  void raise_peaks() const SPW_REQUIRES(mutex_);
  int64_t operations() const SPW_REQUIRES(mutex_);
  Gauges cumulative() const SPW_REQUIRES(mutex_);
  void integrate_reserved(int64_t now_ns) const SPW_REQUIRES(mutex_);
  // The parts of a snapshot. Gauges and means are of stopped heaps.
  void fill_gauges(DeviceStats& out) const SPW_REQUIRES(mutex_);
  void fill_means(DeviceStats& out) const SPW_REQUIRES(mutex_);
  void fill_events(DeviceStats& out) const;

  Tracer* const tracer_;
  const int device_;
  std::array<std::atomic<int64_t>, static_cast<size_t>(DriverCall::kCount)> driver_calls_{};
  std::array<std::atomic<int64_t>, static_cast<size_t>(Rung::kCount)> rung_hits_{};
  std::array<std::atomic<int64_t>, static_cast<size_t>(Rung::kCount)> rung_time_ns_{};
  std::atomic<uint64_t> stream_waits_{0};
  std::atomic<int64_t> host_waits_{0};
  std::atomic<int64_t> sync_all_streams_{0};
  std::atomic<int64_t> alloc_retries_{0};
  std::atomic<int64_t> host_placed_blocks_{0};
  std::atomic<int64_t> host_placed_bytes_{0};

  mutable std::atomic<uint64_t> counted_stopped_{0};

  // Guards the counting of stopped heaps too. Looking stops heaps, hence `mutable`.
  mutable BlockingMutex mutex_;
  std::vector<HeapCounters*> heaps_ SPW_GUARDED_BY(mutex_);
  mutable bool stopped_ SPW_GUARDED_BY(mutex_) = true;
  mutable Gauges sums_ SPW_GUARDED_BY(mutex_){};   // of device and heaps; kept only while stopped
  mutable Gauges peaks_ SPW_GUARDED_BY(mutex_){};  // kept only while stopped; else own_ + ceilings
  mutable int64_t operations_at_run_ SPW_GUARDED_BY(mutex_) = 0;
  mutable uint32_t stopped_operations_left_ SPW_GUARDED_BY(mutex_) = 0;
  // So many are counted under the mutex before the heaps run again.
  uint32_t stopped_operations_ SPW_GUARDED_BY(mutex_);
  // The device's part of the sums: reserved memory, and heaps that are gone.
  Gauges own_ SPW_GUARDED_BY(mutex_){};
  Gauges own_cumulative_ SPW_GUARDED_BY(mutex_){};  // running totals of the same
  Gauges allocated_base_ SPW_GUARDED_BY(mutex_){};  // running totals at reset_accumulated()
  Gauges freed_base_ SPW_GUARDED_BY(mutex_){};
  int64_t means_since_ns_ SPW_GUARDED_BY(mutex_);
  mutable int64_t reserved_since_ns_ SPW_GUARDED_BY(mutex_);
  mutable double reserved_byte_ns_ SPW_GUARDED_BY(mutex_) = 0;
  double gone_active_byte_ns_ SPW_GUARDED_BY(mutex_) = 0;  // of heaps that are gone
  double gone_requested_byte_ns_ SPW_GUARDED_BY(mutex_) = 0;
};

class HeapCounters {
 public:
  explicit HeapCounters(DeviceCounters& device)
      : device_(device), trace_(device.new_trace_ring()), fence_(light_barrier_needs_fence()) {
    device_.add_heap(*this);
  }
  ~HeapCounters() { device_.remove_heap(*this); }
  HeapCounters(const HeapCounters&) = delete;
  HeapCounters& operator=(const HeapCounters&) = delete;

  // The stream that the heap serves from now on, for the trace.
  void set_stream(uint64_t stream) {
    if (trace_ != nullptr) trace_->set_stream(stream);
  }

  // A block was handed out. first_used_page_bytes: the pages that had no byte in use before it. Addresses,
  // here and below, are for the trace. Always inlined, as is on_free: calls are a tenth of a hit.
  [[gnu::always_inline]] inline void on_allocate(SizePool pool, uint64_t requested_bytes,
                                                 uint64_t block_bytes, uint64_t first_used_page_bytes = 0,
                                                 int64_t fragments = 0, uint64_t address = 0) {
    if (!start()) [[unlikely]]
      return allocate_stopped(pool, requested_bytes, block_bytes, first_used_page_bytes, fragments, address);
    apply_allocation(pool, requested_bytes, block_bytes, first_used_page_bytes, fragments);
    if (is_sample_due(pool) || may_have_passed(pool, first_used_page_bytes, fragments)) [[unlikely]]
      return settle_allocation(pool, requested_bytes, block_bytes, first_used_page_bytes, fragments, address);
    finish();
    trace(TraceKind::kAllocate, address, requested_bytes, block_bytes);
  }

  // The program freed a block; streams still use it.
  void on_free_requested(SizePool pool, uint64_t block_bytes, uint64_t requested_bytes = 0,
                         uint64_t address = 0) {
    mutate(
        [&] {
          pools_[index(pool)].pending_blocks += 1;
          pools_[index(pool)].pending_bytes += signed_bytes(block_bytes);
          refresh_limits();
        },
        [] { return false; });
    trace(TraceKind::kFreeRequested, address, requested_bytes, block_bytes);
  }

  // They no longer do. emptied_page_bytes: the pages that have no byte in use after it.
  void on_free_completed(SizePool pool, uint64_t requested_bytes, uint64_t block_bytes,
                         uint64_t emptied_page_bytes = 0, int64_t fragments = 0, uint64_t address = 0) {
    mutate(
        [&] {
          pools_[index(pool)].pending_blocks -= 1;
          pools_[index(pool)].pending_bytes -= signed_bytes(block_bytes);
          apply_free(pool, requested_bytes, block_bytes, emptied_page_bytes, fragments);
          refresh_limits();
        },
        [&] { return passed_by_free(pool, fragments); });
    trace(TraceKind::kFreeCompleted, address, requested_bytes, block_bytes);
  }

  // Both at once: no other stream used the block.
  [[gnu::always_inline]] inline void on_free(SizePool pool, uint64_t requested_bytes, uint64_t block_bytes,
                                             uint64_t emptied_page_bytes = 0, int64_t fragments = 0,
                                             uint64_t address = 0) {
    if (!start()) [[unlikely]]
      return free_stopped(pool, requested_bytes, block_bytes, emptied_page_bytes, fragments, address);
    apply_free(pool, requested_bytes, block_bytes, emptied_page_bytes, fragments);
    if (passed_by_free(pool, fragments)) [[unlikely]]
      return settle_free(pool, requested_bytes, block_bytes, emptied_page_bytes, fragments, address);
    finish();
    trace(TraceKind::kFree, address, requested_bytes, block_bytes);
  }

  // For the trace alone: the block is gone with all of its device's. `was_freed`: by the program before.
  void trace_end(bool was_freed, uint64_t requested_bytes, uint64_t block_bytes, uint64_t address) {
    trace(was_freed ? TraceKind::kFreeCompleted : TraceKind::kFree, address, requested_bytes, block_bytes);
  }

  // Pages without a byte in use (positive), or no longer so (negative), for a change that no allocate or free
  // reports. Pages that arrive from the driver or return to it are not reported here but by on_reserve, and
  // by on_pages.
  void on_cached(int64_t delta_bytes);

  // Slabs were carved (positive) or given back.
  void on_slabs(int64_t delta_bytes);

  // Inactive split pieces appeared or went, where no allocate or free reports it.
  void on_fragments(int64_t delta, SizePool pool = SizePool::kLarge) {
    mutate([&] { apply_fragments(pools_[index(pool)], delta); }, [&] { return passed_by_fragments(pool); });
  }

  // Pages without a byte in use enter or leave this heap. Device totals do not change, so neither do peaks.
  void on_pages(int64_t delta_bytes) {
    mutate([&] { owned_bytes_ += delta_bytes; }, [] { return false; });
  }
  void on_transfer(HeapCounters& from, int64_t cached_bytes) {
    from.on_pages(-cached_bytes);
    on_pages(cached_bytes);
  }

  // What the heap holds leaves the device, or comes back: until then it is in no gauge of the device, and
  // what goes meanwhile is not noticed there. Coming back counts as having come anew.
  void leave() { device_.leave(*this); }
  void rejoin() { device_.rejoin(*this); }

  HeapStats snapshot() const;
  // Counts blocks that the program has or streams still use. For who excludes the operations of this heap.
  uint64_t active_bytes() const { return static_cast<uint64_t>(pools_[0].bytes + pools_[1].bytes); }

 private:
  friend class DeviceCounters;

  // Numbers that one operation changes together are kept apart: side by side, compilers change them as
  // vectors, and a vector load that follows narrower stores waits for them to reach the cache (half the cost
  // of an operation).
  struct PoolCounts {
    int64_t blocks = 0;  // active
    int64_t pending_blocks = 0;
    int64_t bytes = 0;
    int64_t pending_bytes = 0;  // freed, still active
    int64_t requested = 0;
    int64_t fragments = 0;
    int64_t cumulative_blocks = 0;  // running totals
    int64_t sample_at = 0;          // of cumulative_blocks: when the means look next
    int64_t cumulative_bytes = 0;
    int64_t cumulative_fragments = 0;
    int64_t cumulative_requested = 0;
  };
  // Holds what active may reach before a ceiling is passed. Allocated = active - pending, so one limit serves
  // both.
  struct Limits {
    int64_t blocks = 0, bytes = 0, requested = 0;
  };

  void trace(TraceKind kind, uint64_t address, uint64_t requested_bytes, uint64_t block_bytes) {
    if (trace_ != nullptr) [[unlikely]]
      trace_->write(kind, address, requested_bytes, block_bytes);
  }

  static constexpr size_t index(SizePool pool) { return static_cast<size_t>(pool); }
  static constexpr Row row(SizePool pool) { return pool == SizePool::kSmall ? Row::kSmall : Row::kLarge; }
  static constexpr int64_t signed_bytes(uint64_t bytes) { return static_cast<int64_t>(bytes); }

  static void apply_fragments(PoolCounts& counts, int64_t delta) {
    counts.fragments += delta;
    if (delta > 0) counts.cumulative_fragments += delta;
  }
  bool passed_by_fragments(SizePool pool) const {
    return pools_[index(pool)].fragments > ceilings_[gauge(Metric::inactive_split, row(pool))] ||
           pools_[0].fragments + pools_[1].fragments > ceilings_[gauge(Metric::inactive_split, Row::kAll)];
  }
  void apply_allocation(SizePool pool, uint64_t requested_bytes, uint64_t block_bytes,
                        uint64_t first_used_page_bytes, int64_t fragments) {
    PoolCounts& counts = pools_[index(pool)];
    apply_fragments(counts, fragments);
    counts.blocks += 1;
    counts.bytes += signed_bytes(block_bytes);
    counts.requested += signed_bytes(requested_bytes);
    counts.cumulative_blocks += 1;
    counts.cumulative_bytes += signed_bytes(block_bytes);
    counts.cumulative_requested += signed_bytes(requested_bytes);
    if (first_used_page_bytes != 0) [[unlikely]] {
      used_page_bytes_ += signed_bytes(first_used_page_bytes);
      cumulative_used_page_bytes_ += signed_bytes(first_used_page_bytes);
    }
  }
  void apply_free(SizePool pool, uint64_t requested_bytes, uint64_t block_bytes, uint64_t emptied_page_bytes,
                  int64_t fragments) {
    PoolCounts& counts = pools_[index(pool)];
    apply_fragments(counts, fragments);
    counts.blocks -= 1;
    counts.bytes -= signed_bytes(block_bytes);
    counts.requested -= signed_bytes(requested_bytes);
    used_page_bytes_ -= signed_bytes(emptied_page_bytes);
  }

  // A free, and an allocation that breaks a page, raise nothing else but the inactive bytes of its pool and
  // of all.
  bool passed_by_inactive(SizePool pool) const {
    const int64_t all = used_page_bytes_ - pools_[0].bytes - pools_[1].bytes;
    const int64_t own = pool == SizePool::kSmall ? slab_bytes_ - pools_[0].bytes
                                                 : used_page_bytes_ - slab_bytes_ - pools_[1].bytes;
    return ((ceilings_[gauge(Metric::inactive_split_bytes, Row::kAll)] - all) |
            (ceilings_[gauge(Metric::inactive_split_bytes, row(pool))] - own)) < 0;
  }

  bool passed_by_free(SizePool pool, int64_t fragments) const {
    return passed_by_inactive(pool) || (fragments > 0 && passed_by_fragments(pool));
  }
  bool passed_by_allocation(SizePool pool, uint64_t first_used_page_bytes, int64_t fragments) const {
    return passed_by_block(pool) ||
           (first_used_page_bytes != 0 && (pool == SizePool::kLarge ? passed_by_inactive(pool) : passed())) ||
           (fragments > 0 && passed_by_fragments(pool));
  }
  // Tells the same without a call: true for every slab that opens a page, which is rare.
  bool may_have_passed(SizePool pool, uint64_t first_used_page_bytes, int64_t fragments) const {
    return passed_by_block(pool) ||
           (first_used_page_bytes != 0 && (pool == SizePool::kSmall || passed_by_inactive(pool))) ||
           (fragments > 0 && passed_by_fragments(pool));
  }
  bool passed_by_block(SizePool pool) const {
    const PoolCounts& counts = pools_[index(pool)];
    const Limits& own = limits_[1 + index(pool)];
    const Limits& all = limits_[0];
    return ((own.blocks - counts.blocks) | (own.bytes - counts.bytes) | (own.requested - counts.requested) |
            (all.blocks - pools_[0].blocks - pools_[1].blocks) |
            (all.bytes - pools_[0].bytes - pools_[1].bytes) |
            (all.requested - pools_[0].requested - pools_[1].requested)) < 0;
  }
  bool is_sample_due(SizePool pool) const {
    return pools_[index(pool)].cumulative_blocks >= pools_[index(pool)].sample_at;
  }

  // Tells whether an operation may count by itself, which then ends with finish() or settle(). If not, the
  // heaps are stopped, or just were.
  bool start() {
    busy_.store(true, std::memory_order_relaxed);
    light_barrier(fence_);
    if (!stop_.load(std::memory_order_acquire)) [[likely]]
      return true;
    finish();
    return false;
  }
  void finish() { busy_.store(false, std::memory_order_release); }
  // Instead of finish(), where a ceiling was passed.
  void settle();

  // Runs `apply` on the counts, excluded from every stop; `passed` says whether a ceiling was.
  template <typename Apply, typename Passed>
  void mutate(Apply apply, Passed passed) {
    while (!start()) {
      const Lock lock(device_.mutex_);
      if (!stop_.load(std::memory_order_relaxed)) continue;  // the heaps were let run while this one waited
      apply();
      device_.count_stopped(*this);
      return;
    }
    apply();
    if (passed()) [[unlikely]]
      return settle();
    finish();
  }

  // These do what is rare about a hit, as calls at its very end, with its own parameters: so it keeps them in
  // registers and saves none.
  void allocate_stopped(SizePool pool, uint64_t requested_bytes, uint64_t block_bytes,
                        uint64_t first_used_page_bytes, int64_t fragments, uint64_t address);
  void settle_allocation(SizePool pool, uint64_t requested_bytes, uint64_t block_bytes,
                         uint64_t first_used_page_bytes, int64_t fragments, uint64_t address);
  void free_stopped(SizePool pool, uint64_t requested_bytes, uint64_t block_bytes,
                    uint64_t emptied_page_bytes, int64_t fragments, uint64_t address);
  void settle_free(SizePool pool, uint64_t requested_bytes, uint64_t block_bytes, uint64_t emptied_page_bytes,
                   int64_t fragments, uint64_t address);

  Gauges gauges() const;      // this heap's part of the sums
  Gauges cumulative() const;  // running totals of the same
  bool passed() const;        // whether any gauge is above its ceiling
  void raise_ceilings();      // to the gauges, where those are above
  void refresh_limits();      // from ceilings and pending
  // Samples for the means: now; or halfway through the allocation that is being counted.
  void sample(int64_t active_bytes, int64_t requested_bytes);
  void sample_now() { sample(pools_[0].bytes + pools_[1].bytes, pools_[0].requested + pools_[1].requested); }
  void sample(PoolCounts& counts, uint64_t requested_bytes, uint64_t block_bytes);

  DeviceCounters& device_;
  TraceRing* const trace_;         // beside busy_, so that to look costs no line of cache
  std::atomic<bool> busy_{false};  // an operation is counting without the mutex
  std::atomic<bool> stop_{true};   // count under the device's mutex instead
  const bool fence_;
  bool alone_ = false;     // the device has no other heap
  bool is_summed_ = true;  // in the sums of the device; stop_ is set as long as it is not
  std::array<PoolCounts, 2> pools_{};
  std::array<Limits, static_cast<size_t>(Row::kCount)> limits_{};
  int64_t slab_bytes_ = 0, cumulative_slab_bytes_ = 0;
  int64_t used_page_bytes_ = 0, cumulative_used_page_bytes_ = 0;
  int64_t owned_bytes_ = 0;
  int64_t sampled_ns_ = 0, sampled_active_ = 0, sampled_requested_ = 0;
  double active_byte_ns_ = 0, requested_byte_ns_ = 0;
  Gauges ceilings_{};
  // These are the device's, with its mutex held.
  Gauges seen_{};     // this heap's part of the device's sums, while stopped
  Gauges reached_{};  // the most of each since the stop
};

}  // namespace spillway
