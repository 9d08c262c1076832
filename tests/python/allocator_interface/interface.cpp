// Asks what libraries in PyTorch's process ask of its allocator, for a test in Python to call.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstddef>
#include <set>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace allocator = c10::cuda::CUDACachingAllocator;
using Action = allocator::TraceEntry::Action;

// abi/torch_error.cpp makes the one of the other's parts, in so many bytes.
static_assert(sizeof(c10::OutOfMemoryError) == sizeof(c10::Error) && sizeof(c10::Error) <= 1024);

namespace {
std::atomic<int> allocations{0};
std::atomic<int> frees{0};
}  // namespace

// Returns what cuDNN takes for the largest workspace that it may try.
EXPORTED size_t largest_block(int device) {
  size_t largest = 0;
  allocator::cacheInfo(static_cast<c10::DeviceIndex>(device), &largest);
  return largest;
}

// Returns what NCCL registers: bytes of segments, and on how many streams they are.
EXPORTED size_t segment_bytes(int device, int* streams) {
  size_t bytes = 0;
  std::set<cudaStream_t> seen;
  for (const auto& segment :
       allocator::get()->getExpandableSegmentSizes(static_cast<c10::DeviceIndex>(device))) {
    bytes += segment.total_size;
    seen.insert(segment.stream);
  }
  *streams = static_cast<int>(seen.size());
  return bytes;
}

EXPORTED void attach_tracker() {
  allocator::attachAllocatorTraceTracker([](const allocator::TraceEntry& entry) {
    if (entry.action_ == Action::ALLOC) ++allocations;
    if (entry.action_ == Action::FREE_REQUESTED) ++frees;
  });
}
EXPORTED int tracked_allocations() {
  return allocations;
}
EXPORTED int tracked_frees() {
  return frees;
}
