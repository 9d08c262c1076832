// `spillway estimate --plan`: what it names fits when it is asked for on its own, and what it cannot do it
// says.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/command_folder.h"

namespace spillway {
namespace {

using nlohmann::json;
using test::CommandResult;
using test::run_command;
using ::testing::HasSubstr;
using ::testing::Not;

class EstimatePlan : public test::CommandFolder {
 protected:
  static json plan(std::vector<std::string> arguments, int code) {
    arguments.insert(arguments.begin(), "estimate");
    arguments.insert(arguments.end(), {"--plan", "--json"});
    const CommandResult result = run_command(arguments);
    EXPECT_EQ(result.code, code) << result.err << result.out;
    return json::parse(result.out)["gpus"][0];
  }

  static std::string lines(const json& answer) {
    std::string out;
    for (const json& place : answer["lines"]) {
      for (const json& line : place["lines"]) out += line.get<std::string>() + "\n";
    }
    return out;
  }

  // The same command with an answer's settings, without those of the change `left_out`.
  static json asked_for(std::vector<std::string> arguments, const json& answer,
                        const std::string& left_out = "") {
    arguments.insert(arguments.begin(), "estimate");
    for (const json& change : answer["changes"]) {
      if (change["change"] == left_out) continue;
      for (const json& setting : change["settings"])
        arguments.insert(arguments.end(), {"--set", setting["key"].get<std::string>() + "=" +
                                                        setting["value"].get<std::string>()});
    }
    arguments.push_back("--json");
    return json::parse(run_command(arguments).out);
  }

  static void expect_answers(const std::vector<std::string>& arguments, const json& found) {
    ASSERT_FALSE(found["answers"].empty()) << found.dump(1);
    EXPECT_LE(found["answers"].size(), 5u);
    bool changed = false;
    for (const json& answer : found["answers"]) {
      const json asked = asked_for(arguments, answer);
      EXPECT_EQ(asked["needed_bytes"], answer["needed_bytes"]) << answer.dump(1);
      EXPECT_NE(asked["verdict"], "NO");
      EXPECT_FALSE(answer["lines"].empty());
      // What keeps the results goes first.
      EXPECT_FALSE(changed && answer["effect"] != "changed");
      changed = changed || answer["effect"] == "changed";
      // What a change saves is what a run without it needs more.
      for (const json& change : answer["changes"]) {
        if (change["change"] != "recompute" || answer["changes"].size() == 1) continue;
        const json without = asked_for(arguments, answer, "recompute");
        EXPECT_EQ(without["needed_bytes"].get<int64_t>() - answer["needed_bytes"].get<int64_t>(),
                  change["saved_bytes"].get<int64_t>());
      }
    }
  }
};

TEST_F(EstimatePlan, AFullFineTuneOf7BillionsOn24GiB) {
  const std::vector<std::string> run = {"llama-2-7b", "--gpu", "24GiB"};
  const json found = plan(run, 0);
  EXPECT_FALSE(found["fits_as_it_is"]);
  expect_answers(run, found);
  const json first = found["answers"][0];
  EXPECT_NE(first["effect"], "changed");
  EXPECT_THAT(lines(first), HasSubstr("offload_optimizer"));
  EXPECT_THAT(lines(first), HasSubstr("deepspeed=\"deepspeed.json\","));
  EXPECT_THAT(lines(first), HasSubstr("\"train_micro_batch_size_per_gpu\": \"auto\""));
  // The host holds fp32 weights, gradients and both moments: 16 bytes for each of 6.7e9.
  EXPECT_NEAR(first["host_bytes"].get<double>(), 16 * 6.738e9, 0.05 * 16 * 6.738e9);
}

TEST_F(EstimatePlan, ARecipesPlanHasItsTrainersLines) {
  const std::string recipe = write("recipe.yaml",
                                   "base_model: llama-3.2-1b\nsequence_len: 4096\nmicro_batch_size: 2\n"
                                   "bf16: true\n");
  const std::vector<std::string> run = {recipe, "--gpu", "16GiB"};
  const CommandResult result = run_command({"estimate", recipe, "--gpu", "16GiB", "--plan", "--json"});
  EXPECT_EQ(result.code, 0) << result.err;
  const json answer = json::parse(result.out);
  EXPECT_EQ(answer["framework"], "axolotl");
  expect_answers(run, answer["gpus"][0]);
}

TEST_F(EstimatePlan, SeventyBillionsOnEightGpus) {
  const std::vector<std::string> run = {"llama-3.1-70b", "--gpus", "8", "--gpu", "h100-80"};
  expect_answers(run, plan(run, 0));
}

// With the run as the words of Megatron-LM, changes are its arguments, and a step keeps its samples.
TEST_F(EstimatePlan, MegatronsArguments) {
  const std::string file =
      write("arguments.txt",
            "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 "
            "--num-attention-heads 32 --group-query-attention --num-query-groups 8 "
            "--seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 4 "
            "--global-batch-size 64 --bf16 --swiglu --untie-embeddings-and-output-weights "
            "--normalization RMSNorm --disable-bias-linear --vocab-size 128256 "
            "--use-flash-attn --position-embedding-type rope\n");
  const std::vector<std::string> run = {file, "--gpu", "h100-80", "--gpus", "8"};
  const json found = plan(run, 0);
  expect_answers(run, found);
  EXPECT_THAT(lines(found["answers"][0]), HasSubstr("--"));
}

TEST_F(EstimatePlan, WhereNothingHelpsItSaysWithWhatItWould) {
  const std::vector<std::string> run = {"llama-3.1-405b", "--gpu", "t4"};
  const json found = plan(run, 2);
  EXPECT_TRUE(found["answers"].empty());
  const json& least = found["least"];
  EXPECT_EQ(asked_for(run, least)["needed_bytes"], least["needed_bytes"]);
  EXPECT_LT(least["free_bytes"], 0);
  ASSERT_TRUE(found["smallest_gpu"].is_string()) << found.dump(1);
  const std::string larger = found["smallest_gpu"];
  EXPECT_NE(asked_for({"llama-3.1-405b", "--gpu", larger}, least)["verdict"], "NO");
  const CommandResult text = run_command({"estimate", "llama-3.1-405b", "--gpu", "t4", "--plan"});
  EXPECT_EQ(text.code, 2);
  EXPECT_THAT(
      text.out,
      HasSubstr("nothing that was tried makes it fit; the smallest GPU that would hold it: " + larger));
}

// What changes the results beyond an optimizer's states is tried where it is allowed, and named where not.
TEST_F(EstimatePlan, AdaptersAndFewBitsOnlyWhereAllowed) {
  const std::vector<std::string> run = {"llama-3.1-8b", "--gpu", "16GiB", "--for", "axolotl"};
  const auto text = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"estimate"};
    arguments.insert(arguments.end(), run.begin(), run.end());
    arguments.push_back("--plan");
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_command(arguments).out;
  };
  EXPECT_THAT(text({}), HasSubstr("not tried, for the results change: adapter,quant,precision"));
  EXPECT_THAT(text({}), Not(HasSubstr("lora")));
  const std::string allowed = text({"--allow", "adapter,quant"});
  EXPECT_THAT(allowed, HasSubstr("adapter: qlora"));
  EXPECT_THAT(allowed, HasSubstr("load_in_4bit: true"));
  EXPECT_THAT(allowed, HasSubstr("other results"));
}

