#include "abi/preload/served.h"

#include <algorithm>
#include <cstdio>

#include "abi/idle_watch.h"
#include "abi/preload/accounts.h"
#include "abi/preload/block_ids.h"
#include "driver/context.h"

namespace spillway {
namespace {

struct Remembered {
  uint64_t generation = 0;
  const void* key = nullptr;
  ServedContext* served = nullptr;
};
thread_local Remembered last_context __attribute__((tls_model("initial-exec")));
thread_local Remembered last_stream __attribute__((tls_model("initial-exec")));

void complain(const Status& status, const char* what) {
  std::fprintf(stderr, "spillway: preload: %s: %s\n", what, status.text().c_str());
}

}  // namespace

ServedContexts& ServedContexts::instance() {
  static ServedContexts& contexts = *new ServedContexts;  // hooks are called until the process ends
  return contexts;
}

ServedContext* ServedContexts::current() {
  const Driver* driver = driver_.load(std::memory_order_acquire);
  if (driver == nullptr) {
    Result<std::shared_ptr<const Driver>> opened = Process::instance().driver();
    if (!opened.ok()) return nullptr;
    const Lock lock(mutex_);
    kept_driver_ = opened.value();
    driver_.store(kept_driver_.get(), std::memory_order_release);
    driver = kept_driver_.get();
  }
  CUcontext context = nullptr;
  if (driver->cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr) return nullptr;
  const uint64_t generation = generation_.load(std::memory_order_acquire);
  if (last_context.generation == generation && last_context.key == context) return last_context.served;
  ServedContext* served = find(context);
  last_context = {generation, context, served};
  return served;
}

ServedContext* ServedContexts::of_stream(CUstream stream) {
  if (is_default_stream(stream)) return current();
  const uint64_t generation = generation_.load(std::memory_order_acquire);
  if (last_stream.generation == generation && last_stream.key == stream) return last_stream.served;
  CUcontext context = streams_.context_of(stream);
  if (context == nullptr) {
    const ServedContext* here = current();
    const Driver* driver = driver_.load(std::memory_order_acquire);
    if (driver == nullptr || driver->cuStreamGetCtx == nullptr) return nullptr;
    if (driver->cuStreamGetCtx(stream, &context) != CUDA_SUCCESS) return nullptr;
    // The driver's number for a stream that nobody saw being made cannot be kept.
    return here != nullptr && here->context == context ? current() : find(context);
  }
  ServedContext* served = find(context);
  last_stream = {generation, stream, served};
  return served;
}

int ServedContexts::device_of(CUcontext context) {
  const Driver& driver = *kept_driver_;
  const ScopedContext scope(driver, context);
  CUdevice device = -1;
  if (!scope.status().ok() || driver.cuCtxGetDevice(&device) != CUDA_SUCCESS) return -1;
  return device;
}

ServedContext* ServedContexts::find(CUcontext context) {
  const Lock lock(mutex_);
  const auto found = contexts_.find(context);
  return found != contexts_.end() ? found->second.get() : make(context);
}

ServedContext* ServedContexts::make(CUcontext context) {
  std::unique_ptr<ServedContext>& entry = contexts_[context];
  const int device = device_of(context);
  const ScopedContext scope(*kept_driver_, context);
  if (device < 0 || !scope.status().ok() || is_left(device)) return nullptr;
  Result<Arena*> arena = Process::instance().arena(device);
  if (!arena.ok()) {
    complain(arena.status(), "memory is left to the driver");
    return nullptr;
  }
  if (arena.value()->context() != context) {
    std::fprintf(
        stderr,
        "spillway: preload: device %d is served in another context; what this one asks for is left to "
        "the driver\n",
        device);
    return nullptr;
  }
  Result<std::unique_ptr<LegacyPool>> legacy_pool =
      LegacyPool::create(kept_driver_, *arena.value(), streams_);
  if (!legacy_pool.ok()) {
    complain(legacy_pool.status(), "memory is left to the driver");
    return nullptr;
  }
  entry = std::make_unique<ServedContext>();
  entry->context = context;
  entry->device = device;
  if (Result<DeviceProperties> properties = query_device(*kept_driver_, device); properties.ok())
    entry->total_bytes = properties->total_bytes;
  entry->arena = arena.value();
  entry->legacy_pool = std::move(legacy_pool.value());
  by_device_[static_cast<size_t>(device)].store(entry.get(), std::memory_order_release);
  most_bytes_.store(std::max(most_bytes(), entry->total_bytes), std::memory_order_release);
  for (const auto& [owner, user] : peers_) {
    if (owner == context) enable_peer(*entry, user);
  }
  for (const auto& [owner, user] : opened_) {
    if (owner == device) enable_peer(*entry, user);
  }
  return entry.get();
}

void ServedContexts::stream_created(CUstream stream, unsigned flags) {
  CUcontext context = nullptr;
  (void)current();
  const Driver* made_by = driver();
  if (made_by == nullptr || made_by->cuStreamGetCtx == nullptr) return;
  if (made_by->cuStreamGetCtx(stream, &context) != CUDA_SUCCESS) return;
  // What threads remember of the handle is about a stream that is gone.
  if (streams_.add(context, stream, flags)) generation_.fetch_add(1, std::memory_order_acq_rel);
}

void ServedContexts::stream_destroyed(CUstream stream) {
  ServedContext* served = of_stream(stream);
  if (served != nullptr) {
    served->legacy_pool->stream_destroyed(stream);
    (void)served->arena->stream_destroyed(stream);
  }
  streams_.remove(stream);
  generation_.fetch_add(1, std::memory_order_acq_rel);
}

bool ServedContexts::is_primary(CUcontext context) {
  const Lock lock(mutex_);
  const auto found = contexts_.find(context);
  return found != contexts_.end() && found->second != nullptr &&
         found->second->arena->is_in_primary_context();
}

void ServedContexts::context_ends(CUcontext context) {
  Accounts::instance().context_ended(context);
  end_where([&](const auto& entry) { return entry.first == context; });
}

void ServedContexts::primary_context_ends(int device, CUcontext context) {
  if (context != nullptr) context_ends(context);
  // One that was retained unseen.
  end_where([&](const auto& entry) {
    const ServedContext* served = entry.second.get();
    return served != nullptr && served->device == device && served->arena->is_in_primary_context();
  });
}

template <typename IsIt>
void ServedContexts::end_where(IsIt is_it) {
  const auto find_it = [&]() SPW_REQUIRES(mutex_) {
    return std::find_if(contexts_.begin(), contexts_.end(), is_it);
  };
  PausableLock lock(mutex_);
  Entry entry = find_it();
  if (entry != contexts_.end() && entry->second != nullptr) {
    const int device = entry->second->device;
    // Nobody is to wait for the mutex while a region is being evicted.
    lock.unlock();
    IdleWatch::instance().remove(device);
    lock.lock();
    entry = find_it();
  }
  if (entry != contexts_.end()) end(entry);
}

void ServedContexts::end(Entry entry) {
  std::unique_ptr<ServedContext> served = std::move(entry->second);
  contexts_.erase(entry);
  generation_.fetch_add(1, std::memory_order_acq_rel);
  if (served == nullptr) return;
  Accounts::instance().context_ended(served->context);
  by_device_[static_cast<size_t>(served->device)].store(nullptr, std::memory_order_release);
  streams_.remove_all(served->context);
  std::erase_if(peers_, [&](const auto& pair) { return pair.first == served->context; });
  served->legacy_pool.reset();
  BlockIds::instance().forget_all(served->device);
  if (Process::instance().drop_arena(served->device)) return;
  // The driver may give another context this one's handle, so that the arena would pass for its own.
  is_left_[static_cast<size_t>(served->device)] = true;
  std::fprintf(
      stderr,
      "spillway: preload: device %d: its context ended while spilled regions, guards or callbacks of "
      "Spillway depend on its memory; what later contexts ask for is left to the driver\n",
      served->device);
}

void ServedContexts::enable_peer(const ServedContext& owner, int user) {
  if (Status status = owner.arena->enable_peer(user); !status.ok()) complain(status, "peer access");
}

void ServedContexts::device_opened(int owner, int user) {
  const Lock lock(mutex_);
  if (owner == user || !opened_.emplace(owner, user).second) return;
  if (const ServedContext* served = of_device(owner); served != nullptr) enable_peer(*served, user);
}

void ServedContexts::peer_enabled(CUcontext peer) {
  const ServedContext* user = current();
  if (user == nullptr) return;
  const Lock lock(mutex_);
  peers_.emplace_back(peer, user->device);
  const auto owner = contexts_.find(peer);
  if (owner != contexts_.end() && owner->second != nullptr) enable_peer(*owner->second, user->device);
}

}  // namespace spillway
