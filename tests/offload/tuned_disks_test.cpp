// What was found for a disk is found again, and a damaged file counts as none.
#include "offload/io/tuned_disks.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/support/folder.h"

namespace spillway::test {
namespace {

class TunedDisksTest : public testing::Test {
 protected:
  TunedDisksTest() {
    found_.block_bytes = 4 << 20;
    found_.depth = 8;
  }

  const Folder folder_;
  const std::string file_ = folder_.file("cache/spillway/disks.json");
  IoOptions found_;
};

TEST_F(TunedDisksTest, IsFoundAgainForTheSameDiskAndUse) {
  const TunedDisks disks(file_);
  EXPECT_FALSE(disks.find(folder_.path(), {}, true).has_value());
  ASSERT_TRUE(disks.keep(folder_.path(), found_, true).ok());
  IoOptions options;
  options.threads = 3;
  const auto again = TunedDisks(file_).find(folder_.path(), options, true);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->block_bytes, found_.block_bytes);
  EXPECT_EQ(again->depth, found_.depth);
  EXPECT_EQ(again->threads, 3u) << "the rest is as it was";
  EXPECT_FALSE(disks.find(folder_.path(), {}, false).has_value());
  EXPECT_FALSE(disks.find("/proc", {}, true).has_value()) << "another disk";
  EXPECT_FALSE(disks.find(folder_.file("none"), {}, true).has_value());
}

TEST_F(TunedDisksTest, OtherDisksStay) {
  const TunedDisks disks(file_);
  ASSERT_TRUE(disks.keep(folder_.path(), found_, true).ok());
  ASSERT_TRUE(disks.keep("/proc", IoOptions(), true).ok());
  EXPECT_TRUE(disks.find(folder_.path(), {}, true).has_value());
}

TEST_F(TunedDisksTest, WhatIsDamagedCountsAsNotThere) {
  const TunedDisks disks(file_);
  ASSERT_TRUE(disks.keep(folder_.path(), found_, true).ok());
  const std::string sound = folder_.read("cache/spillway/disks.json");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = sound;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  for (const std::string& damaged :
       {std::string(), std::string("[]"), std::string("{}"), std::string("{\"schema_version\": 1}"),
        sound.substr(0, sound.size() / 2), with("\"depth\": 8", "\"depth\": 0"),
        with("\"depth\": 8", "\"depth\": -8"), with("\"depth\": 8", "\"depth\": \"8\""),
        with("4194304", "99999999999999"), with("\"schema_version\": 1", "\"schema_version\": 2"),
        with("\"direct\": true", "\"direct\": 5")}) {
    folder_.write("cache/spillway/disks.json", damaged);
    EXPECT_FALSE(disks.find(folder_.path(), {}, true).has_value()) << damaged;
    ASSERT_TRUE(disks.keep(folder_.path(), found_, true).ok()) << damaged;
    EXPECT_TRUE(disks.find(folder_.path(), {}, true).has_value()) << damaged;
  }
  const auto files = std::filesystem::directory_iterator(std::filesystem::path(file_).parent_path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1) << "nothing half-written is left";
}

TEST_F(TunedDisksTest, APlaceThatDoesNotServeIsNamed) {
  folder_.write("cache", "a file");
  const Status status = TunedDisks(file_).keep(folder_.path(), found_, true);
  EXPECT_EQ(status.code(), SPW_ERROR_IO);
  EXPECT_NE(status.text().find(file_), std::string::npos) << status.text();
  EXPECT_EQ(TunedDisks("").keep(folder_.path(), found_, true).code(), SPW_ERROR_IO);
}

TEST_F(TunedDisksTest, LiesWhereCachesOfTheUserDo) {
  ASSERT_EQ(setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1), 0);
  EXPECT_EQ(TunedDisks().path(), folder_.file("spillway/disks.json"));
  ASSERT_EQ(setenv("XDG_CACHE_HOME", "not/absolute", 1), 0);
  ASSERT_EQ(setenv("HOME", "/home/someone", 1), 0);
  EXPECT_EQ(TunedDisks().path(), "/home/someone/.cache/spillway/disks.json");
}

}  // namespace
}  // namespace spillway::test
