#include "allocator.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <spillway/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <utility>

#include "calls.h"

namespace spillway_torch {
namespace {

using recording::RecordContext;

// Fills in whose block it is.
void find_owner(History::Block& block) {
  spw_stream stream = nullptr;
  spw_pool_id pool{};
  if (spw_find_owner(block.pointer, &stream, &pool) != SPW_OK) return;
  block.stream = stream;
  block.pool = {pool.first, pool.second};
}

// The sanitizer of torch.cuda listens.
void trace_allocation(void* pointer) {
  const c10::impl::PyInterpreter* const tracer = c10::impl::GPUTrace::get_trace();
  if (tracer == nullptr) [[likely]]
    return;
  (*tracer)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(pointer));
}

void trace_free(void* pointer) {
  const c10::impl::PyInterpreter* const tracer = c10::impl::GPUTrace::get_trace();
  if (tracer == nullptr) [[likely]]
    return;
  (*tracer)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(pointer));
}

void delete_block(void* pointer);

// Waits for the device, which orders the memory after all of its uses.
void delete_uncached(void* pointer) {
  if (pointer == nullptr) return;
  trace_free(pointer);
  const cudaError_t error = cudaFree(pointer);
  if (error == cudaSuccess || error == cudaErrorCudartUnloading) return;
  std::fprintf(stderr, "spillway: free: %s\n", cudaGetErrorString(error));
}

}  // namespace

// ---- Life

Allocator::Allocator()
    : AllocatorOfRelease(nullptr, nullptr),
      is_caching_(std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") == nullptr) {}

void Allocator::init(int device_count) {
  if (device_count <= device_count_.load()) return;
  fractions_ = std::make_unique<std::atomic<double>[]>(static_cast<size_t>(device_count));
  for (int device = 0; device < device_count; ++device) fractions_[static_cast<size_t>(device)] = 1;
  device_count_.store(device_count, std::memory_order_release);
}

void Allocator::check_device(DeviceIndex device) const {
  const int count = device_count_.load();
  TORCH_CHECK(count > 0, "Invalid device argument ", static_cast<int>(device), ": did you call init?");
  TORCH_CHECK(device >= 0 && device < count, "Invalid device argument ", static_cast<int>(device),
              ": allowed are 0 to ", count - 1, ", the devices that CUDA_VISIBLE_DEVICES leaves");
}

// ---- Blocks

namespace {
Allocator* the_allocator = nullptr;

// Tensors call it from their destructors, where nothing may be thrown.
void delete_block(void* pointer) {
  try {
    the_allocator->raw_delete(pointer);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "spillway: free: %s\n", error.what());
  }
}

// A stream that another library made may end without a word. PyTorch's number for it is its handle, which is
// even; those of streams that PyTorch made, which never end, are odd.
cudaStream_t current_stream(DeviceIndex device) {
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
  if (stream.id() == 0) return nullptr;  // the default stream
  if ((stream.id() & 1) == 0) [[unlikely]]
    check(spw_stream_ends_unseen(device, stream.stream()));
  return stream.stream();
}
}  // namespace

void* Allocator::serve(size_t bytes, DeviceIndex device, cudaStream_t stream) {
  if (bytes == 0) return nullptr;
  void* pointer = nullptr;
  const spw_status status = spw_alloc(bytes, device, stream, &pointer);
  if (status == SPW_ERROR_OUT_OF_MEMORY) [[unlikely]]
    out_of_memory(bytes, device, stream, spw_last_error());
  if (status != SPW_OK) [[unlikely]]
    check(status);
  if (history_.listens()) [[unlikely]] {
    History::Block block{device, pointer, bytes, stream, {0, 0}};
    find_owner(block);
    history_.allocated(block, history_.gather(RecordContext::STATE));
  }
  trace_allocation(pointer);
  if (c10::memoryProfilingEnabled()) [[unlikely]] {
    const spw_stats stats = stats_of(device);
    c10::reportMemoryUsageToProfiler(
        pointer, static_cast<int64_t>(bytes), static_cast<size_t>(stats.allocated_bytes.all.current),
        static_cast<size_t>(stats.reserved_bytes.all.current), c10::Device(c10::kCUDA, device));
  }
  return pointer;
}

