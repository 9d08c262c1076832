#include "host_allocator.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <spillway/pinned.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "calls.h"

namespace spillway_torch {
namespace {

HostAllocator* the_host_allocator = nullptr;

// A free block of a pool serves a request of at least this part of its size. PyTorch's own rounds both up to
// a power of two, so that its blocks are at most so much larger.
constexpr size_t kMostWaste = 2;

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
  const bool pools_are_open = bytes > 0 && open_count_.load(std::memory_order_relaxed) > 0;
  if (pools_are_open) pointer = take_of_pool(bytes);
  if (bytes > 0 && pointer == nullptr) {
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
    if (pools_are_open) note_pool(pointer, bytes);
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
  if (pool_block_count_.load(std::memory_order_relaxed) > 0) note_use(pointer);
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
  set_counts(out, {.blocks = to_torch(stats.blocks),
                   .block_bytes = to_torch(stats.active_bytes),
                   .chunks = to_torch(stats.chunks),
                   .chunk_bytes = to_torch(stats.reserved_bytes),
                   .chunks_by_size = {std::begin(stats.chunks_by_size), std::end(stats.chunks_by_size)}});
  out.host_alloc_time = to_torch(stats.pin);
  out.host_free_time = to_torch(stats.unpin);
  out.num_host_alloc = stats.chunks.allocated;
  out.num_host_free = stats.chunks.freed;
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
  const Pool& pool = found->second;
  released_.insert(released_.end(), pool.freed.begin(), pool.freed.end());
  for (const auto& [bytes, pointer] : pool.free_unused) released_.push_back(pointer);
  pools_.erase(found);
}

const c10::MempoolId_t* HostAllocator::open_pool() const {
  const c10::Stream stream = c10::cuda::getCurrentCUDAStream().unwrap();
  const auto found =
      std::find_if(open_.begin(), open_.end(), [&](const auto& pool) { return pool.second(stream); });
  return found == open_.end() ? nullptr : &found->first;
}

void HostAllocator::add_pool_block(void* pointer, const PoolBlock& block) {
  pool_blocks_[reinterpret_cast<uintptr_t>(pointer)] = block;
  pool_block_count_.store(pool_blocks_.size());
}

void* HostAllocator::take_of_pool(size_t bytes) {
  const std::lock_guard lock(mutex_);
  const c10::MempoolId_t* id = open_pool();
  if (id == nullptr) return nullptr;
  auto& unused = pools_[*id].free_unused;
  const auto found = unused.lower_bound(bytes);
  if (found == unused.end() || found->first / kMostWaste > bytes) return nullptr;
  const auto [block_bytes, pointer] = *found;
  unused.erase(found);
  add_pool_block(pointer, {block_bytes, *id});
  return pointer;
}

void HostAllocator::note_pool(void* pointer, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const c10::MempoolId_t* id = open_pool();
  if (id != nullptr) add_pool_block(pointer, {bytes, *id});
}

void HostAllocator::note_use(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const std::lock_guard lock(mutex_);
  const auto after = pool_blocks_.upper_bound(address);
  if (after == pool_blocks_.begin()) return;
  const auto around = std::prev(after);
  if (address - around->first < around->second.bytes) around->second.is_used = true;
}

bool HostAllocator::keep_for_pool(void* pointer) {
  const std::lock_guard lock(mutex_);
  const auto found = pool_blocks_.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == pool_blocks_.end()) return false;
  const PoolBlock block = found->second;
  pool_blocks_.erase(found);
  pool_block_count_.store(pool_blocks_.size());
  const auto pool = pools_.find(block.pool);
  if (pool == pools_.end()) {
    released_.push_back(pointer);
  } else if (block.is_used) {
    pool->second.freed.push_back(pointer);
  } else {
    pool->second.free_unused.emplace(block.bytes, pointer);
  }
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
