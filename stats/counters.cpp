#include "stats/counters.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace spillway {
namespace {

constexpr uint32_t kMinStoppedOperations = 64;
constexpr uint32_t kMaxStoppedOperations = 65536;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void set_rows(Gauges& gauges, Metric metric, int64_t small, int64_t large) {
  gauges[gauge(metric, Row::kAll)] = small + large;
  gauges[gauge(metric, Row::kSmall)] = small;
  gauges[gauge(metric, Row::kLarge)] = large;
}

void add(Gauges& to, const Gauges& from) {
  for (size_t i = 0; i < kGauges; ++i) to[i] += from[i];
}

}  // namespace

// ---- HeapCounters

Gauges HeapCounters::gauges() const {
  const PoolCounts& small = pools_[0];
  const PoolCounts& large = pools_[1];
  Gauges out{};
  set_rows(out, Metric::allocation, small.blocks - small.pending_blocks, large.blocks - large.pending_blocks);
  set_rows(out, Metric::allocated_bytes, small.bytes - small.pending_bytes,
           large.bytes - large.pending_bytes);
  set_rows(out, Metric::active, small.blocks, large.blocks);
  set_rows(out, Metric::active_bytes, small.bytes, large.bytes);
  set_rows(out, Metric::requested_bytes, small.requested, large.requested);
  set_rows(out, Metric::reserved_bytes, slab_bytes_, -slab_bytes_);
  set_rows(out, Metric::inactive_split, small.fragments, large.fragments);
  set_rows(out, Metric::inactive_split_bytes, slab_bytes_ - small.bytes,
           used_page_bytes_ - slab_bytes_ - large.bytes);
  return out;
}

Gauges HeapCounters::cumulative() const {
  const PoolCounts& small = pools_[0];
  const PoolCounts& large = pools_[1];
  Gauges out{};
  set_rows(out, Metric::allocation, small.cumulative_blocks, large.cumulative_blocks);
  set_rows(out, Metric::allocated_bytes, small.cumulative_bytes, large.cumulative_bytes);
  set_rows(out, Metric::active, small.cumulative_blocks, large.cumulative_blocks);
  set_rows(out, Metric::active_bytes, small.cumulative_bytes, large.cumulative_bytes);
  set_rows(out, Metric::requested_bytes, small.cumulative_requested, large.cumulative_requested);
  set_rows(out, Metric::inactive_split, small.cumulative_fragments, large.cumulative_fragments);
  // Counts what a free makes inactive, and pages that come into use; moves between the pools are not in
  // `all`.
  const int64_t small_freed = small.cumulative_bytes - small.bytes;
  const int64_t large_freed = large.cumulative_bytes - large.bytes;
  const int64_t slab_bytes_went = cumulative_slab_bytes_ - slab_bytes_;
  out[gauge(Metric::inactive_split_bytes, Row::kAll)] =
      cumulative_used_page_bytes_ + small_freed + large_freed;
  out[gauge(Metric::inactive_split_bytes, Row::kSmall)] = cumulative_slab_bytes_ + small_freed;
  out[gauge(Metric::inactive_split_bytes, Row::kLarge)] =
      cumulative_used_page_bytes_ + slab_bytes_went + large_freed;
  out[gauge(Metric::reserved_bytes, Row::kSmall)] = cumulative_slab_bytes_;
  out[gauge(Metric::reserved_bytes, Row::kLarge)] = slab_bytes_went;
  return out;
}

bool HeapCounters::passed() const {
  const Gauges now = gauges();
  for (size_t i = 0; i < kGauges; ++i) {
    if (now[i] > ceilings_[i]) return true;
  }
  return false;
}

void HeapCounters::raise_ceilings() {
  const Gauges now = gauges();
  for (size_t i = 0; i < kGauges; ++i) ceilings_[i] = std::max(ceilings_[i], now[i]);
  refresh_limits();
}

void HeapCounters::refresh_limits() {
  const int64_t blocks[] = {pools_[0].pending_blocks + pools_[1].pending_blocks, pools_[0].pending_blocks,
                            pools_[1].pending_blocks};
  const int64_t bytes[] = {pools_[0].pending_bytes + pools_[1].pending_bytes, pools_[0].pending_bytes,
                           pools_[1].pending_bytes};
  for (size_t i = 0; i < limits_.size(); ++i) {
    const auto row = static_cast<Row>(i);
    limits_[i].blocks = std::min(ceilings_[gauge(Metric::active, row)],
                                 ceilings_[gauge(Metric::allocation, row)] + blocks[i]);
    limits_[i].bytes = std::min(ceilings_[gauge(Metric::active_bytes, row)],
                                ceilings_[gauge(Metric::allocated_bytes, row)] + bytes[i]);
    limits_[i].requested = ceilings_[gauge(Metric::requested_bytes, row)];
  }
}

