// Says what an operation of a disk, or a call for the spill file, may do instead of what was asked, and
// damages what was written.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "offload/io/faulty_queue.h"
#include "offload/io/file_calls.h"

namespace spillway::test {

inline IoFault fails(int64_t result) {
  IoFault fault;
  fault.result = result;
  return fault;
}
inline IoFault stops_short(size_t most_bytes) {
  IoFault fault;
  fault.most_bytes = most_bytes;
  return fault;
}
inline IoFault flips(size_t byte) {
  IoFault fault;
  fault.flipped_byte = byte;
  return fault;
}

// The kernel's calls for a file, some of which fail: `choose` answers the errno of each, by its number from
// 0; 0 lets it be made.
class FaultyFileCalls final : public FileCalls {
 public:
  explicit FaultyFileCalls(std::function<int(uint64_t index)> choose) : choose_(std::move(choose)) {}

  int open(const std::string& path, int flags) override {
    const int error = next();
    return error != 0 ? -error : FileCalls::open(path, flags);
  }
  int open_unlinked(const std::string& pattern, int flags) override {
    const int error = next();
    return error != 0 ? -error : FileCalls::open_unlinked(pattern, flags);
  }
  int reserve(int file, uint64_t offset, uint64_t bytes) override {
    const int error = next();
    return error != 0 ? error : FileCalls::reserve(file, offset, bytes);
  }
  int punch_hole(int file, uint64_t offset, uint64_t bytes) override {
    const int error = next();
    return error != 0 ? error : FileCalls::punch_hole(file, offset, bytes);
  }
  int resize(int file, uint64_t bytes) override {
    const int error = next();
    return error != 0 ? error : FileCalls::resize(file, bytes);
  }
  int64_t file_system(int file) override {
    const int error = next();
    return error != 0 ? -error : FileCalls::file_system(file);
  }
  uint64_t count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  int next() {
    const std::lock_guard lock(mutex_);
    return choose_(count_++);
  }

  const std::function<int(uint64_t index)> choose_;
  mutable std::mutex mutex_;
  uint64_t count_ = 0;
};

// Finds the spill file in this directory, among what the process has open.
inline int spill_file(const std::string& directory) {
  for (int descriptor = 3; descriptor < 1024; ++descriptor) {
    std::array<char, 4096> target{};
    const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
    if (readlink(link.c_str(), target.data(), target.size() - 1) <= 0) continue;
    if (std::string(target.data()).rfind(directory, 0) == 0) return descriptor;
  }
  return -1;
}
// Writes other bytes than were written there, of one sector.
inline void damage(const std::string& directory, uint64_t offset) {
  const int file = spill_file(directory);
  ASSERT_GE(file, 0);
  // O_DIRECT may be set: a whole aligned sector.
  alignas(4096) std::array<char, 4096> wrong{};
  wrong.fill('x');
  ASSERT_EQ(pwrite(file, wrong.data(), wrong.size(), static_cast<off_t>(offset)), 4096);
}

}  // namespace spillway::test