void Allocator::out_of_memory(size_t bytes, DeviceIndex device, cudaStream_t stream,
                              const std::string& report) {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  (void)spw_memory_info(device, &free_bytes, &total_bytes);
  const spw_stats stats = stats_of(device);
  if (history_.listens()) {
    constexpr size_t kLineBytes = 512;
    const size_t block_bytes = (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
    const History::Context context = history_.gather(RecordContext::STATE);
    history_.look_at_segments(device, context);
    const History::Block request{device, nullptr, block_bytes, stream, open_pool(device, stream)};
    history_.out_of_memory(request, free_bytes, context);
  }
  c10::reportOutOfMemoryToProfiler(
      static_cast<int64_t>(bytes), static_cast<size_t>(stats.allocated_bytes.all.current),
      static_cast<size_t>(stats.reserved_bytes.all.current), c10::Device(c10::kCUDA, device));
  std::vector<caching::OutOfMemoryObserver> observers;
  {
    const std::lock_guard lock(observers_mutex_);
    observers = oom_observers_;
  }
  for (const auto& observer : observers) {
    observer(device, bytes, static_cast<size_t>(total_bytes), static_cast<size_t>(free_bytes));
  }
  TORCH_CHECK_WITH(OutOfMemoryError, false, report);
}

void* Allocator::raw_alloc(size_t bytes) {
  if (bytes == 0) return nullptr;
  const DeviceIndex device = current_device();
  if (!isEnabled()) [[unlikely]]
    return raw_alloc_uncached(bytes, device);
  return serve(bytes, device, current_stream(device));
}

void* Allocator::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return nullptr;
  const DeviceIndex device = current_device();
  if (!isEnabled()) [[unlikely]]
    return raw_alloc_uncached(bytes, device);
  return serve(bytes, device, stream);
}

c10::DataPtr Allocator::allocate(size_t bytes) {
  constexpr size_t kExbibyte = size_t{1} << 60;
  TORCH_CHECK_WITH(OutOfMemoryError, bytes < kExbibyte,
                   "CUDA out of memory. Tried to allocate more than 1EB memory.");
  const DeviceIndex device = current_device();
  const c10::Device place(c10::DeviceType::CUDA, device);
  if (!isEnabled()) {
    void* pointer = bytes == 0 ? nullptr : allocate_uncached(bytes, device);
    return {pointer, pointer, &delete_uncached, place};
  }
  void* pointer = bytes == 0 ? nullptr : serve(bytes, device, current_stream(device));
  return {pointer, pointer, &delete_block, place};
}

void* Allocator::allocate_uncached(size_t bytes, DeviceIndex device) {
  void* pointer = nullptr;
  cudaError_t error = cudaMalloc(&pointer, bytes);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    // What is cached here may be what the driver lacks.
    (void)spw_trim(device);
    error = cudaMalloc(&pointer, bytes);
  }
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    out_of_memory(bytes, device, current_stream(device),
                  "CUDA out of memory: the driver has no " + std::to_string(bytes) + " bytes on device " +
                      std::to_string(device) + ", without the cache");
  }
  C10_CUDA_CHECK(error);
  trace_allocation(pointer);
  return pointer;
}

void* Allocator::raw_alloc_uncached(size_t bytes, DeviceIndex device) {
  void* pointer = allocate_uncached(bytes, device);
  const std::lock_guard lock(uncached_mutex_);
  uncached_.insert(pointer);
  uncached_count_ = uncached_.size();
  return pointer;
}

bool Allocator::forget_uncached(void* pointer) {
  const std::lock_guard lock(uncached_mutex_);
  const bool was_there = uncached_.erase(pointer) > 0;
  uncached_count_ = uncached_.size();
  return was_there;
}

c10::DeleterFnPtr Allocator::raw_deleter() const {
  return isEnabled() ? &delete_block : &delete_uncached;
}

