// CUDA tensors for other processes: PyTorch sends a handle and counts who still uses the memory; Spillway
// shows the pages.
#include <cstdio>
#include <cstring>

#include "allocator.h"
#include "calls.h"

namespace spillway_torch {
namespace {

// Runs what PyTorch's own allocator runs before it takes more memory. Blocks that were sent stay with PyTorch
// after their tensors are gone, until it looks whether their receivers are done.
uint64_t run_free_memory_callbacks(int device, uint64_t, void*) {
  try {
    const auto index = static_cast<DeviceIndex>(device);
    const int64_t before = stats_of(index).allocated_bytes.all.current;
    for (const std::string& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
      c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
    }
    const int64_t after = stats_of(index).allocated_bytes.all.current;
    return after < before ? static_cast<uint64_t>(before - after) : 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "spillway: callback for want of memory: %s\n", error.what());
    return 0;
  }
}

// Destructors call it, where nothing may be thrown.
void close_handle(void* pages) {
  if (spw_ipc_close_handle(pages) == SPW_OK) return;
  std::fprintf(stderr, "spillway: memory of another process: %s\n", spw_last_error());
}

}  // namespace

caching::ShareableHandle Allocator::shareIpcHandle(void* pointer) {
  spw_ipc_handle handle{};
  uint64_t offset = 0;
  check(spw_ipc_get_handle(pointer, &handle, &offset));
  const spw_status added = spw_add_oom_callback(current_device(), &run_free_memory_callbacks, nullptr);
  if (added != SPW_ERROR_INVALID_STATE) check(added);  // once for each device
  const char* bytes = reinterpret_cast<const char*>(handle.bytes);
  return {static_cast<ptrdiff_t>(offset), std::string(bytes, sizeof handle.bytes)};
}

std::shared_ptr<void> Allocator::getIpcDevPtr(std::string bytes) {
  spw_ipc_handle handle{};
  TORCH_CHECK(bytes.size() == sizeof handle.bytes,
              "spillway: this CUDA tensor comes from a process without Spillway; install it there too");
  std::memcpy(handle.bytes, bytes.data(), bytes.size());
  const DeviceIndex device = current_device();
  need_context(device);
  void* pages = nullptr;
  check(spw_ipc_open_handle(&handle, device, &pages));
  return {pages, &close_handle};
}

}  // namespace spillway_torch
