// Files appear whole, and what killed writers left goes.
#include "stats/whole_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace spillway {
namespace {

using testing::HasSubstr;

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "spillway-dump-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder for files");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  size_t count() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::filesystem::path path_;
};

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(WholeFile, ReplacesTheOldOneAndLeavesNothingElse) {
  const Folder folder;
  const std::string path = folder.file("dump.json");
  ASSERT_TRUE(write_whole_file(path, "old").ok());
  ASSERT_TRUE(write_whole_file(path, "new and longer").ok());
  EXPECT_EQ(text_of(path), "new and longer");
  EXPECT_EQ(folder.count(), 1U);
}

TEST(WholeFile, FailsInOneLineAndLeavesNothing) {
  const Folder folder;
  const Status status = write_whole_file(folder.file("missing/dump.json"), "text");
  EXPECT_EQ(status.code(), SPW_ERROR_IO);
  EXPECT_THAT(status.text(), HasSubstr("missing/dump.json"));
  EXPECT_EQ(status.text().find('\n'), std::string::npos);
  EXPECT_EQ(folder.count(), 0U);

  // A folder cannot be replaced by a file: the text is written, then cannot be put in its place.
  std::filesystem::create_directories(folder.file("taken/inside"));
  EXPECT_EQ(write_whole_file(folder.file("taken"), "text").code(), SPW_ERROR_IO);
  EXPECT_EQ(folder.count(), 1U);
}

TEST(WholeFile, LeavesDevicesAlone) {
  const Status status = write_whole_file("/dev/null", "text");
  EXPECT_EQ(status.code(), SPW_ERROR_IO);
  EXPECT_THAT(status.text(), HasSubstr("/dev/null: cannot write it: it is not a regular file"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(WholeFile, RemovesWhatAKilledProcessLeftAndNothingElse) {
  const Folder folder;
  const auto touch = [&](const std::string& name) { std::ofstream(folder.file(name)) << "half"; };
  touch(".dump.json.1.0.spillway-tmp");
  touch(".other.2.0.spillway-tmp");
  touch(".hidden");
  touch("mine.spillway-tmp");
  // Somebody is writing this one.
  touch(".busy.3.0.spillway-tmp");
  const int busy = open(folder.file(".busy.3.0.spillway-tmp").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(busy, 0);
  ASSERT_EQ(flock(busy, LOCK_EX), 0);
  ASSERT_TRUE(write_whole_file(folder.file("dump.json"), "whole").ok());
  EXPECT_EQ(folder.count(), 4U);
  EXPECT_FALSE(std::filesystem::exists(folder.file(".dump.json.1.0.spillway-tmp")));
  EXPECT_FALSE(std::filesystem::exists(folder.file(".other.2.0.spillway-tmp")));
  close(busy);
}

TEST(WholeFile, TakesTheLongestNamesThereAre) {
  const Folder folder;
  const std::string name(255, 'x');
  EXPECT_TRUE(write_whole_file(folder.file(name), "text").ok());
}

}  // namespace
}  // namespace spillway
