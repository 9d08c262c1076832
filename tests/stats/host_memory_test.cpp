// Reads what the host has left, from the files of hosts of several kinds.
#include "stats/host_memory.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/folder.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

class HostMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    write("proc/meminfo",
          "MemTotal:       67108864 kB\nMemFree:         1048576 kB\nMemAvailable:   33554432 kB\n");
  }

  void write(const std::string& name, const std::string& text) const { root_.write(name, text); }
  HostMemory read() const { return read_host_memory(root_.path()); }
  void expect(uint64_t total, uint64_t available) const {
    EXPECT_EQ(read().total_bytes, total);
    EXPECT_EQ(read().available_bytes, available);
  }

  const Folder root_;
};

TEST_F(HostMemoryTest, WithoutGroupsItIsTheKernelsFigure) {
  expect(64 * kGiB, 32 * kGiB);
}

TEST_F(HostMemoryTest, AGroupWithoutALimitChangesNothing) {
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/memory.max", "max\n");
  write("sys/fs/cgroup/job/memory.current", "99999999\n");
  expect(64 * kGiB, 32 * kGiB);
}

TEST_F(HostMemoryTest, AGroupsLimitCountsWithoutWhatCanBeDropped) {
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/memory.max", std::to_string(8 * kGiB));
  write("sys/fs/cgroup/job/memory.current", std::to_string(5 * kGiB));
  write("sys/fs/cgroup/job/memory.stat", "anon 7\ninactive_file " + std::to_string(2 * kGiB) + "\n");
  expect(8 * kGiB, 5 * kGiB);
}

TEST_F(HostMemoryTest, TheTightestOfTheGroupsAroundCounts) {
  write("proc/self/cgroup", "0::/outer/inner\n");
  write("sys/fs/cgroup/outer/memory.max", std::to_string(4 * kGiB));
  write("sys/fs/cgroup/outer/memory.current", std::to_string(3 * kGiB));
  write("sys/fs/cgroup/outer/inner/memory.max", std::to_string(8 * kGiB));
  write("sys/fs/cgroup/outer/inner/memory.current", std::to_string(1 * kGiB));
  expect(4 * kGiB, 1 * kGiB);
}

TEST_F(HostMemoryTest, InAContainerTheGroupIsTheRoot) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", std::to_string(2 * kGiB));
  write("sys/fs/cgroup/memory.current", std::to_string(3 * kGiB));
  expect(2 * kGiB, 0);
}

TEST_F(HostMemoryTest, VersionOneHasOtherNames) {
  write("proc/self/cgroup", "12:cpu,cpuacct:/x\n5:memory:/job\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", std::to_string(8 * kGiB));
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", std::to_string(6 * kGiB));
  write("sys/fs/cgroup/memory/job/memory.stat", "total_inactive_file " + std::to_string(1 * kGiB) + "\n");
  expect(8 * kGiB, 3 * kGiB);
}

TEST_F(HostMemoryTest, DamagedFilesCountForNothing) {
  write("proc/self/cgroup", "nonsense\n0:\n::\n0::/job\n");
  write("sys/fs/cgroup/job/memory.max", "-\n");
  write("sys/fs/cgroup/job/memory.stat", "inactive_file\n");
  expect(64 * kGiB, 32 * kGiB);
  write("proc/meminfo", "MemTotal: much\n");
  expect(HostMemory::kBoundless, HostMemory::kBoundless);
}

TEST(HostMemory, ThisHostHasSome) {
  const HostMemory memory = read_host_memory();
  EXPECT_GT(memory.available_bytes, 0U);
  EXPECT_LE(memory.available_bytes, memory.total_bytes);
}

}  // namespace
}  // namespace spillway::test
