// What differs between the releases of PyTorch that the extension compiles against, all of it.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>
#include <torch/headeronly/version.h>

#include <limits>
#include <memory>
#include <string>

#define SPILLWAY_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace spillway_torch {

namespace caching = c10::cuda::CUDACachingAllocator;

// PyTorch's interface, with what releases after 2.11 ask beyond it expressed in what every release has.
class AllocatorOfRelease : public torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator {
 public:
  using CUDAPluggableAllocator::CUDAPluggableAllocator;

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
#if SPILLWAY_TORCH_AT_LEAST(2, 15)
 public:
  void record_history(bool enabled, c10::CachingDeviceAllocator::CreateContextFn, size_t,
                      c10::CachingDeviceAllocator::RecordContext, bool) override {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !enabled, "Spillway's pinned memory keeps no history: record_pinned_host_memory is not served");
  }
#endif
};

#if SPILLWAY_TORCH_AT_LEAST(2, 14)
inline constexpr auto kAnnotateAction = c10::CachingDeviceAllocator::TraceEntry::ANNOTATE;
#else  // never recorded: nobody asks
inline constexpr auto kAnnotateAction = c10::CachingDeviceAllocator::TraceEntry::SNAPSHOT;
#endif

// Whether statistics have what each private pool holds. That is not divided into small and large.
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
