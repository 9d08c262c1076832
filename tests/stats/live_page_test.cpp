// Live pages: what is written is read, whole or not at all, and a page that is none harms nobody.
#include "stats/live_page.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "stats/live_reader.h"
#include "tests/support/folder.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;
using test::Folder;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

std::string of_user(const Folder& folder) {
  return folder.file("spillway-" + std::to_string(geteuid()));
}

const LivePage::Description kDescription{"train \x1b[31m", "0.1.0", 3, 1'000'000'000};

std::unique_ptr<LiveState> state_of(int64_t number, size_t devices = 1) {
  auto state = std::make_unique<LiveState>();
  state->time_ns = number;
  state->steady_ns = 1'000'000'000 * number;
  state->devices = devices;
  for (size_t i = 0; i < devices; ++i) {
    LiveDevice& device = state->device[i];
    device.ordinal = static_cast<int64_t>(i);
    device.stats.allocation.all.allocated = 10 * number;
    device.stats.driver_calls.mem_free = number;  // the last member
  }
  return state;
}

// A page with some states in it, as another process' reader finds it.
struct Page {
  Folder folder;
  LivePage page;
  explicit Page(int states = 0) {
    EXPECT_TRUE(page.open(folder.path(), kDescription).ok());
    for (int i = 1; i <= states; ++i) page.write(*state_of(i));
  }
  template <typename Value>
  void poke(size_t offset, Value value) const {
    const int file = open(page.path().c_str(), O_WRONLY);
    ASSERT_EQ(pwrite(file, &value, sizeof value, static_cast<off_t>(offset)),
              static_cast<ssize_t>(sizeof value));
    close(file);
  }
};

constexpr size_t slot_offset(size_t index) {
  return offsetof(LiveFile, slots) + index * sizeof(LiveFile::Slot);
}

TEST(LivePage, IsReadAsWritten) {
  const Page written(2);
  const Result<LiveReading> read = read_live_page(written.page.path());
  ASSERT_TRUE(read.ok()) << read.status().text();
  EXPECT_EQ(read.value().process.pid, getpid());
  EXPECT_EQ(read.value().life, LiveLife::kRunning);
  EXPECT_EQ(read.value().rank, 3);
  EXPECT_EQ(read.value().written_ns, 2);
  EXPECT_EQ(read.value().apart_ns, 1'000'000'000);
  ASSERT_THAT(read.value().devices, SizeIs(1));
  const LiveRow& row = read.value().devices.front();
  EXPECT_EQ(row.now.stats.driver_calls.mem_free, 2);
  EXPECT_EQ(row.now.stats.allocation.all.allocated - row.before.stats.allocation.all.allocated, 10);
  // Nothing of a page can speak to the terminal.
  EXPECT_EQ(read.value().program, "train ?[31m");
}

TEST(LivePage, OnlyItsUserMayReadIt) {
  const Page written(1);
  struct stat found {};
  ASSERT_EQ(stat(written.page.path().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600U);
  ASSERT_EQ(stat(of_user(written.folder).c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700U);
}

TEST(LivePage, AnotherUsersPageIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs a second user";
  const Page written(1);
  // Even where the folders let him through.
  chmod(written.folder.path().c_str(), 0755);
  chmod(of_user(written.folder).c_str(), 0755);
  chmod(written.page.path().c_str(), 0644);
  const pid_t other = fork();
  if (other == 0) {
    if (seteuid(65534) != 0) _exit(2);
    const Result<LiveReading> read = read_live_page(written.page.path());
    const bool is_refused =
        !read.ok() && read.status().text().find("another user's page") != std::string::npos;
    _exit(is_refused && list_live_pages(written.folder.path()).pages.empty() ? 0 : 1);
  }
  int status = 0;
  waitpid(other, &status, 0);
  EXPECT_EQ(status, 0);
  const Result<LiveReading> read = read_live_page(written.page.path());
  ASSERT_FALSE(read.ok());
  EXPECT_THAT(read.status().text(), HasSubstr("may be read by others"));
}

TEST(LivePage, AFolderThatOthersMayEnterIsNotUsed) {
  const Folder folder;
  ASSERT_EQ(mkdir(of_user(folder).c_str(), 0700), 0);
  ASSERT_EQ(chmod(of_user(folder).c_str(), 0777), 0);
  LivePage page;
  EXPECT_THAT(page.open(folder.path(), kDescription).text(), HasSubstr("only this user may enter"));
  fs::remove_all(of_user(folder));
  fs::create_directory_symlink("/tmp", of_user(folder));
  EXPECT_FALSE(page.open(folder.path(), kDescription).ok());
  EXPECT_FALSE(page.open(folder.path() + "/none", kDescription).ok());
}

// The writer died in the middle of a slot: the state before it is what is left.
TEST(LivePage, ATornSlotLeavesTheStateBefore) {
  const Page written(4);
  written.poke<uint64_t>(slot_offset(1), 9);
  const Result<LiveReading> read = read_live_page(written.page.path());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read.value().written_ns, 3);
  EXPECT_EQ(read.value().apart_ns, 0);
}

TEST(LivePage, BeforeTheFirstStateThereIsNone) {
  const Page written(1);
  const Result<LiveReading> read = read_live_page(written.page.path());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read.value().apart_ns, 0);
}

TEST(LivePage, NothingWasWrittenYet) {
  const Page written(0);
  EXPECT_EQ(read_live_page(written.page.path()).status().code(), SPW_ERROR_INVALID_STATE);
  EXPECT_THAT(list_live_pages(written.folder.path()).problems, IsEmpty());
}

TEST(LivePage, AnotherVersionSaysSo) {
  const Page written(1);
  written.poke<uint32_t>(offsetof(LiveHeader, version), kLivePageVersion + 1);
  const LiveListing listing = list_live_pages(written.folder.path());
  EXPECT_THAT(listing.pages, IsEmpty());
  ASSERT_THAT(listing.problems, SizeIs(1));
  EXPECT_THAT(listing.problems.front(), HasSubstr("another version"));
}

TEST(LivePage, APageOfAnEndedProcessIsKnownAndRemoved) {
  const Page written(1);
  written.poke<uint64_t>(offsetof(LiveHeader, start_ticks), 1);  // this process id, an earlier process
  EXPECT_EQ(read_live_page(written.page.path()).value().life, LiveLife::kEnded);
  remove_dead_pages(of_user(written.folder), INT64_MAX - 1);
  EXPECT_TRUE(fs::exists(written.page.path()));
  remove_dead_pages(of_user(written.folder), 1);
  EXPECT_FALSE(fs::exists(written.page.path()));
}

// Where many are killed, the next to start must not look through all of them.
TEST(LivePage, OnlySoManyEndedProcessesAreKept) {
  const Page written(1);
  written.poke<uint64_t>(offsetof(LiveHeader, start_ticks), 1);
  for (size_t i = 0; i < kMostDeadPages + 10; ++i) {
    fs::copy_file(written.page.path(), written.page.path() + std::to_string(i) + ".page");
  }
  remove_dead_pages(of_user(written.folder), INT64_MAX - 1);
  const auto left = std::distance(fs::directory_iterator(of_user(written.folder)), fs::directory_iterator());
  EXPECT_EQ(static_cast<size_t>(left), kMostDeadPages);
}

// Containers that share the folder leave pages of processes that nobody outside can ask after.
TEST(LivePage, WhoIsSilentElsewhereHasEnded) {
  const Page written(1);
  written.poke<uint64_t>(offsetof(LiveHeader, pid_namespace), 1);
  remove_dead_pages(of_user(written.folder), 1);
  EXPECT_TRUE(fs::exists(written.page.path()));  // it has just written
  EXPECT_EQ(read_live_page(written.page.path())->life, LiveLife::kElsewhere);
  constexpr size_t kTime = offsetof(LiveFile::Slot, state) + offsetof(LiveState, time_ns);
  for (const size_t slot : {offsetof(LiveFile, slots), offsetof(LiveFile, slots) + sizeof(LiveFile::Slot)}) {
    written.poke<int64_t>(slot + kTime, 1);
  }
  written.poke<int64_t>(offsetof(LiveHeader, began_ns), 1);
  EXPECT_EQ(read_live_page(written.page.path())->life, LiveLife::kEnded);
  remove_dead_pages(of_user(written.folder), INT64_MAX - 1);
  EXPECT_TRUE(fs::exists(written.page.path()));
  remove_dead_pages(of_user(written.folder), 1);
  EXPECT_FALSE(fs::exists(written.page.path()));
}

TEST(LivePage, ALivingProcessKeepsItsPage) {
  const Page written(1);
  remove_dead_pages(of_user(written.folder), 0);
  EXPECT_TRUE(fs::exists(written.page.path()));
}

TEST(LivePage, IsGoneWithItsOwner) {
  std::string path;
  const Folder folder;
  {
    LivePage page;
    ASSERT_TRUE(page.open(folder.path(), kDescription).ok());
    path = page.path();
    EXPECT_TRUE(fs::exists(path));
  }
  EXPECT_FALSE(fs::exists(path));
}

// Every state that is read was written as such, however the two meet.
TEST(LivePage, NoReaderSeesHalfAState) {
  const Page written(1);
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    auto& page = const_cast<LivePage&>(written.page);
    for (int64_t i = 2; !is_over.load(); ++i) page.write(*state_of(i, 1 + static_cast<size_t>(i) % 8));
  });
  int seen = 0;
  for (int i = 0; i < 2000; ++i) {
    const Result<LiveReading> read = read_live_page(written.page.path());
    if (!read.ok()) continue;
    ++seen;
    const int64_t number = read.value().written_ns;
    EXPECT_EQ(read.value().devices.size(), number == 1 ? 1U : 1U + static_cast<size_t>(number) % 8);
    for (const LiveRow& row : read.value().devices) {
      EXPECT_EQ(row.now.stats.allocation.all.allocated, 10 * number);
      EXPECT_EQ(row.now.stats.driver_calls.mem_free, number);
    }
  }
  is_over = true;
  writer.join();
  EXPECT_GT(seen, 0);
}