void Allocator::raw_delete(void* pointer) {
  if (pointer == nullptr) return;
  if (uncached_count_.load(std::memory_order_relaxed) > 0 && forget_uncached(pointer)) [[unlikely]] {
    delete_uncached(pointer);
    return;
  }
  spw_block block{};
  int device = 0;
  const bool known = (history_.listens() || c10::memoryProfilingEnabled()) &&
                     spw_find_block(pointer, &block, &device) == SPW_OK;
  const auto index = static_cast<DeviceIndex>(device);
  if (known && history_.listens()) {
    History::Block freed{index, pointer, block.requested_bytes, nullptr, {0, 0}};
    find_owner(freed);
    history_.free_requested(freed, history_.gather(RecordContext::ALL));
  }
  trace_free(pointer);
  check(spw_free(pointer));
  if (known && history_.listens()) history_.complete_frees();
  if (known && c10::memoryProfilingEnabled()) {
    const spw_stats stats = stats_of(index);
    c10::reportMemoryUsageToProfiler(pointer, -static_cast<int64_t>(block.requested_bytes),
                                     static_cast<size_t>(stats.allocated_bytes.all.current),
                                     static_cast<size_t>(stats.reserved_bytes.all.current),
                                     c10::Device(c10::kCUDA, index));
  }
}

void Allocator::recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) {
  // Memory of another allocator, as of another process, is not ours to keep.
  if (!pointer.get() || pointer.get_deleter() != &delete_block) return;
  if (history_.listens()) history_.used_on_stream(pointer.get());
  check(spw_record_stream(pointer.get(), stream.stream()));
}

void* Allocator::getBaseAllocation(void* pointer, size_t* bytes) {
  spw_block block{};
  int device = 0;
  check(spw_find_block(pointer, &block, &device));
  if (bytes != nullptr) *bytes = block.bytes;
  return reinterpret_cast<void*>(block.address);
}

// ---- Limits and what is free

void Allocator::emptyCache(MempoolId_t pool) {
  // Else of a pool that PyTorch has released: a MemPool was deleted.
  const bool is_of_all = pool == MempoolId_t{0, 0};
  for (int device = 0; device < device_count_.load(); ++device) {
    const spw_status status = is_of_all ? spw_torch_trim(device) : spw_pool_trim(device, abi(pool));
    // While a graph is being captured nothing can be given back, and nobody is to be told.
    if (status != SPW_ERROR_INVALID_STATE) check(status);
  }
  if (!history_.listens()) return;
  history_.complete_frees();
  look_at_segments();
}

namespace {
constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

uint64_t limit_of(double fraction, uint64_t total_bytes) {
  return fraction >= 1 ? kUnlimited : static_cast<uint64_t>(fraction * static_cast<double>(total_bytes));
}
}  // namespace

// This is of the limit in force, wherever it comes from.
double Allocator::getMemoryFraction(DeviceIndex device) {
  check_device(device);
  need_context(device);
  uint64_t total_bytes = 0;
  uint64_t limit = 0;
  check(spw_memory_info(device, nullptr, &total_bytes));
  check(spw_get_limit(device, &limit));
  const double chosen = fractions_[static_cast<size_t>(device)].load();
  if (limit == limit_of(chosen, total_bytes)) return chosen;
  constexpr double kDigits = 1e6;
  const double fraction = static_cast<double>(limit) / static_cast<double>(total_bytes);
  return std::min(1.0, std::round(fraction * kDigits) / kDigits);
}

void Allocator::setMemoryFraction(double fraction, DeviceIndex device) {
  check_device(device);
  TORCH_CHECK(fraction >= 0 && fraction <= 1, "invalid fraction:", fraction, ". Please set within [0, 1].");
  need_context(device);
  uint64_t total_bytes = 0;
  check(spw_memory_info(device, nullptr, &total_bytes));
  check(spw_set_limit(device, limit_of(fraction, total_bytes)));
  fractions_[static_cast<size_t>(device)] = fraction;
}

// What is cached counts, since views join it with what the driver has left.
void Allocator::cacheInfo(DeviceIndex device, size_t* largest_block) {
  uint64_t free_bytes = 0;
  check(spw_memory_info(device, &free_bytes, nullptr));
  *largest_block = std::max<size_t>(*largest_block, free_bytes);
}

std::pair<size_t, size_t> Allocator::getMemoryInfo(DeviceIndex device) {
  need_context(device);
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  check(spw_untaken_memory_info(device, &free_bytes, &total_bytes));
  return {free_bytes, total_bytes};
}

