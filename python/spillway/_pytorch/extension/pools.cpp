// Pools of PyTorch: those of graphs, and torch.cuda.MemPool.
#include "allocator.h"
#include "calls.h"
#include "segment_source.h"

namespace spillway_torch {
namespace {

int call_filter(spw_stream stream, void* context) {
  const auto& filter = *static_cast<const std::function<bool(cudaStream_t)>*>(context);
  return filter(stream) ? 1 : 0;
}

}  // namespace

void Allocator::beginAllocateToPool(DeviceIndex device, MempoolId_t id,
                                    std::function<bool(cudaStream_t)> filter) {
  check_device(device);
  need_context(device);
  auto kept = std::make_unique<Filter>(std::move(filter));
  const std::lock_guard lock(pools_mutex_);
  TORCH_CHECK(open_.count({device, id}) == 0, "beginAllocateToPool: already recording to mempool_id");
  check(spw_pool_begin(device, abi(id), &call_filter, kept.get()));
  open_[{device, id}] = std::move(kept);
}

void Allocator::endAllocateToPool(DeviceIndex device, MempoolId_t id) {
  const std::lock_guard lock(pools_mutex_);
  const auto found = open_.find({device, id});
  TORCH_CHECK(found != open_.end(), "endAllocatePool: not currently recording to mempool_id");
  check(spw_pool_end(device, abi(id)));
  open_.erase(found);  // no thread is inside the filter any more
}

void Allocator::releasePool(DeviceIndex device, MempoolId_t id) {
  check(spw_pool_release(device, abi(id)));
}

void Allocator::createOrIncrefPool(DeviceIndex device, MempoolId_t id,
                                   std::shared_ptr<caching::CUDAAllocator> allocator) {
  check_device(device);
  need_context(device);
  check(spw_pool_retain(device, abi(id)));
  if (allocator == nullptr || allocator.get() == this) return;
  try {
    take_segments_from(device, id, std::move(allocator));
  } catch (...) {
    (void)spw_pool_release(device, abi(id));
    throw;
  }
}

int Allocator::getPoolUseCount(DeviceIndex device, MempoolId_t id) {
  uint64_t claims = 0;
  check(spw_pool_claims(device, abi(id), &claims));
  return static_cast<int>(claims);
}

void Allocator::setUseOnOOM(DeviceIndex device, MempoolId_t id, bool use_on_oom) {
  check(spw_pool_lend(device, abi(id), use_on_oom ? 1 : 0));
}

void Allocator::setNoSplit(DeviceIndex device, MempoolId_t id) {
  check(spw_pool_set_no_split(device, abi(id)));
}

bool Allocator::checkPoolLiveAllocations(DeviceIndex device, MempoolId_t id,
                                         const std::unordered_set<void*>& expected) {
  size_t found = 0;
  bool all_expected = true;
  walk(device, [&](const spw_segment& segment) {
    if (MempoolId_t{segment.pool.first, segment.pool.second} != id) return;
    for (uint64_t i = 0; i < segment.block_count; ++i) {
      if (segment.blocks[i].state != SPW_BLOCK_ALLOCATED) continue;
      ++found;
      all_expected = all_expected && expected.count(reinterpret_cast<void*>(segment.blocks[i].address)) > 0;
    }
  });
  return all_expected && found == expected.size();
}

MempoolId_t Allocator::open_pool(DeviceIndex device, cudaStream_t stream) {
  const std::lock_guard lock(pools_mutex_);
  for (const auto& [key, filter] : open_) {
    if (key.first == device && (*filter)(stream)) return key.second;
  }
  return {0, 0};
}

}  // namespace spillway_torch
