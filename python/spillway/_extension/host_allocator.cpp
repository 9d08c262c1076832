#include "host_allocator.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <spillway/pinned.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "calls.h"

namespace spillway_torch {
namespace {

HostAllocator* the_host_allocator = nullptr;

// Tensors call it from their destructors, where nothing may be thrown.
void delete_pinned(void* pointer) {
  try {
    the_host_allocator->free(pointer);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "spillway: free of pinned memory: %s\n", error.what());
  }
}

}  // namespace

// ---- Blocks

at::DataPtr HostAllocator::allocate(size_t bytes) {
  void* pointer = nullptr;
  if (bytes > 0) {
    c10::DeviceIndex device = c10::cuda::current_device();
    spw_status status = spw_pinned_alloc(bytes, device, &pointer);
    if (status == SPW_ERROR_INVALID_STATE) {
      // Any context serves. A thread that pins need not have chosen the device that the program is on.
      device = c10::cuda::getDeviceIndexWithPrimaryContext().value_or(device);
      need_context(device);
      status = spw_pinned_alloc(bytes, device, &pointer);
    }
    if (status == SPW_ERROR_OUT_OF_MEMORY) {
      free_released();
      status = spw_pinned_alloc(bytes, device, &pointer);
    }
    check(status);
    if (open_count_.load(std::memory_order_relaxed) > 0) note_pool(pointer);
  }
  return {pointer, pointer, &delete_pinned, c10::Device(c10::DeviceType::CPU)};
}

at::DeleterFnPtr HostAllocator::raw_deleter() const {
  return &delete_pinned;
}

void HostAllocator::copy_data(void* to, const void* from, std::size_t bytes) const {
  std::memcpy(to, from, bytes);
}

void HostAllocator::free(void* pointer) {
  if (pool_block_count_.load(std::memory_order_relaxed) > 0 && keep_for_pool(pointer)) return;
  check(spw_pinned_free(pointer));
}

bool HostAllocator::record_event(void* pointer, void*, c10::Stream stream) {
  const c10::cuda::CUDAStream used(stream);
  const spw_status status = spw_pinned_record_stream(pointer, used.device_index(), used.stream());
  if (status == SPW_ERROR_INVALID_POINTER) return false;  // pinned by others
  check(status);
  return true;
}

void HostAllocator::empty_cache() {
  free_released();
  check(spw_pinned_trim());
}

// ---- Counters

at::HostStats HostAllocator::get_stats() {
  spw_pinned_stats stats{};
  stats.size = sizeof stats;
  check(spw_pinned_stats_get(&stats));
  at::HostStats out;
  out.active_requests = to_torch(stats.blocks);
  out.active_bytes = to_torch(stats.active_bytes);
  out.allocations = to_torch(stats.chunks);
  out.allocated_bytes = to_torch(stats.reserved_bytes);
  out.host_alloc_time = to_torch(stats.pin);
  out.host_free_time = to_torch(stats.unpin);
  out.num_host_alloc = stats.chunks.allocated;
  out.num_host_free = stats.chunks.freed;
  out.bucket_allocation.assign(std::begin(stats.chunks_by_size), std::end(stats.chunks_by_size));
  return out;
}

void HostAllocator::reset_accumulated_stats() {
  check(spw_pinned_stats_reset_accumulated());
}

void HostAllocator::reset_peak_stats() {
  check(spw_pinned_stats_reset_peaks());
}

// ---- Graphs

void HostAllocator::begin_allocate_to_pool(c10::MempoolId_t id, std::function<bool(c10::Stream)> filter) {
  const std::lock_guard lock(mutex_);
  const bool is_open =
      std::any_of(open_.begin(), open_.end(), [&](const auto& pool) { return pool.first == id; });
  TORCH_CHECK(!is_open, "begin_allocate_to_pool: the pool is open already");
  ++pools_[id].claims;
  open_.emplace_back(id, std::move(filter));
  open_count_.store(open_.size());
}

void HostAllocator::end_allocate_to_pool(c10::MempoolId_t id) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(open_.begin(), open_.end(), [&](const auto& pool) { return pool.first == id; });
  TORCH_CHECK(found != open_.end(), "end_allocate_to_pool: the pool is not open");
  open_.erase(found);
  open_count_.store(open_.size());
}

void HostAllocator::release_pool(c10::MempoolId_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = pools_.find(id);
  if (found == pools_.end() || --found->second.claims > 0) return;
  released_.insert(released_.end(), found->second.freed.begin(), found->second.freed.end());
  pools_.erase(found);
}

void HostAllocator::note_pool(void* pointer) {
  const c10::Stream stream = c10::cuda::getCurrentCUDAStream().unwrap();
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(open_.begin(), open_.end(), [&](const auto& pool) { return pool.second(stream); });
  if (found == open_.end()) return;
  pool_blocks_[pointer] = found->first;
  pool_block_count_.store(pool_blocks_.size());
}

bool HostAllocator::keep_for_pool(void* pointer) {
  const std::lock_guard lock(mutex_);
  const auto found = pool_blocks_.find(pointer);
  if (found == pool_blocks_.end()) return false;
  const auto pool = pools_.find(found->second);
  (pool == pools_.end() ? released_ : pool->second.freed).push_back(pointer);
  pool_blocks_.erase(found);
  pool_block_count_.store(pool_blocks_.size());
  return true;
}

void HostAllocator::free_released() {
  std::vector<void*> released;
  {
    const std::lock_guard lock(mutex_);
    if (!open_.empty()) return;  // a wait for the device would end the capture
    released.swap(released_);
  }
  if (released.empty()) return;
  for (c10::DeviceIndex device = 0; device < c10::cuda::device_count(); ++device) {
    if (!c10::cuda::hasPrimaryContext(device)) continue;
    const c10::cuda::CUDAGuard guard(device);
    C10_CUDA_CHECK(cudaDeviceSynchronize());
  }
  for (void* pointer : released) check(spw_pinned_free(pointer));
}

}  // namespace spillway_torch

// Makes Spillway the allocator of pinned memory in this process. Null on success, else what stands in the
// way, valid until the next call.
extern "C" __attribute__((visibility("default"))) const char* spillway_torch_install_pinned() {
  static std::string problem;
  // PyTorch keeps a plain pointer, and tensors live to the very end.
  static auto* const kAllocator = new spillway_torch::HostAllocator();
  try {
    spillway_torch::the_host_allocator = kAllocator;
    at::setHostAllocator(at::kCUDA, kAllocator, 1);
    return nullptr;
  } catch (const std::exception& error) {
    problem = error.what();
    return problem.c_str();
  }
}
