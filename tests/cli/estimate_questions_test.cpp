// `spillway estimate` asked for a setting, for many settings, for another setting, and for a page.
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/command_folder.h"

namespace spillway {
namespace {

using nlohmann::json;
using test::CommandResult;
using test::kLlama8b;
using test::run_command;
using ::testing::HasSubstr;
using ::testing::Not;

class EstimateQuestions : public test::CommandFolder {
 protected:
  std::string run_file(const std::string& more = "") const {
    write("config.json", kLlama8b);
    return write("run.toml",
                 "[model]\nconfig = 'config.json'\n[parallel]\ngpus = 64\nzero = 3\n[train]\n" + more);
  }

  static std::vector<json> lines(const std::string& text) {
    std::vector<json> out;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) out.push_back(json::parse(line));
    return out;
  }

  static json estimate(const std::string& file, const std::string& set, const std::string& gpu) {
    return json::parse(run_command({"estimate", file, "--json", "--set", set, "--gpu", gpu}).out);
  }
};

// The answer is the boundary: what it names fits, one more does not, by estimates of their own.
TEST_F(EstimateQuestions, TheLargestBatchIsTheLast) {
  const std::string file = run_file();
  const CommandResult result =
      run_command({"estimate", file, "--solve", "batch", "--gpu", "a100-80", "--json"});
  EXPECT_EQ(result.code, 0) << result.err;
  const json answer = json::parse(result.out)["gpus"][0];
  const std::string fits = answer["fits"]["setting"], misses = answer["does_not_fit"]["setting"];
  const int batch = std::stoi(fits.substr(fits.find("= ") + 2));
  EXPECT_EQ(std::stoi(misses.substr(misses.find("= ") + 2)), batch + 1);
  const json there = estimate(file, "micro_batch=" + std::to_string(batch), "a100-80");
  EXPECT_EQ(there["needed_bytes"], answer["fits"]["needed_bytes"]);
  EXPECT_NE(there["verdict"], "NO");
  EXPECT_EQ(estimate(file, "micro_batch=" + std::to_string(batch + 1), "a100-80")["verdict"], "NO");
}

TEST_F(EstimateQuestions, SolvesForEverySetting) {
  const std::string file = run_file("micro_batch = 2\n");
  for (const char* unknown : {"seq", "gpus", "tp", "recompute"}) {
    const CommandResult result = run_command({"estimate", file, "--solve", unknown, "--gpu", "a100-80"});
    EXPECT_EQ(result.code, 0) << unknown << ": " << result.err << result.out;
    EXPECT_THAT(result.out, HasSubstr("fits"));
  }
}

TEST_F(EstimateQuestions, NoSettingFitsIsNo) {
  for (const char* unknown : {"batch", "seq", "gpus", "tp", "recompute"}) {
    const CommandResult result = run_command({"estimate", run_file(), "--solve", unknown, "--gpu", "1GiB"});
    EXPECT_EQ(result.code, 2) << unknown << ": " << result.err;
    EXPECT_THAT(result.out, HasSubstr("no setting fits"));
  }
}

TEST_F(EstimateQuestions, EveryGpuIsSolvedFor) {
  const CommandResult result =
      run_command({"estimate", run_file(), "--solve", "batch", "--gpu", "200GiB,1GiB", "--json"});
  EXPECT_EQ(result.code, 2);
  const json answer = json::parse(result.out);
  EXPECT_FALSE(answer["gpus"][0]["fits"].is_null());
  EXPECT_TRUE(answer["gpus"][1]["fits"].is_null());
}

TEST_F(EstimateQuestions, ASweepIsTheProductInOrder) {
  const std::string file = run_file();
  const CommandResult result = run_command(
      {"estimate", file, "--json", "--sweep", "micro_batch=1..4x2", "--sweep", "train.recompute=none,full"});
  EXPECT_EQ(result.code, 0) << result.err;
  const std::vector<json> rows = lines(result.out);
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows[3]["settings"], json::parse(R"({"micro_batch": 2, "train.recompute": "full"})"));
  EXPECT_EQ(rows[4]["peak_bytes"], estimate(file, "micro_batch=4", "h100-80")["peak_bytes"]);
}

TEST_F(EstimateQuestions, ASweepNamesWhatContradictsItself) {
  const CommandResult result =
      run_command({"estimate", run_file(), "--json", "--sweep", "tensor=2,3", "--gpu", "1GiB"});
  EXPECT_EQ(result.code, 2) << result.err;
  const std::vector<json> rows = lines(result.out);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_TRUE(rows[0].contains("peak_bytes"));
  EXPECT_THAT(rows[1]["refused"].get<std::string>(), HasSubstr("tensor 3"));
}

