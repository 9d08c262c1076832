// Knows all that differs between the releases of PyTorch that the extension compiles against.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>
#if __has_include(<torch/headeronly/version.h>)
#include <torch/headeronly/version.h>
#else
#include <torch/csrc/api/include/torch/version.h>
#endif

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#define SPILLWAY_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace spillway_torch {

namespace caching = c10::cuda::CUDACachingAllocator;
#if SPILLWAY_TORCH_AT_LEAST(2, 11)
namespace recording = c10::CachingDeviceAllocator;  // what a history is made of
#else
namespace recording = c10::cuda::CUDACachingAllocator;
#endif

// The bytes of a stream's segments.
#if SPILLWAY_TORCH_AT_LEAST(2, 10)
using SegmentSize = caching::StreamSegmentSize;
#else
struct SegmentSize {
  cudaStream_t stream;
  bool is_small_pool;
  size_t total_size;
};
#endif

// PyTorch's interface of 2.11: what other releases ask, or ask otherwise, is expressed in that.
class AllocatorOfRelease : public torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator {
 public:
  using CUDAPluggableAllocator::CUDAPluggableAllocator;

#if !SPILLWAY_TORCH_AT_LEAST(2, 11)
  caching::SnapshotInfo snapshot(c10::MempoolId_t pool) override {
    return snapshot(pool, true);
  }
  void recordHistory(bool enabled, recording::CreateContextFn gather, size_t most_entries,
                     recording::RecordContext when, bool clear) override {
    recordHistory(enabled, gather, most_entries, when, clear, {});
  }
  void createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t id,
                          caching::CUDAAllocator* allocator) override {
    createOrIncrefPool(device, id,
                       std::shared_ptr<caching::CUDAAllocator>(std::shared_ptr<void>(), allocator));
  }
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t id) override {
    setUseOnOOM(device, id, true);
  }

  virtual caching::SnapshotInfo snapshot(c10::MempoolId_t pool, bool include_traces) = 0;
  virtual void recordHistory(bool enabled, recording::CreateContextFn gather, size_t most_entries,
                             recording::RecordContext when, bool clear,
                             const std::vector<std::string>& skipped_actions) = 0;
  virtual void createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t id,
                                  std::shared_ptr<caching::CUDAAllocator> allocator) = 0;
  virtual void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t id, bool use_on_oom) = 0;
#endif
#if !SPILLWAY_TORCH_AT_LEAST(2, 10)  // nobody asks
  virtual std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) = 0;
  virtual std::vector<SegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) = 0;
  virtual void setUserMetadata(const std::string& metadata) = 0;
  virtual std::string getUserMetadata() = 0;
  virtual void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t id) = 0;
#endif
#if SPILLWAY_TORCH_AT_LEAST(2, 12)
  // Nothing is rejected before it was tried, so there is nothing to observe.
  void attachOomRejectionObserver(caching::OomRejectionObserver) override {}
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* pointer) override {
    return context_of(pointer);
  }
#endif
#if SPILLWAY_TORCH_AT_LEAST(2, 14)
  bool supportsUserMetadata() override {
    return true;
  }
  void annotateMemory(const void* pointer, const std::string& metadata) override {
    annotate_block(pointer, metadata);
  }
#endif
#if SPILLWAY_TORCH_AT_LEAST(2, 15)
  c10::DataPtr allocateWithAddress(size_t, void*) override {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false,
        "Spillway chooses where a block lies, so _resize_with_addr_() (allocateWithAddress) is not served; "
        "memory of spillway.region() serves others between evict() and restore() and keeps its addresses");
  }
#endif

 protected:
  // The recorded stack of a live block; null where there is none.
  virtual std::shared_ptr<c10::GatheredContext> context_of(const void* pointer) = 0;
  virtual void annotate_block(const void* pointer, const std::string& metadata) = 0;
};

// The same of pinned memory.
class HostAllocatorOfRelease : public at::HostAllocator {
#if !SPILLWAY_TORCH_AT_LEAST(2, 11)  // pools of pinned memory: nobody asks for them
 public:
  virtual void begin_allocate_to_pool(c10::MempoolId_t id, std::function<bool(c10::Stream)> filter) = 0;
  virtual void end_allocate_to_pool(c10::MempoolId_t id) = 0;
  virtual void release_pool(c10::MempoolId_t id) = 0;
#endif
#if SPILLWAY_TORCH_AT_LEAST(2, 15)
 public:
  void record_history(bool enabled, recording::CreateContextFn, size_t, recording::RecordContext,
                      bool) override {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !enabled, "Spillway's pinned memory keeps no history: record_pinned_host_memory is not served");
  }
#endif
};

#if SPILLWAY_TORCH_AT_LEAST(2, 14)
inline constexpr auto kAnnotateAction = recording::TraceEntry::ANNOTATE;
#else  // never recorded: nobody asks
inline constexpr auto kAnnotateAction = recording::TraceEntry::SNAPSHOT;
#endif

// The action of that name among those that are recorded.
inline recording::TraceEntry::Action action_named([[maybe_unused]] const std::string& name) {
#if SPILLWAY_TORCH_AT_LEAST(2, 11)
  return recording::parseTraceEntryAction(name);
#else  // never skipped: nobody can ask
  return recording::TraceEntry::SNAPSHOT;
#endif
}

inline void set_metadata([[maybe_unused]] recording::TraceEntry& entry,
                         [[maybe_unused]] const std::string& metadata) {
#if SPILLWAY_TORCH_AT_LEAST(2, 10)
  entry.user_metadata_ = metadata;
#endif
}

// Counts those of pinned memory: blocks in use and chunks that were pinned, with the bytes of both.
struct HostCounts {
  c10::CachingAllocator::Stat blocks, block_bytes, chunks, chunk_bytes;
  std::vector<int64_t> chunks_by_size;
};
inline void set_counts(at::HostStats& stats, HostCounts counts) {
#if SPILLWAY_TORCH_AT_LEAST(2, 10)
  stats.active_requests = counts.blocks;
  stats.active_bytes = counts.block_bytes;
  stats.allocations = counts.chunks;
  stats.allocated_bytes = counts.chunk_bytes;
  stats.bucket_allocation = std::move(counts.chunks_by_size);
#else
  stats.allocation = counts.blocks;
  stats.allocated_bytes = counts.block_bytes;
  stats.segment = counts.chunks;
  stats.reserved_bytes = counts.chunk_bytes;
#endif
}

// Tells whether statistics have what each private pool holds. That is not divided into small and large.
inline constexpr bool kCountsPools = SPILLWAY_TORCH_AT_LEAST(2, 13);
inline void set_pool_bytes([[maybe_unused]] caching::DeviceStats& stats,
                           [[maybe_unused]] c10::MempoolId_t pool,
                           [[maybe_unused]] const c10::CachingAllocator::Stat& bytes) {
#if SPILLWAY_TORCH_AT_LEAST(2, 13)
  stats.reserved_bytes_by_private_pools[pool] = {bytes, {}, bytes};
#endif
}

// Settings of PyTorch's allocator that have no meaning here, at its defaults.
inline void set_defaults_of_release([[maybe_unused]] caching::AllocatorConfigInfo& settings) {
#if SPILLWAY_TORCH_AT_LEAST(2, 13)
  settings.max_round_threshold = std::numeric_limits<size_t>::max();
  settings.max_cached_size = std::numeric_limits<size_t>::max();
#endif
}

}  // namespace spillway_torch
