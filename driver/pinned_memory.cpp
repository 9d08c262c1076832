#include "driver/pinned_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "driver/first_touch.h"

namespace spillway {
namespace {

// Null where the host has none.
char* map_aligned(size_t bytes, size_t alignment) {
  void* mapped =
      ::mmap(nullptr, bytes + alignment, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(mapped);
  const size_t before = (alignment - reinterpret_cast<uintptr_t>(begin) % alignment) % alignment;
  if (before > 0) ::munmap(begin, before);
  ::munmap(begin + before + bytes, alignment - before);
  return begin + before;
}

}  // namespace

Result<PinnedMemory> PinnedMemory::create(const Driver& driver, size_t bytes, unsigned threads) {
  char* const base = map_aligned(bytes, kAlignment);
  if (base == nullptr) {
    return Status::out_of_memory(fmt::format("mmap of {} bytes: {}", bytes, std::strerror(errno)));
  }
  (void)::madvise(base, bytes, MADV_HUGEPAGE);
  (void)::madvise(base, bytes, MADV_DONTFORK);
  touch_first(base, bytes, threads, nearest_host_node(driver));
  // It is every context's, and has an address on the device.
  constexpr unsigned kFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  const CUresult pinned = driver.cuMemHostRegister(base, bytes, kFlags);
  if (Status status = driver.check(pinned, "cuMemHostRegister"); !status.ok()) {
    ::munmap(base, bytes);
    return status;
  }
  PinnedMemory memory;
  memory.driver_ = &driver;
  memory.base_ = base;
  memory.bytes_ = bytes;
  return memory;
}

void PinnedMemory::share_with_children() const {
  (void)::madvise(base_, bytes_, MADV_DOFORK);
}

void PinnedMemory::reset() noexcept {
  // Memory that stays registered must stay mapped.
  if (base_ != nullptr && driver_->cuMemHostUnregister(base_) == CUDA_SUCCESS) ::munmap(base_, bytes_);
  driver_ = nullptr;
  base_ = nullptr;
  bytes_ = 0;
}

}  // namespace spillway
