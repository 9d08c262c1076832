// What may be written to a directory in a day is shared by all who write there, and outlives them.
#include "offload/io/daily_writes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/folder.h"

namespace spillway::test {
namespace {

constexpr int64_t kDay = 20000;

bool claims(DailyWrites& writes, uint64_t own, uint64_t more, uint64_t most, int64_t day = kDay) {
  const Result<DailyWrites::Answer> answer = writes.claim(day, own, more, most);
  EXPECT_TRUE(answer.ok()) << answer.status().text();
  return answer.ok() && answer.value().is_granted;
}

// A file of this day with such a number of bytes.
std::string written(const std::string& bytes) {
  return fmt::format("{:>20} {:>20}\n", kDay, bytes);
}

TEST(DailyWrites, AllTogetherStayBelowTheBound) {
  const Folder folder;
  DailyWrites first(folder.path());
  DailyWrites second(folder.path());
  EXPECT_TRUE(claims(first, 0, 60, 100));
  EXPECT_TRUE(claims(second, 0, 40, 100));
  EXPECT_FALSE(claims(second, 40, 1, 100));
  // The first had planned more than it wrote.
  EXPECT_TRUE(claims(first, 10, 0, 100));
  EXPECT_TRUE(claims(second, 40, 50, 100));
  EXPECT_FALSE(claims(first, 10, 1, 100));
  EXPECT_FALSE(claims(first, 10, UINT64_MAX, 100));
}

TEST(DailyWrites, WhoComesLaterFindsWhatWasWritten) {
  const Folder folder;
  {
    DailyWrites writes(folder.path());
    EXPECT_TRUE(claims(writes, 0, 90, 100));
  }
  DailyWrites writes(folder.path());
  EXPECT_FALSE(claims(writes, 0, 11, 100));
  EXPECT_EQ(writes.claim(kDay, 0, 10, 100).value().others_bytes, 90u);
  EXPECT_FALSE(claims(writes, 10, 1, 100));
}

TEST(DailyWrites, ADayIsForgottenByTheNext) {
  const Folder folder;
  DailyWrites first(folder.path());
  DailyWrites second(folder.path());
  EXPECT_TRUE(claims(first, 0, 100, 100));
  EXPECT_TRUE(claims(second, 0, 100, 100, kDay + 1));
  EXPECT_FALSE(claims(first, 0, 1, 100, kDay + 1));
}

TEST(DailyWrites, ADamagedFileCountsAsNone) {
  for (const std::string& text : {std::string(), std::string("x"), std::string(42, '\0'),
                                  std::string(100, '9'), written("-1"), written("18446744073709551000")}) {
    const Folder folder;
    folder.write(DailyWrites::kName, text);
    DailyWrites writes(folder.path());
    EXPECT_TRUE(claims(writes, 0, 100, 100)) << text;
    DailyWrites other(folder.path());
    EXPECT_FALSE(claims(other, 0, 1, 100)) << text;
  }
}

TEST(DailyWrites, WhatCannotBeWrittenIsAnError) {
  const Folder folder;
  DailyWrites writes(folder.path());
  std::filesystem::create_directory(writes.path());
  EXPECT_EQ(writes.claim(kDay, 0, 1, 100).status().code(), SPW_ERROR_IO);
  DailyWrites nowhere(folder.path() + "/missing");
  EXPECT_EQ(nowhere.claim(kDay, 0, 1, 100).status().code(), SPW_ERROR_IO);
}

TEST(DailyWrites, TheProgramMayGoElsewhere) {
  const Folder folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  DailyWrites writes(".");
  std::filesystem::current_path(before);
  EXPECT_TRUE(claims(writes, 0, 60, 100));
  DailyWrites other(folder.path());
  EXPECT_FALSE(claims(other, 0, 60, 100));
}

TEST(DailyWrites, ProcessesThatClaimAtOnceGetNoMoreThanThereIs) {
  constexpr int kProcesses = 4;
  constexpr int kClaims = 200;
  constexpr uint64_t kMost = 300;
  const Folder folder;
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    DailyWrites writes(folder.path());
    uint64_t own = 0;
    for (int claim = 0; claim < kClaims; ++claim) {
      const Result<DailyWrites::Answer> answer = writes.claim(kDay, own, 1, kMost);
      if (!answer.ok()) _exit(255);
      own += answer.value().is_granted ? 1 : 0;
    }
    _exit(static_cast<int>(own));
  }
  uint64_t all = 0;
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) != 255);
    all += static_cast<uint64_t>(WEXITSTATUS(status));
  }
  EXPECT_EQ(all, kMost);
}

}  // namespace
}  // namespace spillway::test
