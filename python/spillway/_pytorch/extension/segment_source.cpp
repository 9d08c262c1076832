#include "segment_source.h"

#include <cstdio>
#include <exception>
#include <utility>

#include "calls.h"

namespace spillway_torch {
namespace {

struct Source {
  c10::DeviceIndex device;
  std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> allocator;
};

// Runs `body` on the source's device. What it throws costs one line: the C interface has no way to pass it
// on.
template <typename Body>
void on_device(const Source& source, const char* what, Body body) {
  try {
    const c10::cuda::CUDAGuard guard(source.device);
    body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "spillway: %s of a pool's allocator: %s\n", what, error.what());
  }
}

void* allocate(size_t bytes, spw_stream stream, void* context) {
  const auto& source = *static_cast<const Source*>(context);
  void* pointer = nullptr;
  on_device(source, "alloc", [&] { pointer = source.allocator->raw_alloc_with_stream(bytes, stream); });
  return pointer;
}

void free(void* pointer, size_t, void* context) {
  const auto& source = *static_cast<const Source*>(context);
  on_device(source, "free", [&] { source.allocator->raw_delete(pointer); });
}

}  // namespace

void take_segments_from(c10::DeviceIndex device, c10::cuda::MempoolId_t pool,
                        std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> allocator) {
  // Never deleted: segments may outlive the pool, as tensors do.
  auto* const source = new Source{device, std::move(allocator)};
  check(spw_pool_set_source(device, {pool.first, pool.second}, &allocate, &free, source));
}

}  // namespace spillway_torch
