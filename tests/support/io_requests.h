// Holds what tests of the disk's engine and of its queues share: memory of a known content, files, requests.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

#include "offload/io/engine.h"
#include "tests/support/sizes.h"

namespace spillway::test {

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};

// Page-aligned memory of a known content.
class Bytes {
 public:
  explicit Bytes(size_t size, uint32_t seed = 0)
      : memory_(static_cast<std::byte*>(std::aligned_alloc(4096, (size + 4095) / 4096 * 4096))), size_(size) {
    std::minstd_rand random(seed + 1);
    for (size_t i = 0; i < size; ++i) memory_.get()[i] = static_cast<std::byte>(random());
  }
  std::span<std::byte> span() const { return {memory_.get(), size_}; }
  bool operator==(const Bytes& other) const {
    return size_ == other.size_ && std::memcmp(memory_.get(), other.memory_.get(), size_) == 0;
  }

 private:
  std::unique_ptr<std::byte, Free> memory_;
  size_t size_;
};

inline int temporary_file() {
  const int descriptor = open(::testing::TempDir().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  EXPECT_GE(descriptor, 0) << std::strerror(errno);
  return descriptor;
}

inline IoRequest request_of(IoKind kind, IoFile& file, const Bytes& bytes, uint64_t offset = 0) {
  IoRequest request;
  request.kind = kind;
  request.file = &file;
  request.memory = bytes.span();
  request.offset = offset;
  return request;
}

inline IoOptions small_blocks(bool use_uring) {
  IoOptions options;
  options.block_bytes = 64 * kKiB;
  options.depth = 4;
  options.use_uring = use_uring;
  return options;
}

inline Result<std::unique_ptr<IoQueue>> queue_of(const IoOptions& options) {
  return options.use_uring ? make_uring_queue(options.depth)
                           : make_thread_queue(options.depth, options.threads, "as the test wants");
}

class OnEachQueue : public ::testing::TestWithParam<bool> {
 protected:
  IoOptions options() const { return small_blocks(GetParam()); }
};

}  // namespace spillway::test
