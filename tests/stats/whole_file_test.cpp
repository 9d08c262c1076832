// Files appear whole, and what killed writers left goes.
#include "stats/whole_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/support/folder.h"

namespace spillway {
namespace {

using test::Folder;
using testing::HasSubstr;

TEST(WholeFile, ReplacesTheOldOneAndLeavesNothingElse) {
  const Folder folder;
  const std::string path = folder.file("dump.json");
  ASSERT_TRUE(write_whole_file(path, "old").ok());
  ASSERT_TRUE(write_whole_file(path, "new and longer").ok());
  EXPECT_EQ(folder.read("dump.json"), "new and longer");
  EXPECT_EQ(folder.names().size(), 1U);
}

TEST(WholeFile, FailsInOneLineAndLeavesNothing) {
  const Folder folder;
  const Status status = write_whole_file(folder.file("missing/dump.json"), "text");
  EXPECT_EQ(status.code(), SPW_ERROR_IO);
  EXPECT_THAT(status.text(), HasSubstr("missing/dump.json"));
  EXPECT_EQ(status.text().find('\n'), std::string::npos);
  EXPECT_EQ(folder.names().size(), 0U);

  // A folder cannot be replaced by a file: the text is written, then cannot be put in its place.
  std::filesystem::create_directories(folder.file("taken/inside"));
  EXPECT_EQ(write_whole_file(folder.file("taken"), "text").code(), SPW_ERROR_IO);
  EXPECT_EQ(folder.names().size(), 1U);
}

TEST(WholeFile, LeavesDevicesAlone) {
  const Status status = write_whole_file("/dev/null", "text");
  EXPECT_EQ(status.code(), SPW_ERROR_IO);
  EXPECT_THAT(status.text(), HasSubstr("/dev/null: cannot write it: it is not a regular file"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(WholeFile, RemovesWhatAKilledProcessLeftAndNothingElse) {
  const Folder folder;
  folder.write(".dump.json.1.0.spillway-tmp", "half");
  folder.write(".other.2.0.spillway-tmp", "half");
  folder.write(".hidden", "half");
  folder.write("mine.spillway-tmp", "half");
  // Somebody is writing this one.
  folder.write(".busy.3.0.spillway-tmp", "half");
  const int busy = open(folder.file(".busy.3.0.spillway-tmp").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(busy, 0);
  ASSERT_EQ(flock(busy, LOCK_EX), 0);
  ASSERT_TRUE(write_whole_file(folder.file("dump.json"), "whole").ok());
  EXPECT_EQ(folder.names().size(), 4U);
  EXPECT_FALSE(folder.has(".dump.json.1.0.spillway-tmp"));
  EXPECT_FALSE(folder.has(".other.2.0.spillway-tmp"));
  close(busy);
}

TEST(WholeFile, TakesTheLongestNamesThereAre) {
  const Folder folder;
  const std::string name(255, 'x');
  EXPECT_TRUE(write_whole_file(folder.file(name), "text").ok());
}

}  // namespace
}  // namespace spillway
