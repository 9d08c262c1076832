#include "allocator/open_pools.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "allocator/sources.h"
#include "driver/capture.h"

namespace spillway {
namespace {

thread_local int filters_inside = 0;  // calls of filters that this thread is in

// The pools whose filters this thread asks.
struct Asked {
  Asked() { ++filters_inside; }
  ~Asked() {
    --filters_inside;
    for (const std::shared_ptr<OpenPool>& pool : pools) pool->askers.fetch_sub(1, std::memory_order_release);
  }
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;

  std::vector<std::shared_ptr<OpenPool>> pools;
};

}  // namespace

bool OpenPools::contains(PoolId id) const {
  const Lock lock(mutex_);
  return std::any_of(pools_.begin(), pools_.end(), [&](const auto& pool) { return pool->id == id; });
}

std::shared_ptr<const OpenPool> OpenPools::serving(CUstream stream) {
  Asked asked;
  {
    const Lock lock(mutex_);
    asked.pools = pools_;
    for (const std::shared_ptr<OpenPool>& pool : asked.pools) {
      pool->askers.fetch_add(1, std::memory_order_relaxed);
    }
  }
  const auto accepts = [&](const std::shared_ptr<OpenPool>& pool) {
    if (pool->is_sourced && Sources::is_inside()) return false;
    return pool->filter == nullptr || pool->filter(stream);
  };
  const auto found = std::find_if(asked.pools.rbegin(), asked.pools.rend(), accepts);
  if (found == asked.pools.rend()) return nullptr;
  if ((*found)->use.load(std::memory_order_relaxed) == OpenPool::Use::kUnknown) note_use(**found, stream);
  return *found;
}

void OpenPools::note_use(OpenPool& pool, CUstream stream) {
  const OpenPool::Use use = use_of(pool, stream);
  const Lock lock(mutex_);
  const bool is_open =
      std::any_of(pools_.begin(), pools_.end(), [&](const auto& open) { return open.get() == &pool; });
  if (!is_open || pool.use != OpenPool::Use::kUnknown) return;
  pool.use = use;
  if (use == OpenPool::Use::kOther) for_capture_.fetch_sub(1, std::memory_order_release);
}

OpenPool::Use OpenPools::use_of(const OpenPool& pool, CUstream stream) const {
  // Without a filter every stream is accepted, before a capture and in it.
  if (pool.filter == nullptr) return OpenPool::Use::kCapture;
  // A thread that has not used the device yet has no context.
  const Driver& driver = *parts_.driver;
  const ScopedContext context(driver, parts_.context.get());
  if (!context.status().ok() || is_capturing(driver, stream)) return OpenPool::Use::kCapture;
  const RelaxedCapture relaxed(driver);
  CUstream idle = nullptr;
  if (driver.cuStreamCreate(&idle, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) return OpenPool::Use::kCapture;
  const bool is_accepted = pool.filter(idle);
  (void)driver.cuStreamDestroy(idle);
  return is_accepted ? OpenPool::Use::kOther : OpenPool::Use::kCapture;
}

void OpenPools::open(std::shared_ptr<OpenPool> pool) {
  const bool is_last = pool->is_last;
  pool->use = is_last ? OpenPool::Use::kOther : OpenPool::Use::kUnknown;
  const Lock lock(mutex_);
  const auto behind =
      std::find_if(pools_.begin(), pools_.end(), [](const auto& other) { return !other->is_last; });
  pools_.insert(is_last ? behind : pools_.end(), std::move(pool));
  count_.fetch_add(1, std::memory_order_release);
  if (!is_last) for_capture_.fetch_add(1, std::memory_order_release);
}

bool OpenPools::close(PoolId id) {
  std::shared_ptr<OpenPool> ended;
  {
    const Lock lock(mutex_);
    const auto found =
        std::find_if(pools_.begin(), pools_.end(), [&](const auto& pool) { return pool->id == id; });
    if (found == pools_.end()) return false;
    ended = std::move(*found);
    pools_.erase(found);
    count_.fetch_sub(1, std::memory_order_release);
    if (ended->use != OpenPool::Use::kOther) for_capture_.fetch_sub(1, std::memory_order_release);
  }
  // What the filter uses is the program's again. Inside a filter, waiting for it would be waiting for
  // oneself.
  while (filters_inside == 0 && ended->askers.load(std::memory_order_acquire) != 0) {
    std::this_thread::yield();
  }
  return true;
}

void OpenPools::clear() {
  const Lock lock(mutex_);
  pools_.clear();
  count_.store(0, std::memory_order_release);
  for_capture_.store(0, std::memory_order_release);
}

}  // namespace spillway