// The line between two samples stands for what was held between them.
void HeapCounters::sample(int64_t active_bytes, int64_t requested_bytes) {
  const int64_t now = now_ns();
  const double half_elapsed = static_cast<double>(now - sampled_ns_) / 2;
  active_byte_ns_ += static_cast<double>(sampled_active_ + active_bytes) * half_elapsed;
  requested_byte_ns_ += static_cast<double>(sampled_requested_ + requested_bytes) * half_elapsed;
  sampled_ns_ = now;
  sampled_active_ = active_bytes;
  sampled_requested_ = requested_bytes;
}

void HeapCounters::sample(PoolCounts& counts, uint64_t requested_bytes, uint64_t block_bytes) {
  // Uneven steps, so that a program that repeats itself is not always seen at the same point.
  counts.sample_at = counts.cumulative_blocks + 64 + (counts.cumulative_blocks * 37) % 128;
  sample(pools_[0].bytes + pools_[1].bytes - signed_bytes(block_bytes) / 2,
         pools_[0].requested + pools_[1].requested - signed_bytes(requested_bytes) / 2);
}

void HeapCounters::settle() {
  if (alone_) {
    raise_ceilings();
    finish();
  } else {
    finish();
    device_.settle_passed_ceiling(*this);
  }
}

void HeapCounters::allocate_stopped(SizePool pool, uint64_t requested_bytes, uint64_t block_bytes,
                                    uint64_t first_used_page_bytes, int64_t fragments, uint64_t address) {
  mutate(
      [&] {
        apply_allocation(pool, requested_bytes, block_bytes, first_used_page_bytes, fragments);
        if (is_sample_due(pool)) sample(pools_[index(pool)], requested_bytes, block_bytes);
      },
      [&] { return passed_by_allocation(pool, first_used_page_bytes, fragments); });
  trace(TraceKind::kAllocate, address, requested_bytes, block_bytes);
}

void HeapCounters::settle_allocation(SizePool pool, uint64_t requested_bytes, uint64_t block_bytes,
                                     uint64_t first_used_page_bytes, int64_t fragments, uint64_t address) {
  if (is_sample_due(pool)) sample(pools_[index(pool)], requested_bytes, block_bytes);
  if (passed_by_allocation(pool, first_used_page_bytes, fragments)) {
    settle();
  } else {
    finish();
  }
  trace(TraceKind::kAllocate, address, requested_bytes, block_bytes);
}

void HeapCounters::free_stopped(SizePool pool, uint64_t requested_bytes, uint64_t block_bytes,
                                uint64_t emptied_page_bytes, int64_t fragments, uint64_t address) {
  mutate([&] { apply_free(pool, requested_bytes, block_bytes, emptied_page_bytes, fragments); },
         [&] { return passed_by_free(pool, fragments); });
  trace(TraceKind::kFree, address, requested_bytes, block_bytes);
}

void HeapCounters::settle_free(SizePool, uint64_t requested_bytes, uint64_t block_bytes, uint64_t, int64_t,
                               uint64_t address) {
  settle();
  trace(TraceKind::kFree, address, requested_bytes, block_bytes);
}

void HeapCounters::on_cached(int64_t delta_bytes) {
  mutate(
      [&] {
        used_page_bytes_ -= delta_bytes;
        if (delta_bytes < 0) cumulative_used_page_bytes_ -= delta_bytes;
      },
      [&] { return passed(); });
}

void HeapCounters::on_slabs(int64_t delta_bytes) {
  mutate(
      [&] {
        slab_bytes_ += delta_bytes;
        if (delta_bytes > 0) cumulative_slab_bytes_ += delta_bytes;
      },
      [&] { return passed(); });
}

HeapStats HeapCounters::snapshot() const {
  const Lock lock(device_.mutex_);
  device_.stop();
  HeapStats out;
  out.owned_bytes = owned_bytes_;
  out.active_bytes = pools_[0].bytes + pools_[1].bytes;
  out.requested_bytes = pools_[0].requested + pools_[1].requested;
  out.pending_bytes = pools_[0].pending_bytes + pools_[1].pending_bytes;
  out.inactive_split_bytes = used_page_bytes_ - out.active_bytes;
  out.cached_free_bytes = owned_bytes_ - used_page_bytes_;
  device_.resume();
  return out;
}

// ---- DeviceCounters

