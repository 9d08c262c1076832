#include "sim/cuda/backing.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <iterator>

#include "sim/cuda/sparse.h"

namespace spillway::sim {
namespace {
constexpr uint64_t kSpanOverCapacity = 4;
// To write zeros to a page takes a tenth of the time of a new one, which the kernel clears too, after a page
// fault.
constexpr uint64_t kMostKept = uint64_t{512} << 20;
constexpr uint64_t kBlockBytes = 512;  // of stat
}  // namespace

bool Backing::open(uint64_t capacity_bytes) {
  const uint64_t span = capacity_bytes * kSpanOverCapacity;
  if (is_open() && span_ == span && held_bytes() <= kMostKept) {
    free_ = {{0, span_}};
    return true;
  }
  close_all();
  span_ = span;
  file_ = memfd_create("spillway-sim", MFD_CLOEXEC);
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(span_)) != 0) {
    close_all();
    return false;
  }
  // Past the C library: sanitizers would prepare shadow memory for a window that is nearly all holes.
  void* window = std::bit_cast<void*>(
      syscall(SYS_mmap, nullptr, span_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0));
  if (window == MAP_FAILED) {
    close_all();
    return false;
  }
  window_ = static_cast<char*>(window);
  free_ = {{0, span_}};
  return true;
}

void Backing::close_all() {
  if (window_ != nullptr) syscall(SYS_munmap, window_, span_);
  if (file_ >= 0) ::close(file_);
  window_ = nullptr;
  file_ = -1;
  free_.clear();
}

uint64_t Backing::allocate(uint64_t bytes) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second < bytes) continue;
    const auto [offset, size] = *it;
    free_.erase(it);
    if (size > bytes) free_.emplace(offset + bytes, size - bytes);
    clear_sparse({window_ + offset, file_, offset}, bytes);
    return offset;
  }
  return UINT64_MAX;
}

uint64_t Backing::held_bytes() const {
  struct stat status {};
  return fstat(file_, &status) == 0 ? static_cast<uint64_t>(status.st_blocks) * kBlockBytes : UINT64_MAX;
}

void Backing::free(uint64_t offset, uint64_t bytes) {
  if (held_bytes() > kMostKept) {
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(bytes));
  }
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace_hint(next, offset, bytes);
}

}  // namespace spillway::sim
