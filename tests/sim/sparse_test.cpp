#include "sim/cuda/sparse.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

namespace spillway::sim {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kBytes = 256 * kPage;

// A sparse file of two halves, of which nothing is written yet.
class SparseTest : public ::testing::Test {
 protected:
  SparseTest() {
    file_ = memfd_create("sparse-test", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(file_, 2 * kBytes), 0);
    window_ = static_cast<char*>(
        mmap(nullptr, 2 * kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0));
  }
  ~SparseTest() override {
    munmap(window_, 2 * kBytes);
    close(file_);
  }

  Piece from() const { return {window_, file_, 0}; }
  Piece to() const { return {window_ + kBytes, file_, kBytes}; }
  uint64_t held_pages() const {
    struct stat status {};
    fstat(file_, &status);
    return static_cast<uint64_t>(status.st_blocks) * 512 / kPage;
  }
  bool halves_are_equal() const { return std::memcmp(window_, window_ + kBytes, kBytes) == 0; }

  int file_;
  char* window_;
};

TEST_F(SparseTest, ACopyOfWhatWasNeverWrittenTakesNoMemory) {
  move_sparse(to(), from(), kBytes);
  clear_sparse(to(), kBytes);
  EXPECT_EQ(held_pages(), 0u);
}

TEST_F(SparseTest, ACopyIsWhole) {
  for (const uint64_t page : {0u, 3u, 4u, 100u, 255u}) std::memset(from().bytes + page * kPage, 1, kPage);
  std::memset(to().bytes + 2 * kPage, 2, 3 * kPage);
  std::memset(to().bytes + 200 * kPage, 2, kPage);
  move_sparse(to(), from(), kBytes);
  EXPECT_TRUE(halves_are_equal());
}

TEST_F(SparseTest, NeitherBeginsAtAPage) {
  std::memset(from().bytes + 10 * kPage - 1, 1, 3);
  std::memset(to().bytes, 2, kBytes);
  const uint64_t bytes = 20 * kPage;
  const Piece source{from().bytes + 5, file_, 5};
  const Piece target{to().bytes + 9, file_, kBytes + 9};
  move_sparse(target, source, bytes);
  EXPECT_EQ(std::memcmp(target.bytes, source.bytes, bytes), 0);
  EXPECT_EQ(target.bytes[-1], 2);
  EXPECT_EQ(target.bytes[bytes], 2);
}

TEST_F(SparseTest, RangesThatOverlapAndMemoryThatLiesInNoFile) {
  for (uint64_t at = 0; at < kBytes; at += 1000) from().bytes[at] = static_cast<char>(at / 1000 + 1);
  const std::string before(from().bytes, kBytes / 2);
  move_sparse({from().bytes + kPage, file_, kPage}, from(), kBytes / 2);
  EXPECT_EQ(std::memcmp(from().bytes + kPage, before.data(), before.size()), 0);
  std::vector<char> host(kBytes, 3);
  move_sparse({host.data(), -1, 0}, to(), kBytes);
  EXPECT_EQ(host, std::vector<char>(kBytes, 0));
  host.assign(kBytes, 4);
  move_sparse(to(), {host.data(), -1, 0}, kBytes);
  EXPECT_EQ(std::memcmp(to().bytes, host.data(), kBytes), 0);
  clear_sparse(to(), kBytes);
  EXPECT_EQ(std::memcmp(to().bytes, std::vector<char>(kBytes, 0).data(), kBytes), 0);
}

}  // namespace
}  // namespace spillway::sim