TEST_F(EstimateQuestions, BadSweepsAreOneLine) {
  const std::string file = run_file();
  for (const char* sweep : {"micro_batch", "=1", "micro_batch=", "micro_batch=1,,2", "micro_batch=4..1",
                            "micro_batch=1..", "micro_batch=1..8x1", "micro_batch=1..8+0", "micro_batch=0..4",
                            "micro_batch=1..8y2", "micro_batch=1..99999999999999999999"}) {
    expect_complaint({"estimate", file, "--sweep", sweep}, "is not allowed; allowed: KEY=VALUE");
  }
  expect_complaint({"estimate", file, "--sweep", "micro_batch=1..1000000000"}, "too many combinations");
  expect_complaint({"estimate", file, "--sweep", "micro_batch=1", "--sweep", "micro_batch=2"}, "swept twice");
  expect_complaint({"estimate", file, "--sweep", "train.banana=1,2"}, "train.banana: not known");
  expect_complaint({"estimate", file, "--sweep", "micro_batch=-1"}, "train.micro_batch: '-1'");
}

// Megatron-LM's arguments are swept under their own names; the number of GPUs is none of them.
TEST_F(EstimateQuestions, SweepsMegatronArguments) {
  const std::string file =
      write("arguments.txt",
            "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 "
            "--max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 "
            "--bf16 --use-distributed-optimizer --attention-backend flash");
  const CommandResult result = run_command({"estimate", file, "--gpu-kind", "h100", "--json", "--sweep",
                                            "micro-batch-size=1,2", "--sweep", "gpus=8,16"});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::vector<json> rows = lines(result.out);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_GT(rows[0]["steady_bytes"], rows[1]["steady_bytes"]) << "twice the shards";
  EXPECT_GT(rows[2]["peak_bytes"], rows[0]["peak_bytes"]);
  expect_complaint({"estimate", file, "--sweep", "gpus=none"}, "gpus: 'none' is not allowed");
}

TEST_F(EstimateQuestions, WhatIfSavesByBucket) {
  const std::string file = run_file();
  const CommandResult result = run_command(
      {"estimate", file, "--what-if", "recompute=full,optimizer=adamw8bit", "--json", "--gpu", "a100-40"});
  EXPECT_EQ(result.code, 0) << result.err;
  const json answer = json::parse(result.out);
  int64_t saved = 0, states = 0;
  for (const json& bucket : answer["buckets"]) {
    saved += bucket["saved_bytes"].get<int64_t>();
    if (bucket["name"] == "optimizer states") states = bucket["saved_bytes"];
  }
  EXPECT_NEAR(static_cast<double>(saved), answer["saved_bytes"].get<double>(), 32);
  EXPECT_GT(states, 0);
  EXPECT_EQ(answer["saved_bytes"].get<int64_t>(),
            answer["base"]["peak_bytes"].get<int64_t>() - answer["changed"]["peak_bytes"].get<int64_t>());
  const CommandResult worse = run_command({"estimate", file, "--what-if", "micro_batch=64"});
  EXPECT_EQ(worse.code, 2);
  EXPECT_THAT(worse.out, HasSubstr("NO"));
}

TEST_F(EstimateQuestions, WrongUseIsOneLine) {
  const std::string file = run_file();
  expect_complaint({"estimate", file, "--solve", "banana"}, "allowed: batch, seq, gpus, tp, recompute");
  expect_complaint({"estimate", file, "--what-if", "recompute"}, "--what-if 'recompute' is not allowed");
  expect_complaint({"estimate", file, "--what-if", "recompute=half"}, "train.recompute: 'half'");
  expect_complaint({"estimate", file, "--solve", "batch", "--sweep", "tensor=1"}, "choose one of");
  expect_complaint({"estimate", file, "--solve", "batch", "--set", "tensor=7"}, "tensor 7");
  expect_complaint({"estimate", file, "--solve", "gpus", "--set", "tensor=1048576", "--set",
                    "pipeline=1048576", "--set", "context=1048576", "--set", "replicas=1048576"},
                   "not allowed; allowed: up to");
  expect_complaint({"estimate", "--jsonl", file, "--solve", "batch"}, "--jsonl stands alone");
  expect_complaint({"estimate", file, "--html", "/no/such/folder/page.html"}, "/no/such/folder/page.html");
}

TEST_F(EstimateQuestions, ThePageNeedsNoNetwork) {
  write("config<b>.json", kLlama8b);
  const std::string page = path("page.html");
  const CommandResult result = run_command(
      {"estimate", path("config<b>.json"), "--set", "parallel.pipeline=4", "--gpus", "4", "--html", page});
  EXPECT_EQ(result.code, 0) << result.err;
  const std::string text = read("page.html");
  for (const char* part : {"<svg", "end of forward", "stage 3", "optimizer states", "h100-80",
                           "reserved for the peak by", "spillway, which is counted", "</html>"})
    EXPECT_THAT(text, HasSubstr(part));
  for (const char* outside : {"http:", "https:", "<script", "src=", "@import", "config<b>"})
    EXPECT_THAT(text, Not(HasSubstr(outside)));
}

}  // namespace
}  // namespace spillway
