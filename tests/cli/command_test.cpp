// The command line of `spillway` and of `spillway replay`, by running it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/run_command.h"
#include "tests/cli/snapshot_writer.h"

namespace spillway {
namespace {

using nlohmann::json;
using test::add_free;
using test::CommandResult;
using test::Event;
using test::run_command;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kMiB = 1 << 20;

class CommandTest : public ::testing::Test {
 protected:
  CommandTest() {
    std::string name = (std::filesystem::temp_directory_path() / "spillway-cli-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~CommandTest() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& data) const {
    const std::string path = folder_ / name;
    std::ofstream(path, std::ios::binary) << data;
    return path;
  }

  // 100 MiB live at the start, three more blocks of which two are live at once.
  std::string small_trace() const {
    std::vector<Event> events = {{"alloc", 1 << 30, 40 * kMiB}, {"alloc", uint64_t{2} << 30, 60 * kMiB}};
    add_free(events, 1 << 30, 40 * kMiB);
    events.push_back({"alloc", uint64_t{3} << 30, 30 * kMiB});
    add_free(events, uint64_t{2} << 30, 60 * kMiB);
    return write("small.pickle",
                 test::snapshot({events}, {{512, 100 * kMiB}, {uint64_t{3} << 30, 30 * kMiB}}));
  }

  std::filesystem::path folder_;
};

void expect_one_line_error(const CommandResult& result, const std::string& part) {
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_EQ(result.error_lines(), 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr(part));
  EXPECT_THAT(result.out, IsEmpty());
}

TEST_F(CommandTest, WrongUseIsOneLineAndExitCodeOne) {
  expect_one_line_error(run_command({}), "subcommand is required");
  expect_one_line_error(run_command({"no-such-command"}), "no command 'no-such-command'; allowed: replay");
  expect_one_line_error(run_command({"replay"}), "TRACE");
  expect_one_line_error(run_command({"replay", "--frobnicate", "x"}), "--frobnicate");
  expect_one_line_error(run_command({"replay", "x", "--allocator", "mine"}), "mine");
  expect_one_line_error(run_command({"replay", "x", "--completion", "never"}), "never");
  expect_one_line_error(run_command({"replay", "x", "--repeat", "0"}), "--repeat");
  expect_one_line_error(run_command({"replay", "x", "--repeat", "many"}), "many");
  for (const char* capacity : {"banana", "0", "-1GiB", "0%", "101x%", "", "1e3%"}) {
    expect_one_line_error(run_command({"replay", "x", std::string("--capacity=") + capacity}), "--capacity");
  }
}

TEST_F(CommandTest, ABadFileIsNamedInOneLine) {
  expect_one_line_error(run_command({"replay", "/no/such/file"}), "/no/such/file: No such file");
  expect_one_line_error(run_command({"replay", folder_.string()}), "is a folder");
  expect_one_line_error(run_command({"replay", write("text", "hello\n")}),
                        "text: at byte 0: this is not a pickle");
  expect_one_line_error(run_command({"replay", write("line\nbreak", "hello\n")}), "not a pickle");
  expect_one_line_error(run_command({"replay", write("evil",
                                                     "\x80\x02"
                                                     "cos\nsystem\n.")}),
                        "GLOBAL would run code");
  expect_one_line_error(run_command({"replay", small_trace(), "--device", "3"}),
                        "device 3 is not in the snapshot");
}

TEST_F(CommandTest, HelpAndVersionGoToStdout) {
  EXPECT_THAT(run_command({"--help"}).out, HasSubstr("replay"));
  EXPECT_THAT(run_command({"replay", "--help"}).out, HasSubstr("--capacity"));
  EXPECT_THAT(run_command({"--version"}).out, HasSubstr("spillway "));
  EXPECT_EQ(run_command({"--help"}).code, 0);
  EXPECT_EQ(run_command({"--help"}, {.out_path = "/dev/full"}).code, 1);
}

}  // namespace
}  // namespace spillway
