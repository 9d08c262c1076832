// Allocations with their frees through PyTorch's interface of allocators, in a loop that Python starts.
#include <c10/cuda/CUDACachingAllocator.h>

#include <time.h>

#include <cstddef>

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_START_INSTRUMENTATION
#define CALLGRIND_STOP_INSTRUMENTATION
#endif

namespace {

double thread_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

void run_pairs(c10::cuda::CUDACachingAllocator::CUDAAllocator& allocator, size_t bytes, size_t count) {
  for (size_t i = 0; i < count; ++i) allocator.raw_delete(allocator.raw_alloc(bytes));
}

}  // namespace

extern "C" {

#define EXPORTED __attribute__((visibility("default")))

// Nanoseconds of this thread's processor time per pair of raw_alloc and raw_delete, on the current device and
// stream. May throw, as PyTorch's allocators do; count is not 0.
EXPORTED double pairs_raw_ns(size_t bytes, size_t count) {
  auto& allocator = *c10::cuda::CUDACachingAllocator::get();
  const double begin = thread_ns();
  run_pairs(allocator, bytes, count);
  return (thread_ns() - begin) / static_cast<double>(count);
}

// The same pairs, counted by callgrind where the process runs under it.
EXPORTED void pairs_under_callgrind(size_t bytes, size_t count) {
  auto& allocator = *c10::cuda::CUDACachingAllocator::get();
  run_pairs(allocator, bytes, count);
  CALLGRIND_START_INSTRUMENTATION;
  run_pairs(allocator, bytes, count);
  CALLGRIND_STOP_INSTRUMENTATION;
}

}  // extern "C"