DeviceCounters::DeviceCounters(Tracer* tracer, int device)
    : tracer_(tracer),
      device_(device),
      stopped_operations_(kMinStoppedOperations),
      means_since_ns_(now_ns()),
      reserved_since_ns_(means_since_ns_) {}

DeviceCounters::~DeviceCounters() = default;

TraceRing* DeviceCounters::new_trace_ring() const noexcept {
  try {
    return tracer_ == nullptr ? nullptr : tracer_->add_ring(device_);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void DeviceCounters::trace(TraceKind kind, uint64_t address, uint64_t requested_bytes, uint64_t block_bytes,
                           uint64_t stream) const noexcept {
  if (tracer_ == nullptr) return;
  TraceRecord record;
  record.kind = kind;
  record.address = address;
  record.requested_bytes = requested_bytes;
  record.block_bytes = block_bytes;
  record.stream = stream;
  record.tag = trace_thread.tag;
  record.device = static_cast<int8_t>(device_);
  tracer_->note(record);
}

void DeviceCounters::raise_peaks() const {
  for (size_t i = 0; i < kGauges; ++i) peaks_[i] = std::max(peaks_[i], sums_[i]);
}

void DeviceCounters::stop() const {
  if (stopped_) return;
  for (HeapCounters* heap : heaps_) heap->stop_.store(true, std::memory_order_relaxed);
  heavy_barrier();
  sums_ = own_;
  peaks_ = own_;
  for (HeapCounters* heap : heaps_) {
    while (heap->busy_.load(std::memory_order_acquire)) std::this_thread::yield();
    add(peaks_, heap->ceilings_);
    heap->seen_ = heap->reached_ = heap->gauges();
    add(sums_, heap->seen_);
  }
  raise_peaks();
  stopped_ = true;
  stopped_operations_left_ = 0;
}

void DeviceCounters::resume() const {
  if (stopped_operations_left_ == 0 || heaps_.size() < 2) let_run();
}

void DeviceCounters::let_run() const {
  if (heaps_.empty()) return;  // nobody to run; sums and peaks stay true
  for (size_t i = 0; i < kGauges; ++i) {
    // First what each has reached lately, so that a heap which goes to and fro below the peak stops nobody,
    // whatever others exist; then equal shares.
    int64_t room = peaks_[i] - sums_[i];
    for (HeapCounters* heap : heaps_) {
      const int64_t need = std::min(heap->reached_[i] - heap->seen_[i], room);
      heap->ceilings_[i] = heap->seen_[i] + need;
      room -= need;
    }
    auto sharers = static_cast<int64_t>(heaps_.size());
    for (HeapCounters* heap : heaps_) {
      const int64_t share = room / sharers--;
      heap->ceilings_[i] += share;
      room -= share;
    }
  }
  for (HeapCounters* heap : heaps_) {
    heap->refresh_limits();
    heap->alone_ = heaps_.size() == 1;
  }
  operations_at_run_ = operations();
  stopped_ = false;
  stopped_operations_left_ = 0;
  for (HeapCounters* heap : heaps_) heap->stop_.store(false, std::memory_order_release);
}

int64_t DeviceCounters::operations() const {
  int64_t out = 0;
  for (const HeapCounters* heap : heaps_)
    out += heap->pools_[0].cumulative_blocks + heap->pools_[1].cumulative_blocks;
  return out;
}

void DeviceCounters::settle(HeapCounters& heap) const {
  const Gauges now = heap.gauges();
  // One operation moves a few of them.
  for (size_t i = 0; i < kGauges; ++i) {
    const int64_t change = now[i] - heap.seen_[i];
    if (change == 0) continue;
    heap.seen_[i] = now[i];
    heap.reached_[i] = std::max(heap.reached_[i], now[i]);
    sums_[i] += change;
    peaks_[i] = std::max(peaks_[i], sums_[i]);
  }
}

void DeviceCounters::count_stopped(HeapCounters& heap) const {
  if (!heap.is_summed_) return;
  settle(heap);
  counted_stopped_.fetch_add(1, std::memory_order_relaxed);
  if (stopped_operations_left_ > 0) --stopped_operations_left_;
  resume();
}

void DeviceCounters::settle_passed_ceiling(HeapCounters& heap) {
  const Lock lock(mutex_);
  if (!stopped_) {
    stop();
    // Heaps that take turns at the peak would stop each other for ever: the shorter they ran, the longer they
    // now count under the mutex, where an operation is dearer but a stop is not needed.
    const int64_t ran = operations() - operations_at_run_;
    stopped_operations_ = ran < 16 * int64_t{stopped_operations_}
                              ? std::min(stopped_operations_ * 2, kMaxStoppedOperations)
                              : std::max(stopped_operations_ / 2, kMinStoppedOperations);
    stopped_operations_left_ = stopped_operations_;
  }
  settle(heap);
}

void DeviceCounters::add_heap(HeapCounters& heap) {
  const Lock lock(mutex_);
  stop();
  heap.sampled_ns_ = now_ns();
  heaps_.push_back(&heap);
  resume();
}

void DeviceCounters::remove_heap(HeapCounters& heap) {
  const Lock lock(mutex_);
  if (!heap.is_summed_) return;
  stop();
  heap.sample_now();
  gone_active_byte_ns_ += heap.active_byte_ns_;
  gone_requested_byte_ns_ += heap.requested_byte_ns_;
  add(own_, heap.gauges());
  add(own_cumulative_, heap.cumulative());
  heaps_.erase(std::find(heaps_.begin(), heaps_.end(), &heap));
  resume();
}

void DeviceCounters::leave(HeapCounters& heap) {
  const Lock lock(mutex_);
  if (!heap.is_summed_) return;
  stop();
  settle(heap);
  heap.sample_now();
  gone_active_byte_ns_ += std::exchange(heap.active_byte_ns_, 0);
  gone_requested_byte_ns_ += std::exchange(heap.requested_byte_ns_, 0);
  for (size_t i = 0; i < kGauges; ++i) sums_[i] -= heap.seen_[i];
  add(own_cumulative_, heap.cumulative());
  heaps_.erase(std::find(heaps_.begin(), heaps_.end(), &heap));
  heap.is_summed_ = false;
  resume();
}

void DeviceCounters::rejoin(HeapCounters& heap) {
  const Lock lock(mutex_);
  if (heap.is_summed_) return;
  stop();
  heap.is_summed_ = true;
  heap.seen_ = heap.reached_ = heap.gauges();
  heap.sampled_ns_ = now_ns();
  heap.sampled_active_ = heap.pools_[0].bytes + heap.pools_[1].bytes;
  heap.sampled_requested_ = heap.pools_[0].requested + heap.pools_[1].requested;
  // Its own totals count again from here on, so they go out of the device's.
  const Gauges cumulative = heap.cumulative();
  for (size_t i = 0; i < kGauges; ++i) own_cumulative_[i] += heap.seen_[i] - cumulative[i];
  add(sums_, heap.seen_);
  raise_peaks();
  heaps_.push_back(&heap);
  resume();
}

void DeviceCounters::on_reserve(int64_t bytes, int64_t segments) {
  trace(TraceKind::kReserve, 0, static_cast<uint64_t>(std::max<int64_t>(bytes, 0)),
        static_cast<uint64_t>(std::max<int64_t>(-bytes, 0)));
  const Lock lock(mutex_);
  stop();
  integrate_reserved(now_ns());
  Gauges change{};
  set_rows(change, Metric::reserved_bytes, 0, bytes);
  set_rows(change, Metric::segment, 0, segments);
  add(own_, change);
  add(sums_, change);
  raise_peaks();
  for (int64_t& added : change) added = std::max<int64_t>(added, 0);
  add(own_cumulative_, change);
  resume();
}

void DeviceCounters::integrate_reserved(int64_t now) const {
  reserved_byte_ns_ += static_cast<double>(own_[gauge(Metric::reserved_bytes, Row::kAll)]) *
                       static_cast<double>(now - reserved_since_ns_);
  reserved_since_ns_ = now;
}

void DeviceCounters::on_rung(Rung rung, bool served, int64_t time_ns) {
  trace(TraceKind::kRung, static_cast<uint64_t>(rung), static_cast<uint64_t>(time_ns), served ? 1 : 0);
  const auto index = static_cast<size_t>(rung);
  if (served) rung_hits_[index].fetch_add(1, std::memory_order_relaxed);
  rung_time_ns_[index].fetch_add(time_ns, std::memory_order_relaxed);
}

Gauges DeviceCounters::cumulative() const {
  Gauges out = own_cumulative_;
  for (const HeapCounters* heap : heaps_) add(out, heap->cumulative());
  return out;
}

void DeviceCounters::fill_gauges(DeviceStats& out) const {
  const Gauges cumulative_now = cumulative();
  const auto stat = [&](Metric metric, Row row) SPW_REQUIRES(mutex_) {
    const size_t i = gauge(metric, row);
    return spw_stat{sums_[i], peaks_[i], cumulative_now[i] - allocated_base_[i],
                    cumulative_now[i] - sums_[i] - freed_base_[i]};
  };
#define SPW_STATS_MEMBER(name)                                                \
  out.name = {stat(Metric::name, Row::kAll), stat(Metric::name, Row::kSmall), \
              stat(Metric::name, Row::kLarge)};
  SPW_STATS_POOLED(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
  out.cached_free_bytes =
      out.reserved_bytes.all.current - out.active_bytes.all.current - out.inactive_split_bytes.all.current;
  out.pending_blocks = out.active.all.current - out.allocation.all.current;
  out.pending_bytes = out.active_bytes.all.current - out.allocated_bytes.all.current;
  out.heaps = static_cast<int64_t>(heaps_.size());
}

void DeviceCounters::fill_means(DeviceStats& out) const {
  double active_byte_ns = gone_active_byte_ns_;
  double requested_byte_ns = gone_requested_byte_ns_;
  for (HeapCounters* heap : heaps_) {
    heap->sample_now();
    active_byte_ns += heap->active_byte_ns_;
    requested_byte_ns += heap->requested_byte_ns_;
  }
  const int64_t now = now_ns();
  integrate_reserved(now);
  const auto elapsed = static_cast<double>(std::max<int64_t>(now - means_since_ns_, 1));
  out.mean_active_bytes = static_cast<int64_t>(active_byte_ns / elapsed);
  out.mean_requested_bytes = static_cast<int64_t>(requested_byte_ns / elapsed);
  out.mean_reserved_bytes = static_cast<int64_t>(reserved_byte_ns_ / elapsed);
}

void DeviceCounters::fill_events(DeviceStats& out) const {
  const auto read = [](const std::atomic<int64_t>& value) { return value.load(std::memory_order_relaxed); };
#define SPW_STATS_MEMBER(name, Name)                                      \
  out.rungs.name = {read(rung_hits_[static_cast<size_t>(Rung::k##Name)]), \
                    read(rung_time_ns_[static_cast<size_t>(Rung::k##Name)])};
  SPW_STATS_RUNGS(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
#define SPW_STATS_MEMBER(name, Name) \
  out.driver_calls.name = read(driver_calls_[static_cast<size_t>(DriverCall::k##Name)]);
  SPW_STATS_DRIVER_CALLS(SPW_STATS_MEMBER)
#undef SPW_STATS_MEMBER
  out.num_alloc_retries = read(alloc_retries_);
  out.num_ooms = out.rungs.out_of_memory.hits;
  out.num_sync_all_streams = read(sync_all_streams_);
  out.num_device_alloc = out.driver_calls.create + out.driver_calls.mem_alloc;
  out.num_device_free = out.driver_calls.release + out.driver_calls.mem_free;
  out.stream_waits = out.driver_calls.stream_wait;
  out.host_waits = read(host_waits_);
  out.host_placed_blocks = read(host_placed_blocks_);
  out.host_placed_bytes = read(host_placed_bytes_);
}

DeviceStats DeviceCounters::snapshot() const {
  DeviceStats out;
  const Lock lock(mutex_);
  stop();
  fill_gauges(out);
  fill_means(out);
  resume();
  fill_events(out);
  return out;
}

void DeviceCounters::on_memory_gone() {
  const Lock lock(mutex_);
  stop();
  integrate_reserved(now_ns());
  own_ = {};
  sums_ = {};
}

void DeviceCounters::reset_peaks() {
  const Lock lock(mutex_);
  stop();
  peaks_ = sums_;
  for (HeapCounters* heap : heaps_) {
    heap->sample_now();
    heap->active_byte_ns_ = 0;
    heap->requested_byte_ns_ = 0;
  }
  gone_active_byte_ns_ = 0;
  gone_requested_byte_ns_ = 0;
  means_since_ns_ = now_ns();
  reserved_since_ns_ = means_since_ns_;
  reserved_byte_ns_ = 0;
  resume();
}

void DeviceCounters::reset_accumulated() {
  const Lock lock(mutex_);
  stop();
  allocated_base_ = cumulative();
  for (size_t i = 0; i < kGauges; ++i) freed_base_[i] = allocated_base_[i] - sums_[i];
  resume();
  for (auto* group : {&rung_hits_, &rung_time_ns_}) {
    for (auto& value : *group) value.store(0, std::memory_order_relaxed);
  }
  for (auto& value : driver_calls_) value.store(0, std::memory_order_relaxed);
  host_waits_.store(0, std::memory_order_relaxed);
  sync_all_streams_.store(0, std::memory_order_relaxed);
  alloc_retries_.store(0, std::memory_order_relaxed);
}

}  // namespace spillway