TEST_F(EstimatePlan, ARunThatFitsNeedsNothing) {
  const CommandResult result = run_command({"estimate", "qwen3-0.6b", "--gpu", "h100-80", "--plan"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("which fits"));
}

TEST_F(EstimatePlan, AServerThatDoesNotFit) {
  const std::vector<std::string> run = {"qwen3-8b", "--serve", "--gpu", "16GiB", "--gpus", "2"};
  const json found = plan(run, 0);
  ASSERT_FALSE(found["answers"].empty());
  for (const json& answer : found["answers"]) {
    std::vector<std::string> arguments = {"qwen3-8b", "--serve", "--gpu", "16GiB"};
    const json asked = asked_for(arguments, answer)["gpus"][0];
    EXPECT_EQ(asked["verdict"], "FITS") << answer.dump(1);
    EXPECT_EQ(asked["vllm"]["tokens"], answer["tokens"]);
  }
  EXPECT_THAT(lines(found["answers"][0]), HasSubstr("--"));
}

// Shorter requests and fewer bits are other answers, so they are asked for.
TEST_F(EstimatePlan, AServersLengthOnlyWhereAllowed) {
  const std::vector<std::string> run = {"llama-3.1-8b", "--serve", "--gpu", "a10"};
  std::vector<std::string> allowed = run;
  allowed.insert(allowed.end(), {"--allow", "length"});
  const json found = plan(allowed, 0);
  ASSERT_FALSE(found["answers"].empty());
  bool shorter = false;
  for (const json& answer : found["answers"])
    shorter = shorter || answer["length_tokens"].get<int64_t>() < 131072;
  EXPECT_TRUE(shorter) << found.dump(1);
  EXPECT_EQ(plan({"llama-3.1-405b", "--serve", "--gpu", "t4"}, 2)["answers"].size(), 0u);
}

TEST_F(EstimatePlan, WhatCannotBeAskedTogether) {
  const auto expect_complaint = [](const std::vector<std::string>& arguments, const std::string& text) {
    const CommandResult result = run_command(arguments);
    EXPECT_EQ(result.code, 1) << result.out;
    EXPECT_THAT(result.err, HasSubstr(text));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  };
  expect_complaint({"estimate", "qwen3-8b", "--plan", "--solve", "batch"}, "choose one of");
  expect_complaint({"estimate", "qwen3-8b", "--allow", "quant"}, "--allow and --for go with --plan");
  expect_complaint({"estimate", "qwen3-8b", "--plan", "--allow", "everything"},
                   "allowed: adapter, quant, precision");
  expect_complaint({"estimate", "qwen3-8b", "--plan", "--for", "keras"}, "--for 'keras' is not allowed");
  expect_complaint({"estimate", "qwen3-8b", "--plan", "--for", "megatron"}, "not allowed of this file");
  expect_complaint({"estimate", "qwen3-8b", "--serve", "--plan", "--for", "axolotl"}, "allowed: vllm");
}

}  // namespace
}  // namespace spillway
