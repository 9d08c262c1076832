// Spillway as PyTorch's allocator of CUDA memory: everything that torch.cuda.memory asks of an allocator,
// answered from libspillway's C interface and from what is recorded here.
//
// Derives from CUDAPluggableAllocator, so what a later release adds to the interface has a default.
// Differences between releases of PyTorch are in release.h.
#pragma once

#include <spillway/spillway.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "history.h"
#include "release.h"

namespace spillway_torch {

using c10::DeviceIndex;
using c10::cuda::MempoolId_t;

class Allocator final : public AllocatorOfRelease {
 public:
  Allocator();

  void init(int device_count) override;
  bool initialized() override { return device_count_.load(std::memory_order_acquire) > 0; }
  std::string name() override { return "spillway"; }

  // Without the cache each block is an allocation of the driver's own, beside the counters.
  void enable(bool value) override { is_caching_.store(value); }
  bool isEnabled() const override { return is_caching_.load(); }

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void* raw_alloc(size_t bytes) override;
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override;
  void raw_delete(void* pointer) override;
  void recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) override;
  void* getBaseAllocation(void* pointer, size_t* bytes) override;

  void emptyCache(MempoolId_t pool) override;
  double getMemoryFraction(DeviceIndex device) override;
  void setMemoryFraction(double fraction, DeviceIndex device) override;
  void cacheInfo(DeviceIndex device, size_t* largest_block) override;
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override;
  std::vector<SegmentSize> getExpandableSegmentSizes(DeviceIndex device) override;

  caching::DeviceStats getDeviceStats(DeviceIndex device) override;
  void resetAccumulatedStats(DeviceIndex device) override;
  void resetPeakStats(DeviceIndex device) override;

  caching::SnapshotInfo snapshot(MempoolId_t pool, bool include_traces) override;
  bool isHistoryEnabled() override { return history_.is_enabled(); }
  void recordHistory(bool enabled, caching::CreateContextFn gather, size_t most_entries,
                     caching::RecordContext when, bool clear,
                     const std::vector<std::string>& skipped_actions) override;
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& annotation) override;
  void pushCompileContext(std::string& context) override { history_.push_compile_context(context); }
  void popCompileContext() override { history_.pop_compile_context(); }
  void setUserMetadata(const std::string& metadata) override { history_.set_user_metadata(metadata); }
  std::string getUserMetadata() override { return history_.user_metadata(); }
  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override;
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) override;

  void beginAllocateToPool(DeviceIndex device, MempoolId_t id,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(DeviceIndex device, MempoolId_t id) override;
  void releasePool(DeviceIndex device, MempoolId_t id) override;
  void createOrIncrefPool(DeviceIndex device, MempoolId_t id,
                          std::shared_ptr<caching::CUDAAllocator> allocator) override;
  int getPoolUseCount(DeviceIndex device, MempoolId_t id) override;
  void setUseOnOOM(DeviceIndex device, MempoolId_t id, bool use_on_oom) override;
  void setNoSplit(DeviceIndex device, MempoolId_t id) override;
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t id,
                                const std::unordered_set<void*>& expected) override;
  // pool_states.cpp.
  std::shared_ptr<caching::AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t id) override;
  caching::CheckpointDelta setCheckpointPoolState(DeviceIndex device,
                                                  std::shared_ptr<caching::AllocatorState> state) override;

  void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override;
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                          cudaStream_t stream, bool are_peers) override;

 protected:
  std::shared_ptr<c10::GatheredContext> context_of(const void* pointer) override {
    return history_.context_of(pointer);
  }
  void annotate_block(const void* pointer, const std::string& metadata) override;

  // ipc.cpp.
  caching::ShareableHandle shareIpcHandle(void* pointer) override;
  std::shared_ptr<void> getIpcDevPtr(std::string bytes) override;

 private:
  using PoolKey = std::pair<DeviceIndex, MempoolId_t>;
  using Filter = std::function<bool(cudaStream_t)>;

  void* serve(size_t bytes, DeviceIndex device, cudaStream_t stream);
  [[noreturn]] void out_of_memory(size_t bytes, DeviceIndex device, cudaStream_t stream,
                                  const std::string& report);
  void* allocate_uncached(size_t bytes, DeviceIndex device);
  void* raw_alloc_uncached(size_t bytes, DeviceIndex device);
  // Tells whether raw_alloc() took this from the driver; it is not remembered any longer.
  bool forget_uncached(void* pointer);
  // Lists those of every device, for the history.
  void look_at_segments();
  // The pool that is open for this stream; {0, 0} if there is none.
  MempoolId_t open_pool(DeviceIndex device, cudaStream_t stream);
  void check_device(DeviceIndex device) const;

  std::atomic<int> device_count_{0};
  std::atomic<bool> is_caching_;
  std::unique_ptr<std::atomic<double>[]> fractions_;
  History history_;

  std::mutex observers_mutex_;
  std::vector<caching::OutOfMemoryObserver> oom_observers_;

  std::mutex uncached_mutex_;
  std::unordered_set<void*> uncached_;  // blocks of raw_alloc(), whose raw_delete() may come at any time
  std::atomic<size_t> uncached_count_{0};

  std::mutex pools_mutex_;
  std::map<PoolKey, std::unique_ptr<Filter>> open_;
};

}  // namespace spillway_torch
