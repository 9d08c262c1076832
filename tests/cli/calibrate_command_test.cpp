// `spillway calibrate` and what `spillway estimate` makes of its catalog and of dumps.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/command_folder.h"

namespace spillway {
namespace {

using nlohmann::json;
using test::CommandResult;
using test::run_command;
using ::testing::HasSubstr;

constexpr const char* kRun = R"(
[model]
model_type = "llama"
hidden_size = 512
intermediate_size = 2048
num_hidden_layers = 6
num_attention_heads = 8
vocab_size = 8000
max_position_embeddings = 4096
[train]
micro_batch = 8
sequence = 512
)";

class Calibrate : public test::CommandFolder {
 protected:
  std::string run_file() const { return write("run.toml", kRun); }

  // A dump whose peak is `factor` times the prediction; states are as predicted.
  std::string dump(const std::string& name, double factor, int rank = 0, int ooms = 0) const {
    const json answer = json::parse(run_command({"estimate", run_file(), "--json"}).out);
    const auto peak = static_cast<int64_t>(factor * answer["peak_bytes"].get<double>());
    std::string stats;
    for (const char* counter : {"allocated_bytes", "requested_bytes", "active_bytes", "reserved_bytes"})
      stats += fmt::format(R"("{}": {{"all": {{"current": 1, "peak": {}}}}}, )", counter, peak);
    return write(name, fmt::format(R"({{"schema_version": 1, "process_id": 1, "rank": {}, "time_seconds": 5,
        "devices": [{{"device": 0, "name": "Test GPU", "total_bytes": 1, "annotations": {{}}, "segments": [],
        "stats": {{{} "inactive_split_bytes": {{"all": {{"current": 0, "peak": 0}}}}, "num_alloc_retries": 0,
        "num_ooms": {}}}}}]}})",
                                   rank, stats, ooms));
  }

  json calibrated(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words{"estimate", path("run.toml"), "--json", "--catalog",
                                   path("catalog.jsonl")};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult result = run_command(words);
    EXPECT_NE(result.code, 1) << result.err;
    return result.out.empty() ? json() : json::parse(result.out);
  }
};

TEST_F(Calibrate, TheNextEstimateIsWhatWasMeasured) {
  const std::string dumped = dump("dump.json", 1.2);
  const CommandResult done =
      run_command({"calibrate", dumped, "--run", run_file(), "--catalog", path("catalog.jsonl")});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("Test GPU"));
  const json answer = calibrated();
  const json& calibration = answer["calibration"];
  EXPECT_NEAR(answer["peak_bytes"].get<double>(), calibration["measured_peak_bytes"].get<double>(), 64);
  EXPECT_NEAR(answer["peak_bytes"].get<double>(), 1.2 * calibration["predicted_peak_bytes"].get<double>(),
              64);
  const json longer = calibrated({"--set", "sequence=1024"});
  EXPECT_TRUE(longer["calibration"]["measured_peak_bytes"].is_null());
  EXPECT_GT(longer["peak_bytes"], longer["calibration"]["predicted_peak_bytes"]);
  const CommandResult text = run_command({"estimate", run_file(), "--catalog", path("catalog.jsonl")});
  for (const char* part : {"predicted", "calibrated", "measured", "Test GPU"})
    EXPECT_THAT(text.out, HasSubstr(part));
}

TEST_F(Calibrate, TheAnswerGoesWhereItIsAskedTo) {
  const std::vector<std::string> words{"calibrate", dump("dump.json", 1.2), "--run", run_file()};
  const std::string text = run_command(words).out;
  std::vector<std::string> more = words;
  more.insert(more.end(), {"--output", path("answer.txt")});
  const CommandResult done = run_command(more);
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(done.out + done.err, "");
  EXPECT_EQ(read("answer.txt"), text);
}

// A catalog does not learn from a run whose answer nobody got.
TEST_F(Calibrate, NothingIsRememberedWithoutAnAnswer) {
  const CommandResult done =
      run_command({"calibrate", dump("dump.json", 1.2), "--run", run_file(), "--catalog",
                   path("catalog.jsonl"), "--output", path("none/answer.txt")});
  EXPECT_EQ(done.code, 1);
  EXPECT_THAT(done.err, HasSubstr("none/answer.txt: cannot be written"));
  EXPECT_FALSE(std::filesystem::exists(path("catalog.jsonl")));
}

TEST_F(Calibrate, RanksGiveASpread) {
  const CommandResult done = run_command({"calibrate", dump("a.json", 1.1), dump("b.json", 1.2), "--run",
                                          run_file(), "--catalog", path("catalog.jsonl")});
  ASSERT_EQ(done.code, 0) << done.err;
  const json answer = calibrated();
  for (const json& group : answer["calibration"]["groups"]) {
    if (group["name"] != "activations and loss") continue;
    EXPECT_EQ(group["observations"], 2);
    EXPECT_GT(group["spread"].get<double>(), 0.02);
  }
}

