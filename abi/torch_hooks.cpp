// The hooks of PyTorch's pluggable allocator: bodies over the C ABI. Knows neither PyTorch's headers nor its
// libraries.
#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "abi/torch_error.h"
#include "include/spillway/spillway.h"
#include "include/spillway/torch.h"
#include "stats/lock.h"

namespace spillway {
namespace {

std::atomic<int> device_count{0};
thread_local bool is_about_to_capture = false;

void complain(const char* hook) noexcept {
  std::fprintf(stderr, "spillway: %s: %s\n", hook, spw_last_error());
}

[[noreturn]] void throw_error(spw_status status) {
  const std::string text = spw_last_error();
  if (status != SPW_ERROR_OUT_OF_MEMORY) throw std::runtime_error("spillway: " + text);
  throw_out_of_memory(text);
}

// ---- Peers

constexpr int kMostDevices = 64;
std::atomic<uint64_t> used_devices{0};
BlockingMutex peers_mutex;

// PyTorch makes the contexts of two devices peers without asking the allocator, and mapped memory needs more
// than that.
[[gnu::noinline, gnu::cold]] void make_peer(int device) {
  const Lock lock(peers_mutex);
  const uint64_t used = used_devices.load();
  if ((used >> device & 1) != 0) return;
  const auto enable = [](int from, int to) SPW_REQUIRES(peers_mutex) {
    const spw_status status = spw_enable_peer(from, to);
    if (status != SPW_OK && status != SPW_ERROR_UNSUPPORTED) complain("peers");
  };
  for (int other = 0; other < kMostDevices; ++other) {
    if ((used >> other & 1) == 0) continue;
    enable(device, other);
    enable(other, device);
  }
  used_devices.store(used | uint64_t{1} << device);
}

spw_status allocate(size_t bytes, int device, spw_stream stream, void** out) {
  const spw_status status = spw_alloc(bytes, device, stream, out);
  if (status == SPW_OK && device < kMostDevices) [[likely]] {
    if ((used_devices.load(std::memory_order_relaxed) >> device & 1) == 0) [[unlikely]]
      make_peer(device);
  }
  return status;
}

// ---- Pools

using Filter = std::function<bool(spw_stream)>;
using PoolKey = std::tuple<int, uint64_t, uint64_t>;

struct Pools {
  // A thread that asked just before a pool was closed may still be in its filter.
  static constexpr size_t kMostClosed = 64;

  BlockingMutex mutex;
  std::map<PoolKey, std::unique_ptr<Filter>> open SPW_GUARDED_BY(mutex);
  std::deque<std::unique_ptr<Filter>> closed SPW_GUARDED_BY(mutex);
};

Pools& pools() {
  static Pools& all = *new Pools;
  return all;
}

int call_filter(spw_stream stream, void* context) {
  return (*static_cast<const Filter*>(context))(stream) ? 1 : 0;
}

void begin_pool(int device, spw_pool_id id, const Filter& filter) {
  auto kept = std::make_unique<Filter>(filter);
  const Lock lock(pools().mutex);
  if (spw_pool_begin(device, id, &call_filter, kept.get()) != SPW_OK) return complain("begin_pool");
  pools().open[{device, id.first, id.second}] = std::move(kept);
}

void end_pool(int device, spw_pool_id id) {
  const Lock lock(pools().mutex);
  if (spw_pool_end(device, id) != SPW_OK) return complain("end_pool");
  const auto found = pools().open.find({device, id.first, id.second});
  if (found == pools().open.end()) return;  // opened by another caller of spw_pool_begin
  pools().closed.push_back(std::move(found->second));
  if (pools().closed.size() > Pools::kMostClosed) pools().closed.pop_front();
  pools().open.erase(found);
}

spw_status set_fraction(double fraction, int device) {
  if (fraction >= 1) return spw_set_limit(device, UINT64_MAX);
  uint64_t total_bytes = 0;
  const spw_status status = spw_memory_info(device, nullptr, &total_bytes);
  if (status != SPW_OK) return status;
  return spw_set_limit(device, static_cast<uint64_t>(fraction * static_cast<double>(total_bytes)));
}

// Runs what may lack memory of the host.
template <typename Body>
void without_exceptions(const char* hook, Body body) noexcept {
  try {
    body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "spillway: %s: %s\n", hook, error.what());
  }
}

}  // namespace
}  // namespace spillway

extern "C" {

void* spw_torch_alloc(size_t bytes, int device, spw_stream stream) {
  void* out = nullptr;
  const spw_status status = spillway::allocate(bytes, device, stream, &out);
  if (status != SPW_OK) [[unlikely]]
    spillway::throw_error(status);
  return out;
}

void* spw_torch_alloc_segment(size_t bytes, int device, spw_stream stream) {
  void* out = nullptr;
  const spw_status status = spillway::allocate(bytes, device, stream, &out);
  if (status != SPW_OK && status != SPW_ERROR_OUT_OF_MEMORY) spillway::throw_error(status);
  return out;
}

void spw_torch_free(void* pointer, size_t, int, spw_stream) {
  if (spw_free(pointer) != SPW_OK) [[unlikely]]
    spillway::complain("free");
}

void spw_torch_init(int device_count) {
  spillway::device_count.store(device_count);
}

void spw_torch_reset(void) {
  for (int device = 0; device < spillway::device_count.load(); ++device) {
    const spw_status status = spw_torch_trim(device);
    if (status != SPW_OK && status != SPW_ERROR_INVALID_STATE) spillway::complain("empty_cache");
  }
}

spw_status spw_torch_trim(int device) {
  return spillway::is_about_to_capture ? spw_settle(device) : spw_trim(device);
}

void spw_torch_about_to_capture(int is_about) {
  spillway::is_about_to_capture = is_about != 0;
}

void spw_torch_memory_fraction(double fraction, int device) {
  if (spillway::set_fraction(fraction, device) != SPW_OK) spillway::complain("memory_fraction");
}

void* spw_torch_base_alloc(void* pointer, size_t* bytes) {
  spw_block block;
  int device = 0;
  if (bytes != nullptr) *bytes = 0;
  if (spw_find_block(pointer, &block, &device) == SPW_OK && bytes != nullptr) *bytes = block.bytes;
  return pointer;
}

void spw_torch_record_stream(void* pointer, spw_stream stream) {
  const spw_status status = spw_record_stream(pointer, stream);
  if (status != SPW_OK && status != SPW_ERROR_INVALID_POINTER) [[unlikely]]
    spillway::complain("record_stream");
}

void spw_torch_begin_pool(int device, spw_pool_id id, const void* filter) {
  spillway::without_exceptions(
      "begin_pool", [&] { spillway::begin_pool(device, id, *static_cast<const spillway::Filter*>(filter)); });
}

void spw_torch_end_pool(int device, spw_pool_id id) {
  spillway::without_exceptions("end_pool", [&] { spillway::end_pool(device, id); });
}

void spw_torch_release_pool(int device, spw_pool_id id) {
  if (spw_pool_release(device, id) != SPW_OK) spillway::complain("release_pool");
}

void spw_torch_throw_as(const void* vtable, void* construct) {
  spillway::throw_torch_error_as(vtable, construct);
}

}  // extern "C"
