#include "cli/trace/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdio>
#include <random>
#include <string>

#include "tests/support/folder.h"

namespace spillway {
namespace {

using ::testing::HasSubstr;

std::string gzip(const std::string& data) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, data.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  stream.avail_in = static_cast<uInt>(data.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

class FileTest : public ::testing::Test {
 protected:
  std::string write(const std::string& data) const { return folder_.write("data", data); }

  const test::Folder folder_;
};

TEST_F(FileTest, ReadsPlainAndPackedByContentNotByName) {
  EXPECT_EQ(read_file(write("plain")).value(), "plain");
  EXPECT_EQ(read_file(write(gzip("packed"))).value(), "packed");
  EXPECT_EQ(read_file(write("")).value(), "");
}

TEST_F(FileTest, NamesWhatItCannotRead) {
  EXPECT_THAT(read_file("/no/such/file").status().text(), HasSubstr("/no/such/file: No such file"));
  EXPECT_THAT(read_file(folder_.path()).status().text(), HasSubstr("is a folder"));
  EXPECT_THAT(read_file("/dev/zero").status().text(), HasSubstr("not a regular file"));
}

TEST_F(FileTest, ReadsSeveralArchivesInOneFileAndZeroPadding) {
  EXPECT_EQ(inflate_gzip(gzip("one ") + gzip("two")).value(), "one two");
  EXPECT_EQ(inflate_gzip(gzip("one") + std::string(512, '\0')).value(), "one");
}

TEST_F(FileTest, RefusesTruncatedAndDamagedArchives) {
  std::string data(4096, '\0');
  std::mt19937 random(1);
  for (char& c : data) c = static_cast<char>(random() % 16);
  const std::string packed = gzip(data);
  for (size_t length = 0; length < packed.size(); ++length) {
    const auto result = inflate_gzip(packed.substr(0, length));
    ASSERT_FALSE(result.ok()) << length;
    EXPECT_THAT(result.status().text(), HasSubstr("truncated"));
  }
  for (int round = 0; round < 2000; ++round) {
    std::string damaged = packed;
    damaged[random() % damaged.size()] ^= static_cast<char>(1 << random() % 8);
    const auto result = inflate_gzip(damaged);
    // A flip in the header's time or system byte changes nothing; any other is noticed.
    if (result.ok()) {
      EXPECT_EQ(result.value(), data);
    }
  }
}

TEST_F(FileTest, ABombIsNotUnpacked) {
  // 160 MiB of zeros in 160 kB: a thousand to one, which no snapshot reaches.
  const auto result = inflate_gzip(gzip(std::string(160 << 20, '\0')));
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.status().text(), HasSubstr("unpacks to more than"));
}

}  // namespace
}  // namespace spillway
