// Memory that Spillway serves: cuMemAlloc and cuMemFree, and the stream-ordered calls.
#include <array>
#include <atomic>
#include <unordered_map>

#include "abi/block_origins.h"
#include "abi/preload/block_ids.h"
#include "abi/preload/hooks.h"
#include "abi/preload/ipc_requests.h"
#include "stats/lock.h"

namespace spillway {
namespace {

constexpr size_t kPitchBytes = 512;  // of a row, as the driver aligns it: every block begins at a multiple

void* pointer_of(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

// Returns what the program is answered; CUDA_ERROR_UNKNOWN: the driver is to be asked.
CUresult answer(const Status& status, void* block, CUdeviceptr* out) {
  if (status.ok()) *out = reinterpret_cast<CUdeviceptr>(block);
  if (status.ok()) return CUDA_SUCCESS;
  return status.code() == SPW_ERROR_OUT_OF_MEMORY ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
}

// As the C interface does: where the program is, is noted for dumps, and one is written where memory has run
// out, if they are asked for. `caller` is where the program called the driver.
template <typename Allocate>
Status allocate_noted(int device, size_t bytes, const void* caller, void** block, Allocate allocate) {
  const bool notes = bytes >= BlockOrigins::kLeastBytes && BlockOrigins::are_noted();
  const uint32_t stack = notes ? BlockOrigins::capture_in_driver(caller) : 0;
  Status status = allocate();
  if (!status.ok()) return Process::instance().failed_alloc(device, std::move(status));
  if (stack != 0) Arena::note_stack(*block, stack);
  return status;
}

CUresult serve_legacy(CUdeviceptr* out, size_t bytes, const void* caller) noexcept {
  try {
    IpcRequests& requests = IpcRequests::instance();
    if (requests.wants_plain(bytes, caller)) return CUDA_ERROR_UNKNOWN;
    ServedContext* served = ServedContexts::instance().current();
    if (served == nullptr) return CUDA_ERROR_UNKNOWN;
    void* block = nullptr;
    const Status status = allocate_noted(served->device, bytes, caller, &block,
                                         [&] { return served->legacy_pool->allocate(bytes, &block); });
    const CUresult result = answer(status, block, out);
    if (result == CUDA_SUCCESS) requests.note(*out, caller);
    return result;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

CUresult mem_alloc(CUdeviceptr* out, size_t bytes) {
  if (out != nullptr && bytes != 0) {
    const CUresult result = serve_legacy(out, bytes, __builtin_return_address(0));
    if (result != CUDA_ERROR_UNKNOWN) return result;
  }
  const CUresult result = take_from_driver([&] { return real_calls->cuMemAlloc_v2(out, bytes); });
  if (result == CUDA_SUCCESS && out != nullptr) account(DriverMemory::kPlain, *out, bytes);
  return result;
}

CUresult mem_alloc_pitch(CUdeviceptr* out, size_t* pitch, size_t width, size_t height, unsigned element) {
  const bool is_valid = element == 4 || element == 8 || element == 16;
  if (out != nullptr && pitch != nullptr && width != 0 && height != 0 && is_valid) {
    const size_t row = (width + kPitchBytes - 1) / kPitchBytes * kPitchBytes;
    size_t bytes = 0;
    if (row >= width && !__builtin_mul_overflow(row, height, &bytes)) {
      const CUresult result = serve_legacy(out, bytes, __builtin_return_address(0));
      if (result == CUDA_SUCCESS) *pitch = row;
      if (result != CUDA_ERROR_UNKNOWN) return result;
    }
  }
  const CUresult result =
      take_from_driver([&] { return real_calls->cuMemAllocPitch_v2(out, pitch, width, height, element); });
  if (result == CUDA_SUCCESS && out != nullptr && pitch != nullptr)
    account(DriverMemory::kPlain, *out, *pitch * height);
  return result;
}

bool frees_wait() {
  static const bool kTheyWait = Process::instance().config().preload_free == PreloadFree::kSync;
  return kTheyWait;
}

bool free_legacy(CUdeviceptr pointer) noexcept {
  try {
    BlockIds::instance().forget(pointer);
    const int device = Arena::device_of(pointer_of(pointer));
    // A block in host memory is known to the arenas by its beginning alone.
    ServedContext* served =
        device < 0 ? ServedContexts::instance().current() : ServedContexts::instance().of_device(device);
    if (served == nullptr || !served->legacy_pool->free(pointer_of(pointer)).ok()) return false;
    if (frees_wait()) (void)served->legacy_pool->flush();
    return true;
  } catch (...) {
    return false;
  }
}

// Either way to free takes what any call gave.
void drop_block(CUdeviceptr pointer) noexcept {
  for (const DriverMemory kind :
       {DriverMemory::kPlain, DriverMemory::kManaged, DriverMemory::kPool, DriverMemory::kGraph})
    Accounts::instance().remove(kind, pointer);
}

CUresult mem_free(CUdeviceptr pointer) {
  if (pointer != 0 && free_legacy(pointer)) return CUDA_SUCCESS;
  const CUresult result = real_calls->cuMemFree_v2(pointer);
  if (result == CUDA_SUCCESS && pointer != 0) drop_block(pointer);
  return result;
}

// ---- In the order of a stream

BlockingMutex pools_mutex;
// These are pools of device memory that nobody else is to see, by device.
std::unordered_map<CUmemoryPool, int> plain_pools SPW_GUARDED_BY(pools_mutex);
// The current pools of devices, where they are not plain.
std::array<std::atomic<CUmemoryPool>, Allocator::kMostDevices> chosen_pools{};

CUresult serve_on(CUdeviceptr* out, size_t bytes, CUstream stream, const void* caller,
                  bool is_from_pool) noexcept {
  if (out == nullptr || bytes == 0) return CUDA_ERROR_UNKNOWN;
  try {
    // Memory of a graph is the graph's.
    if (is_captured(stream)) return CUDA_ERROR_UNKNOWN;
    ServedContext* served = ServedContexts::instance().of_stream(stream);
    if (served == nullptr) return CUDA_ERROR_UNKNOWN;
    if (!is_from_pool && chosen_pools[static_cast<size_t>(served->device)].load() != nullptr)
      return CUDA_ERROR_UNKNOWN;
    void* block = nullptr;
    const Status status = allocate_noted(served->device, bytes, caller, &block,
                                         [&] { return served->arena->allocate(bytes, stream, &block); });
    return answer(status, block, out);
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

template <typename Call>
CUresult alloc_async(CUdeviceptr* out, size_t bytes, CUstream stream, const void* caller, Call call,
                     bool is_from_pool = false) {
  const CUresult served = serve_on(out, bytes, stream, caller, is_from_pool);
  if (served != CUDA_ERROR_UNKNOWN) return served;
  const CUresult result = take_from_driver(call);
  if (result == CUDA_SUCCESS)
    account(is_captured(stream) ? DriverMemory::kGraph : DriverMemory::kPool, *out, bytes);
  return result;
}

// False: the driver is to be asked.
bool free_on(CUdeviceptr pointer, CUstream stream) noexcept {
  try {
    void* const block = pointer_of(pointer);
    const int device = Arena::device_of(block);
    if (is_captured(stream)) return false;
    BlockIds::instance().forget(pointer);
    const ServedContext* user = ServedContexts::instance().of_stream(stream);
    if (user != nullptr && (user->device == device || device < 0)) return Arena::free_on(block, stream).ok();
    ServedContext* owner = ServedContexts::instance().of_device(device);
    if (owner == nullptr) return false;
    // A stream of another device orders nothing here: the host waits for it.
    const Driver* driver = ServedContexts::instance().driver();
    return driver->cuStreamSynchronize(stream) == CUDA_SUCCESS && owner->legacy_pool->free(block).ok();
  } catch (...) {
    return false;
  }
}

template <typename Call>
CUresult free_async(CUdeviceptr pointer, CUstream stream, Call call) {
  if (pointer != 0 && free_on(pointer, stream)) return CUDA_SUCCESS;
  const CUresult result = call();
  if (result == CUDA_SUCCESS && pointer != 0) drop_block(pointer);
  return result;
}

CUresult mem_alloc_async(CUdeviceptr* out, size_t bytes, CUstream stream) {
  return alloc_async(out, bytes, stream, __builtin_return_address(0),
                     [&] { return real_calls->cuMemAllocAsync(out, bytes, stream); });
}
CUresult mem_alloc_async_ptsz(CUdeviceptr* out, size_t bytes, CUstream stream) {
  return alloc_async(out, bytes, per_thread(stream), __builtin_return_address(0),
                     [&] { return real_calls->cuMemAllocAsync_ptsz(out, bytes, stream); });
}
CUresult mem_free_async(CUdeviceptr pointer, CUstream stream) {
  return free_async(pointer, stream, [&] { return real_calls->cuMemFreeAsync(pointer, stream); });
}
CUresult mem_free_async_ptsz(CUdeviceptr pointer, CUstream stream) {
  return free_async(pointer, per_thread(stream),
                    [&] { return real_calls->cuMemFreeAsync_ptsz(pointer, stream); });
}

// ---- From a pool

// Of what a device's current pool gives, cuMemAllocAsync knows the device alone: where the program chose a
// pool that is not plain, that call is the driver's.
void set_chosen(CUdevice device, CUmemoryPool pool) {
  if (device < 0 || device >= Allocator::kMostDevices) return;
  chosen_pools[static_cast<size_t>(device)].store(pool, std::memory_order_release);
}

// The device whose memory the pool gives, if that may come from Spillway: the pool that every device has, or
// one like it. -1: it may not.
int device_of_pool(CUmemoryPool pool, CUdevice candidate) {
  {
    const Lock lock(pools_mutex);
    if (const auto found = plain_pools.find(pool); found != plain_pools.end()) return found->second;
  }
  const Driver* driver = ServedContexts::instance().driver();
  CUmemoryPool usual = nullptr;
  if (driver == nullptr || driver->cuDeviceGetDefaultMemPool == nullptr ||
      driver->cuDeviceGetDefaultMemPool(&usual, candidate) != CUDA_SUCCESS || usual != pool) {
    return -1;
  }
  const Lock lock(pools_mutex);
  plain_pools.emplace(pool, candidate);
  return candidate;
}

// Tells whether memory of the pool for the stream may come from Spillway, which serves a stream on its own
// device.
bool may_serve(CUmemoryPool pool, CUstream stream) noexcept {
  try {
    const ServedContext* served = ServedContexts::instance().of_stream(stream);
    return served != nullptr && device_of_pool(pool, served->device) == served->device;
  } catch (...) {
    return false;
  }
}

CUresult mem_pool_create(CUmemoryPool* out, const CUmemPoolProps* properties) {
  const CUresult result = real_calls->cuMemPoolCreate(out, properties);
  if (result != CUDA_SUCCESS) return result;
  const bool is_plain = properties->allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
                        properties->handleTypes == CU_MEM_HANDLE_TYPE_NONE &&
                        properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (!is_plain) return result;
  try {
    const Lock lock(pools_mutex);
    plain_pools.emplace(*out, properties->location.id);
  } catch (...) {
    // The driver serves it then.
  }
  return result;
}

// A device whose current pool goes has its own again.
CUresult mem_pool_destroy(CUmemoryPool pool) {
  {
    const Lock lock(pools_mutex);
    plain_pools.erase(pool);
  }
  const CUresult result = real_calls->cuMemPoolDestroy(pool);
  if (result != CUDA_SUCCESS) return result;
  for (std::atomic<CUmemoryPool>& chosen : chosen_pools) {
    CUmemoryPool gone = pool;
    chosen.compare_exchange_strong(gone, nullptr);
  }
  return result;
}

CUresult device_set_mem_pool(CUdevice device, CUmemoryPool pool) {
  const CUresult result = real_calls->cuDeviceSetMemPool(device, pool);
  if (result != CUDA_SUCCESS) return result;
  try {
    (void)ServedContexts::instance().current();  // so that the driver is known
    set_chosen(device, device_of_pool(pool, device) == device ? nullptr : pool);
  } catch (...) {
    set_chosen(device, pool);
  }
  return result;
}

// Access is to all of the device's served memory, as with cuCtxEnablePeerAccess.
CUresult mem_pool_set_access(CUmemoryPool pool, const CUmemAccessDesc* rows, size_t count) {
  const CUresult result = real_calls->cuMemPoolSetAccess(pool, rows, count);
  if (result != CUDA_SUCCESS) return result;
  try {
    ServedContexts& contexts = ServedContexts::instance();
    (void)contexts.current();  // so that the driver is known
    int owner = -1;
    for (int device = 0; owner < 0 && device < Allocator::kMostDevices; ++device)
      owner = device_of_pool(pool, device);
    for (size_t i = 0; owner >= 0 && i < count; ++i) {
      const CUmemLocation& user = rows[i].location;
      if (user.type == CU_MEM_LOCATION_TYPE_DEVICE && rows[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
        contexts.device_opened(owner, user.id);
    }
  } catch (...) {
    // Host memory has run out; the peer's first access will say so.
  }
  return result;
}

template <typename Call>
CUresult alloc_from_pool(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream stream,
                         const void* caller, Call call) {
  if (may_serve(pool, stream)) return alloc_async(out, bytes, stream, caller, call, true);
  const CUresult result = take_from_driver(call);
  if (result == CUDA_SUCCESS) account(DriverMemory::kPool, *out, bytes);
  return result;
}
CUresult mem_alloc_from_pool_async(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return alloc_from_pool(out, bytes, pool, stream, __builtin_return_address(0),
                         [&] { return real_calls->cuMemAllocFromPoolAsync(out, bytes, pool, stream); });
}
CUresult mem_alloc_from_pool_async_ptsz(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return alloc_from_pool(out, bytes, pool, per_thread(stream), __builtin_return_address(0),
                         [&] { return real_calls->cuMemAllocFromPoolAsync_ptsz(out, bytes, pool, stream); });
}

}  // namespace

void fill_served_hooks(DriverCalls& calls) {
  calls.cuMemAlloc_v2 = mem_alloc;
  calls.cuMemAllocPitch_v2 = mem_alloc_pitch;
  calls.cuMemFree_v2 = mem_free;
  // A program that may not allocate so on this driver is not to find that it can.
  if (calls.cuMemAllocAsync == nullptr || calls.cuMemFreeAsync == nullptr) return;
  calls.cuMemAllocAsync = mem_alloc_async;
  calls.cuMemFreeAsync = mem_free_async;
  if (calls.cuMemAllocAsync_ptsz != nullptr) calls.cuMemAllocAsync_ptsz = mem_alloc_async_ptsz;
  if (calls.cuMemFreeAsync_ptsz != nullptr) calls.cuMemFreeAsync_ptsz = mem_free_async_ptsz;
  if (calls.cuMemAllocFromPoolAsync != nullptr) calls.cuMemAllocFromPoolAsync = mem_alloc_from_pool_async;
  if (calls.cuMemAllocFromPoolAsync_ptsz != nullptr)
    calls.cuMemAllocFromPoolAsync_ptsz = mem_alloc_from_pool_async_ptsz;
  if (calls.cuMemPoolCreate != nullptr) calls.cuMemPoolCreate = mem_pool_create;
  if (calls.cuMemPoolDestroy != nullptr) calls.cuMemPoolDestroy = mem_pool_destroy;
  if (calls.cuMemPoolSetAccess != nullptr) calls.cuMemPoolSetAccess = mem_pool_set_access;
  if (calls.cuDeviceSetMemPool != nullptr) calls.cuDeviceSetMemPool = device_set_mem_pool;
}

}  // namespace spillway
