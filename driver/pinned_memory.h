// Host memory that devices read and write themselves: anonymous memory of the process, registered with the
// driver. An owner like those of driver/memory.h, and of 24 bytes too.
#pragma once

#include <cstddef>
#include <utility>

#include "driver/driver.h"

namespace spillway {

class PinnedMemory {
 public:
  // Memory begins at a multiple of this, the size of a huge page, so that the kernel may use those.
  static constexpr size_t kAlignment = size_t{2} << 20;

  PinnedMemory() = default;
  PinnedMemory(PinnedMemory&& other) noexcept { swap(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    PinnedMemory(std::move(other)).swap(*this);
    return *this;
  }
  ~PinnedMemory() { reset(); }

  // `bytes` is a multiple of the host's page. Pinned for every context; a context must be current. Slow: a
  // tenth of a second and more for each GiB, less where several threads may touch it first. It is on the
  // node nearest to the context's device. Errors: out_of_memory (the host has none, or the driver refuses to
  // pin it), driver.
  static Result<PinnedMemory> create(const Driver& driver, size_t bytes, unsigned threads = 1);

  char* base() const { return base_; }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return base_ != nullptr; }

  // A child of fork has nothing of it, unless this was called before: the kernel would copy each pinned page
  // at the fork.
  void share_with_children() const;

  // A context must be current. Nothing that was enqueued may still use the memory.
  void reset() noexcept;
  void swap(PinnedMemory& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
  }

 private:
  const Driver* driver_ = nullptr;
  char* base_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace spillway