TEST_F(Calibrate, QuestionsUseTheCatalogToo) {
  ASSERT_EQ(
      run_command({"calibrate", dump("a.json", 1.5), "--run", run_file(), "--catalog", path("catalog.jsonl")})
          .code,
      0);
  const auto batch = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"estimate", run_file(), "--solve", "batch", "--gpu", "24GiB", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const std::string setting = json::parse(run_command(words).out)["gpus"][0]["fits"]["setting"];
    return std::stoi(setting.substr(setting.find("= ") + 2));
  };
  EXPECT_LT(batch({"--catalog", path("catalog.jsonl")}), batch({}));
}

TEST_F(Calibrate, TheCatalogGrowsByWholeLines) {
  const std::string dumped = dump("dump.json", 1.2);
  write("catalog.jsonl", "{\"cut\": ");  // by something else
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(
        run_command({"calibrate", dumped, "--run", run_file(), "--catalog", path("catalog.jsonl")}).code, 0);
  }
  std::istringstream lines(read("catalog.jsonl"));
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, "{\"cut\": ");
  size_t whole = 0;
  while (std::getline(lines, line)) whole += json::parse(line).is_object() ? 1 : 0;
  EXPECT_EQ(whole, 2u);
}

TEST_F(Calibrate, ADamagedLineIsNamedAndTheRestAnswers) {
  ASSERT_EQ(run_command({"calibrate", dump("dump.json", 1.2), "--run", run_file(), "--catalog",
                         path("catalog.jsonl")})
                .code,
            0);
  write("catalog.jsonl", read("catalog.jsonl") + "{broken\n");
  const CommandResult result =
      run_command({"estimate", run_file(), "--json", "--catalog", path("catalog.jsonl")});
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.error_lines(), 1);
  EXPECT_THAT(result.err, HasSubstr("catalog.jsonl: line 2 is damaged"));
  EXPECT_TRUE(json::parse(result.out).contains("calibration"));
}

TEST_F(Calibrate, ReadsASnapshotsTrace) {
  const CommandResult result =
      run_command({"calibrate", SPILLWAY_EXAMPLE_TRACE, "--run", run_file(), "--set", "micro_batch=1",
                   "--set", "hidden_size=64", "--set", "intermediate_size=64", "--set", "vocab_size=100",
                   "--set", "overhead.workspace=0MiB", "--hardware", "A GPU", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json line = json::parse(result.out);
  EXPECT_EQ(line["hardware"], "A GPU");
  EXPECT_GT(line["measured"]["peak"], 0);
}

TEST_F(Calibrate, BadInputIsOneLineAndNothingIsWritten) {
  const std::string run = run_file();
  const std::string good = dump("good.json", 1.2);
  const auto complains = [&](const std::string& dumped, const std::string& part) {
    expect_complaint({"calibrate", good, dumped, "--run", run, "--catalog", path("catalog.jsonl")}, part);
    EXPECT_FALSE(std::filesystem::exists(path("catalog.jsonl")));
  };
  complains("/no/such/dump.json", "/no/such/dump.json");
  complains(write("empty.json", ""), "empty.json: empty");
  complains(write("text.json", "hello"), "neither JSON counters nor a PyTorch snapshot");
  complains(write("other.json", "{}"), "allowed: a Spillway dump");
  complains(write("cut.json", read("good.json").substr(0, 300)), "cut.json: not a JSON object");
  complains(dump("low.json", 0.01), "is less than");
  expect_complaint({"calibrate", good}, "--run is missing");
  expect_complaint({"calibrate", "--run", run}, "DUMP is missing");
  expect_complaint({"calibrate", good, "--run", "/no/such/run.toml"}, "/no/such/run.toml: cannot be read");
  expect_complaint({"calibrate", good, "--run", run, "--catalog", "/no/such/catalog"}, "/no/such/catalog");
  expect_complaint({"estimate", run, "--catalog", "/no/such/catalog"}, "/no/such/catalog: cannot be read");
  expect_complaint({"estimate", run, "--catalog", write("none.jsonl", "")}, "none.jsonl: no line is of this");
}

TEST_F(Calibrate, ADumpIsDiagnosed) {
  const std::string dumped = dump("dump.json", 1.2);
  const CommandResult alone = run_command({"estimate", "--dump", dumped, "--json"});
  ASSERT_EQ(alone.code, 0) << alone.err;
  EXPECT_EQ(json::parse(alone.out)["dumps"].size(), 1u);
  EXPECT_TRUE(json::parse(alone.out)["findings"].empty());
  const CommandResult with_run = run_command({"estimate", run_file(), "--dump", dumped});
  ASSERT_EQ(with_run.code, 0) << with_run.err;
  EXPECT_THAT(with_run.out, HasSubstr("activations ("));
  EXPECT_THAT(with_run.out, HasSubstr("= reserved"));
  expect_complaint({"estimate", "--dump", "/no/such/dump"}, "/no/such/dump");
}

}  // namespace
}  // namespace spillway
