// spillway plot and spillway convert, as a user runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/run_command.h"

namespace spillway::test {
namespace {

using testing::HasSubstr;

class TraceCommandTest : public testing::Test {
 protected:
  TraceCommandTest() {
    std::string name = std::filesystem::temp_directory_path() / "trace_command_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~TraceCommandTest() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& name) const { return folder_ / name; }

  std::filesystem::path folder_;
};

TEST_F(TraceCommandTest, PlotsASnapshotAndItsConversionAlike) {
  const std::string trace = file("a.zst");
  ASSERT_EQ(run_command({"convert", SPILLWAY_EXAMPLE_TRACE, trace}).code, 0);
  std::vector<nlohmann::json> shown;
  for (const std::string& path : {std::string(SPILLWAY_EXAMPLE_TRACE), trace}) {
    const CommandResult plotted =
        run_command({"plot", path, "--output", file("a.png"), "--output", file("a.svg"), "--json"});
    ASSERT_EQ(plotted.code, 0) << plotted.err;
    shown.push_back(nlohmann::json::parse(plotted.out));
    EXPECT_GT(std::filesystem::file_size(file("a.png")), 1000u);
    EXPECT_GT(std::filesystem::file_size(file("a.svg")), 1000u);
  }
  EXPECT_EQ(shown[0], shown[1]);
  EXPECT_FALSE(shown[0]["layers"].empty());
}

TEST_F(TraceCommandTest, ReplayOfAConversionIsTheSame) {
  ASSERT_EQ(run_command({"convert", SPILLWAY_EXAMPLE_TRACE, file("a.zst")}).code, 0);
  ASSERT_EQ(run_command({"convert", file("a.zst"), file("b.pickle")}).code, 0);
  std::vector<uint64_t> peaks;
  for (const std::string& path : {std::string(SPILLWAY_EXAMPLE_TRACE), file("a.zst"), file("b.pickle")}) {
    const CommandResult replayed = run_command({"replay", path, "--json"});
    ASSERT_EQ(replayed.code, 0) << replayed.err;
    const nlohmann::json row = nlohmann::json::parse(replayed.out).front();
    peaks.push_back(row["peak_live_bytes"].get<uint64_t>());
    peaks.push_back(row["events"].get<uint64_t>());
  }
  EXPECT_EQ(peaks, (std::vector<uint64_t>{peaks[0], peaks[1], peaks[0], peaks[1], peaks[0], peaks[1]}));
}

TEST_F(TraceCommandTest, MistakesAreOneLineAndWriteNothing) {
  std::ofstream(file("empty")).flush();
  std::ofstream(file("text")) << "no trace";
  const std::string out = file("out.svg");
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"plot", file("missing"), "--output", out}, "missing: No such file or directory"},
      {{"plot", file("empty"), "--output", out}, "empty: the file is empty"},
      {{"plot", file("text"), "--output", out}, "this is not a pickle"},
      {{"plot", SPILLWAY_EXAMPLE_TRACE, "--output", file("out.jpg")},
       "allowed: a name that ends in .svg or .png"},
      {{"plot", SPILLWAY_EXAMPLE_TRACE, "--output", out, "--limit", "much"}, "allowed: a size such as 24GiB"},
      {{"plot", SPILLWAY_EXAMPLE_TRACE, "--output", out, "--device", "5"}, "device"},
      {{"convert", SPILLWAY_EXAMPLE_TRACE, out}, "allowed: a name that ends in .pickle"},
      {{"convert", file("text"), file("out.zst")}, "this is not a pickle"},
      {{"convert", SPILLWAY_EXAMPLE_TRACE, file("no/such/folder.zst")}, "No such file or directory"}};
  for (const auto& [args, what] : cases) {
    const CommandResult result = run_command(args);
    EXPECT_EQ(result.code, 1) << what;
    EXPECT_EQ(result.error_lines(), 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr(what));
    EXPECT_EQ(result.out, "");
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 2);
}

}  // namespace
}  // namespace spillway::test
