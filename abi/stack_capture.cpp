#include "abi/stack_capture.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <algorithm>
#include <array>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "abi/python_frames.h"

namespace spillway {
namespace {

using Unwind = int (*)(void** frames, int most);

// Frames of this library above the caller's.
constexpr int kMostInside = 8;

// libunwind's unw_backtrace(3) is glibc's backtrace(3) with a cache of each thread's own, which its
// destructor locks for. ThreadSanitizer may have ended its part of the thread before, and crashes then.
Unwind find_unwinder() {
  if (dlsym(RTLD_DEFAULT, "__tsan_init") != nullptr) return backtrace;
  void* library = dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL);
  void* function = library == nullptr ? nullptr : dlsym(library, "unw_backtrace");
  return function == nullptr ? backtrace : reinterpret_cast<Unwind>(function);
}

Unwind unwinder() {
  static const Unwind kUnwind = find_unwinder();
  return kUnwind;
}

int list_cpp_frames(const void* caller, void** frames) {
  std::array<void*, kMostInside + kMostCppFrames> all{};
  void** const end = all.data() + std::max(0, unwinder()(all.data(), static_cast<int>(all.size())));
  void** first = std::find(all.data(), end, caller);
  if (first == end) first = all.data();
  const auto count = std::min<ptrdiff_t>(end - first, kMostCppFrames);
  std::copy(first, first + count, frames);
  return static_cast<int>(count);
}

// Holds what a stack is known by.
struct Captured {
  std::array<void*, kMostCppFrames> cpp;
  std::array<PythonFrame, kMostPythonFrames> python;
  int cpp_count = 0;
  int python_count = 0;

  // Never 0.
  uint64_t hash() const {
    const XXH64_hash_t cpp_hash = XXH3_64bits(cpp.data(), static_cast<size_t>(cpp_count) * sizeof(cpp[0]));
    return XXH3_64bits_withSeed(python.data(), static_cast<size_t>(python_count) * sizeof(python[0]),
                                cpp_hash) |
           1;
  }
};

uint32_t intern(StackTable& table, const Captured& captured) {
  if (captured.cpp_count + captured.python_count == 0) return 0;
  const uint64_t hash = captured.hash();
  if (const uint32_t known = table.find(hash); known != 0) return known;
  std::vector<StackFrame> frames;
  for (int i = 0; i < captured.cpp_count; ++i) {
    frames.push_back({reinterpret_cast<uint64_t>(captured.cpp[static_cast<size_t>(i)]), {}, {}, 0});
  }
  name_python_frames(captured.python.data(), captured.python_count, frames);
  return table.add(hash, std::move(frames));
}

}  // namespace

uint32_t capture_stack(StackTable& table, TraceStacks which, const void* caller) noexcept {
  try {
    Captured captured;
    if (which == TraceStacks::kCpp || which == TraceStacks::kAll) {
      captured.cpp_count = list_cpp_frames(caller, captured.cpp.data());
    }
    if (which == TraceStacks::kCpp) return intern(table, captured);
    const PythonLock lock;
    if (lock.held()) captured.python_count = list_python_frames(captured.python.data(), kMostPythonFrames);
    return intern(table, captured);
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

void prepare_stacks() noexcept {
  void* frame = nullptr;
  (void)unwinder()(&frame, 1);
  (void)PythonLock::is_held();
}

}  // namespace spillway
