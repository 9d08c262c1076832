// spillway plot and spillway convert, as a user runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/command_folder.h"

namespace spillway::test {
namespace {

using testing::HasSubstr;

class TraceCommandTest : public CommandFolder {};

TEST_F(TraceCommandTest, PlotsASnapshotAndItsConversionAlike) {
  const std::string trace = path("a.zst");
  ASSERT_EQ(run_command({"convert", SPILLWAY_EXAMPLE_TRACE, trace}).code, 0);
  std::vector<nlohmann::json> shown;
  for (const std::string& from : {std::string(SPILLWAY_EXAMPLE_TRACE), trace}) {
    const CommandResult plotted =
        run_command({"plot", from, "--output", path("a.png"), "--output", path("a.svg"), "--json"});
    ASSERT_EQ(plotted.code, 0) << plotted.err;
    shown.push_back(nlohmann::json::parse(plotted.out));
    EXPECT_GT(std::filesystem::file_size(path("a.png")), 1000u);
    EXPECT_GT(std::filesystem::file_size(path("a.svg")), 1000u);
  }
  EXPECT_EQ(shown[0], shown[1]);
  EXPECT_FALSE(shown[0]["layers"].empty());
}

TEST_F(TraceCommandTest, ReplayOfAConversionIsTheSame) {
  ASSERT_EQ(run_command({"convert", SPILLWAY_EXAMPLE_TRACE, path("a.zst")}).code, 0);
  ASSERT_EQ(run_command({"convert", path("a.zst"), path("b.pickle")}).code, 0);
  std::vector<uint64_t> peaks;
  for (const std::string& from : {std::string(SPILLWAY_EXAMPLE_TRACE), path("a.zst"), path("b.pickle")}) {
    const CommandResult replayed = run_command({"replay", from, "--json"});
    ASSERT_EQ(replayed.code, 0) << replayed.err;
    const nlohmann::json row = nlohmann::json::parse(replayed.out).front();
    peaks.push_back(row["peak_live_bytes"].get<uint64_t>());
    peaks.push_back(row["events"].get<uint64_t>());
  }
  EXPECT_EQ(peaks, (std::vector<uint64_t>{peaks[0], peaks[1], peaks[0], peaks[1], peaks[0], peaks[1]}));
}

TEST_F(TraceCommandTest, ReportReadsATraceAsTheSnapshotThatItCameFrom) {
  const std::string trace = path("a.zst");
  ASSERT_EQ(run_command({"convert", SPILLWAY_EXAMPLE_TRACE, trace}).code, 0);
  const CommandResult compared = run_command({"diff", SPILLWAY_EXAMPLE_TRACE, trace, "--json"});
  ASSERT_EQ(compared.code, 0) << compared.err;
  const nlohmann::json live = nlohmann::json::parse(compared.out)["peaks"][1];
  EXPECT_EQ(live["before_bytes"], live["after_bytes"]);
  EXPECT_GT(live["after_bytes"], 0);
  ASSERT_EQ(run_command({"report", trace, "--json", "--output", path("report.json")}).code, 0);
  EXPECT_EQ(nlohmann::json::parse(read("report.json"))["shown"]["format"], "spillway_trace");
  write("cut.zst", CommandFolder::read("a.zst").substr(0, 100));
  expect_complaint({"report", path("cut.zst")}, "cut.zst: ");
}

TEST_F(TraceCommandTest, MistakesAreOneLineAndWriteNothing) {
  write("empty", "");
  write("text", "no trace");
  const std::string out = path("out.svg");
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"plot", path("missing"), "--output", out}, "missing: No such file or directory"},
      {{"plot", path("empty"), "--output", out}, "empty: the file is empty"},
      {{"plot", path("text"), "--output", out}, "this is not a pickle"},
      {{"plot", SPILLWAY_EXAMPLE_TRACE, "--output", path("out.jpg")},
       "allowed: a name that ends in .svg, .png or .json"},
      {{"plot", SPILLWAY_EXAMPLE_TRACE, "--output", out, "--limit", "much"}, "allowed: a size such as 24GiB"},
      {{"plot", SPILLWAY_EXAMPLE_TRACE, "--output", out, "--device", "5"}, "device"},
      {{"convert", SPILLWAY_EXAMPLE_TRACE, out}, "allowed: a name that ends in .pickle"},
      {{"convert", path("text"), path("out.zst")}, "this is not a pickle"},
      {{"convert", SPILLWAY_EXAMPLE_TRACE, path("no/such/folder.zst")}, "No such file or directory"}};
  for (const auto& [args, what] : cases) {
    const CommandResult result = run_command(args);
    EXPECT_EQ(result.code, 1) << what;
    EXPECT_EQ(result.error_lines(), 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr(what));
    EXPECT_EQ(result.out, "");
  }
  EXPECT_THAT(folder_.names(), testing::ElementsAre("empty", "text"));
}

}  // namespace
}  // namespace spillway::test