// ---- Hostile pages

TEST(LivePage, AStateThatIsRefusedIsNotTheOneBefore) {
  const Page written(2);
  written.poke<uint64_t>(slot_offset(0) + offsetof(LiveFile::Slot, state) + offsetof(LiveState, devices),
                         1 << 20);
  written.poke<uint64_t>(slot_offset(1), 2);  // as if it were the first
  const Result<LiveReading> read = read_live_page(written.page.path());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read.value().written_ns, 2);
  EXPECT_EQ(read.value().apart_ns, 0);
}

TEST(LivePage, WhatIsNoPageIsRefused) {
  const Folder folder;
  ASSERT_EQ(mkdir(of_user(folder).c_str(), 0700), 0);
  const auto path = [&](const char* name) { return of_user(folder) + "/" + name; };
  ASSERT_EQ(mkfifo(path("1-1.page").c_str(), 0600), 0);
  fs::create_symlink("/etc/passwd", path("2-1.page"));
  fs::create_directory(path("3-1.page"));
  for (const char* name : {"4-1.page", "5-\x1b[2J.page"}) {
    std::ofstream(path(name)) << (name[0] == '4' ? "" : "SPWLIVE");
    fs::permissions(path(name), fs::perms::owner_read | fs::perms::owner_write);
  }
  const LiveListing listing = list_live_pages(folder.path());
  EXPECT_THAT(listing.pages, IsEmpty());
  EXPECT_THAT(listing.problems, SizeIs(4));  // all but the link, which cannot be opened
  EXPECT_THAT(listing.problems, Each(Not(HasSubstr("\x1b"))));
}

}  // namespace
}  // namespace spillway
