// A process as others watch it: while it runs, is stopped, after its death; and what it costs it: nothing
// that it could notice.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "include/spillway/spillway.h"
#include "stats/live_reader.h"
#include "tests/support/child.h"
#include "tests/support/folder.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

namespace fs = std::filesystem;
using testing::IsEmpty;
using testing::SizeIs;

Environment environment(const Folder& folder, const std::string& more = "") {
  return {{"SPILLWAY_CONF", "live_interval:2,live_dir:" + folder.path() + more}};
}

std::vector<LiveReading> pages_in(const Folder& folder) {
  return list_live_pages(folder.path()).pages;
}

// Looks until `is_so`, half a minute at most.
template <typename Predicate>
bool eventually(Predicate is_so) {
  for (int i = 0; i < 6000; ++i) {
    if (is_so()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

int64_t allocated(const LiveReading& page) {
  return page.devices.empty() ? -1 : page.devices.front().now.stats.allocated_bytes.all.current;
}

// A process that allocates so many MiB and then waits for its end.
class Program {
 public:
  Program(const Folder& folder, size_t mib) {
    process_ = fork();
    SPW_CHECK(process_ >= 0);
    if (process_ != 0) return;
    for (const auto& [name, value] : environment(folder)) setenv(name.c_str(), value.c_str(), 1);
    const auto driver = start_device();
    void* block = nullptr;
    SPW_CHECK(spw_alloc(mib * kMiB, 0, nullptr, &block) == SPW_OK);
    for (;;) pause();
  }
  ~Program() { end(); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void send(int signal) const { kill(process_, signal); }
  void end() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    process_ = 0;
  }
  pid_t process() const { return process_; }
  // Its page, once it shows `mib`; none where it has ended, which is not waited for any longer.
  std::optional<LiveReading> page(const Folder& folder, size_t mib) {
    std::optional<LiveReading> found;
    eventually([&] {
      if (process_ > 0 && waitpid(process_, nullptr, WNOHANG) == process_) process_ = 0;
      if (process_ == 0) return true;
      for (const LiveReading& page : pages_in(folder)) {
        if (page.process.pid == process_ && allocated(page) >= static_cast<int64_t>(mib * kMiB)) found = page;
      }
      return found.has_value();
    });
    return found;
  }

 private:
  pid_t process_ = 0;
};

size_t live_threads() {
  size_t count = 0;
  for (const auto& task : fs::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    count += name == "spillway-live" ? 1 : 0;
  }
  return count;
}

TEST(Live, ShowsWhatTheCountersSay) {
  const Folder folder;
  in_child(environment(folder), [&] {
    const auto driver = start_device();
    void* block = nullptr;
    SPW_CHECK(spw_alloc(5 * kMiB, 0, nullptr, &block) == SPW_OK);
    const spw_stats stats = stats_of(0);
    SPW_CHECK(eventually([&] {
      const std::vector<LiveReading> pages = pages_in(folder);
      if (pages.size() != 1 || allocated(pages.front()) != stats.allocated_bytes.all.current) return false;
      const spw_stats& seen = pages.front().devices.front().now.stats;
      return seen.reserved_bytes.all.current == stats.reserved_bytes.all.current &&
             seen.driver_calls.create == stats.driver_calls.create && pages.front().process.pid == getpid();
    }));
    SPW_CHECK(live_threads() == 1);
  });
  EXPECT_THAT(pages_in(folder), IsEmpty());
}

TEST(Live, ProgramsThatNeverAllocateHaveNoThreadAndNoPage) {
  const Folder folder;
  in_child(environment(folder), [&] {
    const auto driver = start_device();
    spw_stats stats;
    stats.size = sizeof stats;
    (void)spw_stats_get(0, &stats);
    SPW_CHECK(live_threads() == 0 && pages_in(folder).empty());
  });
}

TEST(Live, OffMeansOff) {
  const Folder folder;
  in_child(environment(folder, ",live:off"), [&] {
    const auto driver = start_device();
    void* block = nullptr;
    SPW_CHECK(spw_alloc(kMiB, 0, nullptr, &block) == SPW_OK);
    SPW_CHECK(live_threads() == 0 && pages_in(folder).empty());
  });
}

TEST(Live, AFolderThatDoesNotServeDisturbsNobody) {
  in_child({{"SPILLWAY_CONF", "live_dir:/proc/none"}}, [&] {
    const auto driver = start_device();
    void* block = nullptr;
    SPW_CHECK(spw_alloc(kMiB, 0, nullptr, &block) == SPW_OK);
    SPW_CHECK(live_threads() == 0 && spw_free(block) == SPW_OK);
  });
}

TEST(Live, IsReadableWhileTheProgramIsStopped) {
  const Folder folder;
  Program program(folder, 7);
  ASSERT_TRUE(program.page(folder, 7).has_value());
  program.send(SIGSTOP);
  EXPECT_TRUE(eventually([&] { return pages_in(folder).front().life == LiveLife::kStopped; }));
  EXPECT_GE(allocated(pages_in(folder).front()), static_cast<int64_t>(7 * kMiB));
  program.send(SIGCONT);
  EXPECT_TRUE(eventually([&] { return pages_in(folder).front().life == LiveLife::kRunning; }));
}

TEST(Live, KeepsTheLastStateOfWhatWasKilled) {
  const Folder folder;
  Program program(folder, 9);
  const auto before = program.page(folder, 9);
  ASSERT_TRUE(before.has_value());
  program.end();
  const std::vector<LiveReading> pages = pages_in(folder);
  ASSERT_THAT(pages, SizeIs(1));
  EXPECT_EQ(pages.front().life, LiveLife::kEnded);
  EXPECT_EQ(allocated(pages.front()), allocated(*before));
}

// Killed at random moments, most of them within a write: a state is there every time.
TEST(Live, EveryDeathLeavesAState) {
  const int rounds = lacks_controls() ? 5 : 20;  // each makes a context
  for (int round = 0; round < rounds; ++round) {
    const Folder folder;
    Program program(folder, 3);
    ASSERT_TRUE(program.page(folder, 3).has_value());
    std::this_thread::sleep_for(std::chrono::microseconds(137 * round));
    program.end();
    ASSERT_THAT(pages_in(folder), SizeIs(1));
    EXPECT_GE(allocated(pages_in(folder).front()), static_cast<int64_t>(3 * kMiB));
  }
}

TEST(Live, TwoProcessesAreTwoPages) {
  const Folder folder;
  Program first(folder, 11);
  Program second(folder, 13);
  ASSERT_TRUE(first.page(folder, 11).has_value());
  ASSERT_TRUE(second.page(folder, 13).has_value());
  EXPECT_THAT(pages_in(folder), SizeIs(2));
}

// A child of fork neither writes to its parent's page nor removes it, nor hangs in its exit.
TEST(Live, ChildrenOfForkLeaveThePageAlone) {
  const Folder folder;
  in_child(environment(folder), [&] {
    const auto driver = start_device();
    void* block = nullptr;
    SPW_CHECK(spw_alloc(kMiB, 0, nullptr, &block) == SPW_OK);
    SPW_CHECK(eventually([&] { return pages_in(folder).size() == 1; }));
    for (int i = 0; i < 50; ++i) {
      const pid_t child = fork();
      if (child == 0) std::exit(live_threads() == 0 ? 0 : 1);
      int status = 0;
      SPW_CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    const auto is_ours = [&](int64_t since) {
      const std::vector<LiveReading> pages = pages_in(folder);
      return pages.size() == 1 && pages.front().process.pid == getpid() && pages.front().written_ns > since;
    };
    SPW_CHECK(is_ours(0));
    SPW_CHECK(eventually([&, since = pages_in(folder).front().written_ns] { return is_ours(since); }));
  });
}

}  // namespace
}  // namespace spillway::test
