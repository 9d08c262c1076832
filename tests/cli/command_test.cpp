// The command line of `spillway` and of `spillway replay`, by running it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/command_folder.h"
#include "tests/support/snapshot_writer.h"

namespace spillway {
namespace {

using nlohmann::json;
using test::add_free;
using test::CommandResult;
using test::Event;
using test::run_command;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kMiB = 1 << 20;

class CommandTest : public test::CommandFolder {
 protected:
  // 100 MiB live at the start, three more blocks of which two are live at once.
  std::string small_trace() const {
    std::vector<Event> events = {{"alloc", 1 << 30, 40 * kMiB}, {"alloc", uint64_t{2} << 30, 60 * kMiB}};
    add_free(events, 1 << 30, 40 * kMiB);
    events.push_back({"alloc", uint64_t{3} << 30, 30 * kMiB});
    add_free(events, uint64_t{2} << 30, 60 * kMiB);
    return write("small.pickle",
                 test::snapshot({events}, {{512, 100 * kMiB}, {uint64_t{3} << 30, 30 * kMiB}}));
  }
};

void expect_one_line_error(const CommandResult& result, const std::string& part) {
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_EQ(result.error_lines(), 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr(part));
  EXPECT_THAT(result.out, IsEmpty());
}

TEST_F(CommandTest, WrongUseIsOneLineAndExitCodeOne) {
  expect_one_line_error(run_command({}), "which command?");
  expect_one_line_error(run_command({"no-such-command"}), "no command 'no-such-command'; allowed: run");
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
  expect_one_line_error(run_command({"replay", folder_.path()}), "is a folder");
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

json only_row(const CommandResult& result) {
  EXPECT_THAT(result.err, IsEmpty());
  const json rows = json::parse(result.out, nullptr, false);
  EXPECT_TRUE(rows.is_array() && rows.size() == 1) << result.out;
  return rows.is_array() && rows.size() == 1 ? rows[0] : json::object();
}

TEST_F(CommandTest, ReplayAnswersWithTheKeysOfItsContract) {
  const CommandResult result = run_command({"replay", small_trace(), "--json", "--repeat", "3"});
  EXPECT_EQ(result.code, 0);
  const json row = only_row(result);
  EXPECT_EQ(row.at("trace"), path("small.pickle"));
  EXPECT_EQ(row.at("events"), 5);
  EXPECT_EQ(row.at("peak_live_bytes"), 200 * kMiB);
  EXPECT_EQ(row.at("ooms"), 0);
  EXPECT_GE(row.at("peak_reserved_bytes"), row.at("peak_live_bytes"));
  EXPECT_GT(row.at("driver_calls"), 0);
  for (const char* key : {"steady_driver_calls_per_repeat", "host_waits", "stream_waits",
                          "steady_stream_waits_per_repeat", "virtual_driver_ns", "ns_per_event"}) {
    EXPECT_TRUE(row.at(key).is_number()) << key;
  }
  int64_t sum = 0;
  for (const auto& [kind, count] : row.at("driver_calls_by_kind").items()) sum += count.get<int64_t>();
  EXPECT_EQ(sum, row.at("driver_calls").get<int64_t>());
  EXPECT_FALSE(row.contains("min_capacity_bytes"));

  const json dear = only_row(run_command({"replay", small_trace(), "--json", "--costs", "dear"}));
  EXPECT_GT(dear.at("virtual_driver_ns").get<int64_t>(), row.at("virtual_driver_ns").get<int64_t>());
}

TEST_F(CommandTest, ReplayNeedsNoneOfTheMachinesDevices) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  const CommandResult result = run_command({"replay", small_trace(), "--json"});
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(result.code, 0) << result.err;
}

TEST_F(CommandTest, TheMinimumIsACapacityAtWhichItRunsAndBelowWhichItDoesNot) {
  const std::string trace = small_trace();
  const CommandResult result = run_command({"replay", trace, "--json", "--capacity", "min", "--jobs", "2"});
  EXPECT_EQ(result.code, 0);
  const json row = only_row(result);
  const int64_t minimum = row.at("min_capacity_bytes");
  EXPECT_LE(minimum, row.at("stall_free_capacity_bytes").get<int64_t>());
  EXPECT_NEAR(row.at("min_capacity_ratio").get<double>(), static_cast<double>(minimum) / (200.0 * kMiB),
              1e-9);
  EXPECT_EQ(run_command({"replay", trace, "--capacity", std::to_string(minimum)}).code, 0);
  EXPECT_EQ(run_command({"replay", trace, "--capacity", std::to_string(200 * kMiB - 2 * kMiB)}).code, 2);
}

TEST_F(CommandTest, RunningOutOfMemoryIsAnAnswerNotAnError) {
  const CommandResult result = run_command({"replay", small_trace(), "--json", "--capacity", "50%"});
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(only_row(result).at("ooms"), 1);
  const CommandResult text = run_command({"replay", small_trace(), "--capacity", "100MiB"});
  EXPECT_EQ(text.code, 2);
  EXPECT_THAT(text.out, HasSubstr("out of memory on 100.000 MiB"));
}

TEST_F(CommandTest, OneObjectForEachTrace) {
  const CommandResult result =
      run_command({"replay", small_trace(), small_trace(), "--json", "--completion", "run-ahead"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(json::parse(result.out).size(), 2u);
  // One bad file among good ones: nothing is answered.
  expect_one_line_error(run_command({"replay", small_trace(), "/no/such/file", "--json"}), "/no/such/file");
}

TEST_F(CommandTest, TheUsersOwnSettingsDoNotDisturbIt) {
  const std::string trace = small_trace();
  const json plain = only_row(run_command({"replay", trace, "--json"}));
  const std::string stats = path("stats-%p.json");
  const CommandResult disturbed =
      run_command({"replay", trace, "--json"}, {.environment = {{"SPILLWAY_CONF", "limit:1MiB,strict:true"},
                                                                {"SPILLWAY_SIM", "capacity:1MiB,banana"},
                                                                {"SPILLWAY_LIBCUDA", "/no/such/library"},
                                                                {"SPILLWAY_STATS", stats},
                                                                {"CUDA_VISIBLE_DEVICES", ""}}});
  EXPECT_EQ(disturbed.code, 0);
  const json row = only_row(disturbed);
  EXPECT_EQ(row.at("driver_calls"), plain.at("driver_calls"));
  EXPECT_EQ(row.at("peak_reserved_bytes"), plain.at("peak_reserved_bytes"));
  EXPECT_THAT(folder_.names(), ElementsAre("small.pickle"));
}

TEST_F(CommandTest, AnAnswerThatCannotBeWrittenIsAnError) {
  const std::string trace = small_trace();
  const CommandResult full = run_command({"replay", trace}, {.out_path = "/dev/full"});
  EXPECT_EQ(full.code, 1);
  EXPECT_EQ(full.error_lines(), 1);
  EXPECT_THAT(full.err, HasSubstr("stdout: No space left"));
  expect_one_line_error(run_command({"replay", trace, "--output", "/no/such/folder/file"}),
                        "/no/such/folder/file");
  expect_one_line_error(run_command({"replay", trace, "--output", "/dev/full"}), "/dev/full: No space left");
  const std::string answer = path("answer.json");
  const CommandResult written = run_command({"replay", trace, "--json", "--output", answer});
  EXPECT_EQ(written.code, 0);
  EXPECT_THAT(written.out, IsEmpty());
  EXPECT_EQ(json::parse(read("answer.json")).size(), 1u);
  EXPECT_THAT(folder_.names(), ElementsAre("answer.json", "small.pickle")) << "no temporary file";
}

TEST_F(CommandTest, TheExampleTraceOfTheRepositoryReplays) {
  const std::string trace = SPILLWAY_EXAMPLE_TRACE;
  const json row =
      only_row(run_command({"replay", trace, "--json", "--completion", "run-ahead", "--repeat", "2"}));
  EXPECT_EQ(row.at("ooms"), 0);
  EXPECT_GT(row.at("events"), 3000);
  EXPECT_EQ(row.at("host_waits"), 0);
}

}  // namespace
}  // namespace spillway