std::vector<SegmentSize> Allocator::getExpandableSegmentSizes(DeviceIndex device) {
  std::vector<SegmentSize> sizes;
  walk(device, [&](const spw_segment& segment) {
    const auto same = std::find_if(sizes.begin(), sizes.end(),
                                   [&](const auto& size) { return size.stream == segment.stream; });
    if (same != sizes.end()) {
      same->total_size += segment.total_bytes;
    } else {
      sizes.emplace_back(segment.stream, false, segment.total_bytes);
    }
  });
  return sizes;
}

// ---- Counters

namespace {
void add_pool_bytes(DeviceIndex device, caching::DeviceStats& stats) {
  const spw_pool_visitor add = [](const spw_pool_id* id, const spw_stat* bytes, void* context) {
    set_pool_bytes(*static_cast<caching::DeviceStats*>(context), {id->first, id->second}, to_torch(*bytes));
    return 0;
  };
  check(spw_walk_pools(device, add, &stats));
}
}  // namespace

caching::DeviceStats Allocator::getDeviceStats(DeviceIndex device) {
  check_device(device);
  const spw_stats stats = stats_of(device);
  caching::DeviceStats out;
  out.allocation = to_torch(stats.allocation);
  out.segment = to_torch(stats.segment);
  out.active = to_torch(stats.active);
  out.inactive_split = to_torch(stats.inactive_split);
  out.allocated_bytes = to_torch(stats.allocated_bytes);
  out.reserved_bytes = to_torch(stats.reserved_bytes);
  out.active_bytes = to_torch(stats.active_bytes);
  out.inactive_split_bytes = to_torch(stats.inactive_split_bytes);
  out.requested_bytes = to_torch(stats.requested_bytes);
  out.num_alloc_retries = stats.num_alloc_retries;
  out.num_ooms = stats.num_ooms;
  out.oversize_allocations = to_torch(stats.oversize_allocations);
  out.oversize_segments = to_torch(stats.oversize_segments);
  out.num_sync_all_streams = stats.num_sync_all_streams;
  out.num_device_alloc = stats.num_device_alloc;
  out.num_device_free = stats.num_device_free;
  out.max_split_size = stats.max_split_size;
  if constexpr (kCountsPools) add_pool_bytes(device, out);
  return out;
}

void Allocator::resetAccumulatedStats(DeviceIndex device) {
  check_device(device);
  check(spw_stats_reset_accumulated(device));
}

void Allocator::resetPeakStats(DeviceIndex device) {
  check_device(device);
  check(spw_stats_reset_peaks(device));
}

// ---- History

void Allocator::look_at_segments() {
  if (!history_.is_enabled()) return;
  const History::Context context = history_.gather(RecordContext::ALL);
  for (int device = 0; device < device_count_.load(); ++device) {
    history_.look_at_segments(static_cast<DeviceIndex>(device), context);
  }
}

