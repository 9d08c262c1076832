// Regions under the limits that a kernel really sets: each costs an error or another way, and no byte.
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>

#include "tests/support/forbid_io_uring.h"
#include "tests/support/sizes.h"
#include "tests/support/spilling.h"

namespace spillway::test {
namespace {

constexpr int kRight = 0;
constexpr int kWrong = 1;
constexpr int kNotPossible = 2;  // the machine does not let a test set the limit

// Returns what `body` answers in a process of its own, so that the limit ends with it.
int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    const int answer = body();
    _exit(testing::Test::HasFailure() ? kWrong : answer);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  return WIFEXITED(status) ? WEXITSTATUS(status) : kWrong;
}

// A region of 20 MiB in `directory`'s reach; `body` gets it filled.
int with_region(const std::string& directory, const std::function<int(Tiers&, TestRegion&)>& body) {
  DiskTierOptions options = disk_options(directory);
  options.file.growth_bytes = kExtentBytes;
  options.buffers = 2;  // all are used, so that the engine is to register them
  Tiers tiers("capacity:128MiB,completion:late", options);
  const std::unique_ptr<Arena> arena = tiers.device.arena();
  TestRegion region(tiers, *arena, {9, 1});
  region.write(region.allocate(20 * kMiB), 7);
  const int answer = body(tiers, region);
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(tiers.device.reports(), "");
  return answer;
}

// Evicting fails with `code`, and the region serves as before, by way of the host too.
int stays(TestRegion& region, spw_status code) {
  const Status status = region.evict(SpillTo::kDisk);
  EXPECT_EQ(status.code(), code) << status.text();
  EXPECT_TRUE(region.all_intact());
  SPW_EXPECT_OK(region.evict(SpillTo::kHost));
  SPW_EXPECT_OK(region.restore());
  EXPECT_TRUE(region.all_intact());
  return kRight;
}

int leaves_and_returns(TestRegion& region) {
  SPW_EXPECT_OK(region.evict(SpillTo::kDisk));
  SPW_EXPECT_OK(region.restore());
  EXPECT_TRUE(region.all_intact());
  return kRight;
}

// Mounts of the process's own; who has no right to them is root of a name space of his own.
bool may_mount() {
  if (unshare(CLONE_NEWNS) == 0) return true;
  const uid_t user = getuid();
  const gid_t group = getgid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream("/proc/self/uid_map") << "0 " << user << " 1";
  std::ofstream("/proc/self/gid_map") << "0 " << group << " 1";
  return getuid() == 0;
}

// cudf-spark#14683: a full disk ended the program.
TEST(Limits, AFullFileSystemKeepsTheRegionWhereItIs) {
  const Folder directory;
  const int answer = in_child([&] {
    if (!may_mount()) return kNotPossible;
    (void)mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    if (mount("spill", directory.path().c_str(), "tmpfs", 0, "size=12m") != 0) return kNotPossible;
    return with_region(directory.path(),
                       [](Tiers&, TestRegion& region) { return stays(region, SPW_ERROR_OUT_OF_MEMORY); });
  });
  if (answer == kNotPossible) GTEST_SKIP() << "no file system can be mounted here";
  EXPECT_EQ(answer, kRight);
}

TEST(Limits, AFileThatMayNotGrowKeepsTheRegionWhereItIs) {
  const Folder directory;
  EXPECT_EQ(in_child([&] {
              std::signal(SIGXFSZ, SIG_DFL);
              // The simulated device keeps its memory in files too.
              return with_region(directory.path(), [](Tiers&, TestRegion& region) {
                const rlimit limit{5 * kMiB, RLIM_INFINITY};
                if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return kNotPossible;
                const Status status = region.evict(SpillTo::kDisk);
                EXPECT_EQ(status.code(), SPW_ERROR_OUT_OF_MEMORY) << status.text();
                const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
                setrlimit(RLIMIT_FSIZE, &none);
                EXPECT_TRUE(region.all_intact());
                return leaves_and_returns(region);
              });
            }),
            kRight);
}

TEST(Limits, WithoutLockedMemoryTheDiskServes) {
  const Folder directory;
  std::filesystem::permissions(directory.path(), std::filesystem::perms::all);
  EXPECT_EQ(in_child([&] {
              return with_region(directory.path(), [](Tiers& tiers, TestRegion& region) {
                // The limit is not for root.
                const rlimit limit{64 << 10, 64 << 10};
                if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return kWrong;
                if (getuid() == 0 && setresuid(65534, 65534, 65534) != 0) return kWrong;
                const int answer = leaves_and_returns(region);
                // Locking was refused, or there was none to begin with.
                const std::string engine = tiers.disk.engine();
                const bool went_without = engine.find("memory not registered") != std::string::npos ||
                                          engine.find("threads of pread") != std::string::npos;
                EXPECT_TRUE(went_without) << engine;
                return answer;
              });
            }),
            kRight);
}

TEST(Limits, WithoutIoUringThreadsMoveTheRegion) {
  const Folder directory;
  EXPECT_EQ(in_child([&] {
              if (!forbid_io_uring()) return kNotPossible;
              return with_region(directory.path(), [](Tiers& tiers, TestRegion& region) {
                (void)leaves_and_returns(region);
                return tiers.disk.engine().find("threads of pread") == std::string::npos ? kWrong : kRight;
              });
            }),
            kRight);
}

TEST(Limits, AKilledProcessLeavesNoFile) {
  const Folder directory;
  std::array<int, 2> ready{};
  ASSERT_EQ(pipe(ready.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    (void)with_region(directory.path(), [&](Tiers&, TestRegion& region) {
      const char answer = region.evict(SpillTo::kDisk).ok() ? 'y' : 'n';
      (void)!write(ready[1], &answer, 1);
      pause();
      return kWrong;
    });
    _exit(kWrong);
  }
  close(ready[1]);
  char answer = '-';
  EXPECT_EQ(read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  close(ready[0]);
}

}  // namespace
}  // namespace spillway::test