caching::SnapshotInfo Allocator::snapshot(MempoolId_t pool, bool include_traces) {
  caching::SnapshotInfo out;
  const int devices = device_count_.load();
  history_.complete_frees();
  look_at_segments();
  for (int device = 0; device < devices; ++device) {
    const auto index = static_cast<DeviceIndex>(device);
    size_t active_bytes = 0;
    walk(index, [&](const spw_segment& segment) {
      const MempoolId_t id{segment.pool.first, segment.pool.second};
      if (pool != MempoolId_t{0, 0} && id != pool) return;
      active_bytes += segment.active_bytes;
      recording::SegmentInfo info;
      info.device = index;
      info.address = segment.address;
      info.total_size = segment.total_bytes;
      info.requested_size = segment.requested_bytes;
      info.allocated_size = segment.allocated_bytes;
      info.active_size = segment.active_bytes;
      info.stream = segment.stream;
      info.is_large = true;
      info.is_expandable = false;
      info.owner_private_pool_id = id;
      info.context_when_allocated = history_.context_of_segment(index, segment.address);
      for (uint64_t i = 0; i < segment.block_count; ++i) {
        const spw_block& block = segment.blocks[i];
        recording::BlockInfo row;
        row.size = block.bytes;
        row.requested_size = block.requested_bytes;
        row.allocated = block.state == SPW_BLOCK_ALLOCATED;
        row.active = block.state != SPW_BLOCK_INACTIVE;
        row.context_when_allocated = history_.context_of(reinterpret_cast<const void*>(block.address));
        info.blocks.push_back(std::move(row));
      }
      out.segments.push_back(std::move(info));
    });
    out.device_traces.push_back(include_traces ? history_.entries(index)
                                               : std::vector<recording::TraceEntry>());
    // Part of the next one's events.
    if (history_.is_enabled()) history_.snapshot_taken(index, active_bytes);
  }
  std::sort(out.segments.begin(), out.segments.end(),
            [](const auto& a, const auto& b) { return a.address < b.address; });
  out.external_annotations = history_.annotations();
  out.config_metadata.garbage_collection_threshold = 0;
  out.config_metadata.max_split_size = std::numeric_limits<size_t>::max();
  out.config_metadata.pinned_num_register_threads = 1;
  out.config_metadata.expandable_segments = false;
  out.config_metadata.release_lock_on_malloc = false;
  out.config_metadata.pinned_use_host_register = false;
  out.config_metadata.graph_capture_record_stream_reuse = false;
  set_defaults_of_release(out.config_metadata);
  size_t needed = 0;
  (void)spw_conf_get(nullptr, nullptr, 0, &needed);
  std::string settings(needed, '\0');
  if (needed > 0 && spw_conf_get(nullptr, settings.data(), needed, nullptr) == SPW_OK)
    settings.resize(needed - 1);
  out.config_metadata.last_allocator_settings = settings;
  return out;
}

void Allocator::recordHistory(bool enabled, caching::CreateContextFn gather, size_t most_entries,
                              caching::RecordContext when, bool clear,
                              const std::vector<std::string>& skipped_actions) {
  history_.configure(enabled, device_count_.load(), gather, most_entries, when, clear, skipped_actions);
}

void Allocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>>& annotation) {
  history_.annotate(current_device(), annotation);
}

void Allocator::annotate_block(const void* pointer, const std::string& metadata) {
  if (!history_.is_enabled()) return;
  spw_block found{};
  int device = 0;
  if (spw_find_block(pointer, &found, &device) != SPW_OK) return;
  History::Block block{
      static_cast<DeviceIndex>(device), const_cast<void*>(pointer), found.requested_bytes, nullptr, {0, 0}};
  find_owner(block);
  history_.annotated(block, metadata, history_.gather(RecordContext::ALLOC));
}

void Allocator::attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) {
  const std::lock_guard lock(observers_mutex_);
  oom_observers_.push_back(std::move(observer));
}

void Allocator::attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) {
  history_.attach(std::move(tracker));
}

// ---- Peers

cudaError_t Allocator::memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                   cudaStream_t stream, bool are_peers) {
  if (are_peers || to_device == from_device) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  // Mapped memory is out of the plain form's reach between devices that are no peers.
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

void Allocator::enablePeerAccess(DeviceIndex device, DeviceIndex peer) {
  need_context(device);
  need_context(peer);
  // For memory that is not the cache's: of cudaMalloc, or of a pool's own allocator.
  const c10::cuda::CUDAGuard guard(device);
  const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();
  } else {
    C10_CUDA_CHECK(error);
  }
  check(spw_enable_peer(peer, device));
}

}  // namespace spillway_torch

// Makes Spillway the allocator of this process. Null on success, else what stands in the way, valid until the
// next call.
extern "C" __attribute__((visibility("default"))) const char* spillway_torch_install() {
  static std::string problem;
  // PyTorch's own table of allocators wants it to live for ever.
  static auto* const kAllocator = new std::shared_ptr<spillway_torch::Allocator>();
  try {
    if (*kAllocator != nullptr) return nullptr;
    auto made = std::make_shared<spillway_torch::Allocator>();
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(made);
    *kAllocator = made;
    spillway_torch::the_allocator = made.get();
    // What asks for the allocator by device type (torch.accelerator) finds the same.
    c10::SetAllocator(c10::kCUDA, made.get(), 1);
    return nullptr;
  } catch (const std::exception& error) {
    problem = error.what();
    return problem.c_str();
  }
}
