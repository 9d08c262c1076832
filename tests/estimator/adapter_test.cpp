// What is trained beside frozen weights: kinds of adapters, what they add, and what is refused.
#include "estimator/inputs/adapter.h"

#include <gtest/gtest.h>

#include "tests/support/training_runs.h"

namespace spillway::estimator::test {
namespace {

RunKeys adapted(const RunKeys& keys) {
  return with(with(llama(1024, 2816, 4, 16, 4, 32000), {{"train.framework", "transformers"}}), keys);
}

double trained_bytes(const RunKeys& keys) {
  const RankClass rank = must_estimate(must_read(adapted(keys))).peak();
  for (const Bucket& bucket : rank.steady) {
    if (std::string_view(bucket.name) == "adapters") return bucket.bytes;
  }
  return 0;
}

std::string complaint(const RunKeys& keys) {
  const Result<TrainingRun> run = read_run(adapted(keys));
  return run.ok() ? "" : run.status().text();
}

// A factor for each output of keys and values, and for each input of what leads out of the feed-forward.
TEST(Adapter, FactorsAreOfOutputsOrInputs) {
  EXPECT_EQ(trained_bytes({{"adapter.kind", "ia3"}}), 4.0 * 4 * (256 + 256 + 2816));
  EXPECT_EQ(trained_bytes({{"adapter.kind", "ia3"}, {"adapter.scaled_inputs", "none"}}),
            4.0 * 4 * (256 + 256 + 1024));
  EXPECT_EQ(trained_bytes({{"adapter.kind", "ia3"},
                           {"adapter.targets", "k_proj,down_proj"},
                           {"adapter.scaled_inputs", "k_proj"}}),
            4.0 * 4 * (1024 + 1024));
}

TEST(Adapter, APromptIsARowForEachToken) {
  EXPECT_EQ(trained_bytes({{"adapter.kind", "prompt"}}), 4.0 * 20 * 1024);
  const RunKeys longer = {{"adapter.kind", "prompt"}, {"adapter.virtual_tokens", "100"}};
  EXPECT_EQ(trained_bytes(longer), 4.0 * 100 * 1024);
  // The prompt is beside the text's tokens, and costs what as many more of those do.
  const auto peak = [](const RunKeys& keys) {
    return must_estimate(must_read(adapted(keys))).peak().peak_bytes;
  };
  const RunKeys text = {
      {"adapter.kind", "prompt"}, {"adapter.virtual_tokens", "1"}, {"train.micro_batch", "4"}};
  EXPECT_NEAR(peak(with(text, {{"train.sequence", "512"}, {"adapter.virtual_tokens", "256"}})) /
                  peak(with(text, {{"train.sequence", "767"}})),
              1, 0.01);
}

TEST(Adapter, APromptHasPositionsToo) {
  const RunKeys gpt = {{"model.model_type", "gpt2"},
                       {"model.n_embd", "256"},
                       {"model.n_head", "4"},
                       {"model.n_layer", "2"},
                       {"model.vocab_size", "1000"},
                       {"model.n_positions", "512"},
                       {"train.framework", "transformers"},
                       {"train.sequence", "500"},
                       {"adapter.kind", "prompt"}};
  EXPECT_TRUE(read_run(with(gpt, {{"adapter.virtual_tokens", "12"}})).ok());
  EXPECT_EQ(
      read_run(gpt).status().text(),
      "adapter.virtual_tokens: '20' is not allowed beside a sequence of 500; allowed: up to the model's "
      "512 positions together");
}

TEST(Adapter, PeftsFilesSayTheKind) {
  const auto keys = [](const char* text) { return read_adapter_json(text).value(); };
  EXPECT_EQ(keys(R"({"peft_type": "IA3", "target_modules": ["k_proj", "down_proj"],
                     "feedforward_modules": ["down_proj"]})"),
            (RunKeys{{"adapter.kind", "ia3"},
                     {"adapter.targets", "k_proj,down_proj"},
                     {"adapter.scaled_inputs", "down_proj"}}));
  EXPECT_EQ(keys(R"({"peft_type": "IA3", "feedforward_modules": []})"),
            (RunKeys{{"adapter.kind", "ia3"}, {"adapter.scaled_inputs", "none"}}));
  EXPECT_EQ(keys(R"({"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 30})"),
            (RunKeys{{"adapter.kind", "prompt"}, {"adapter.virtual_tokens", "30"}}));
  EXPECT_EQ(read_adapter_json(R"({"peft_type": "PREFIX_TUNING"})").status().text(),
            "peft_type: 'PREFIX_TUNING' is not modelled; allowed: LORA, IA3, PROMPT_TUNING");
}

TEST(Adapter, KeysOfAnotherKindAreRefused) {
  EXPECT_EQ(complaint({{"adapter.kind", "ia3"}, {"adapter.rank", "8"}}),
            "adapter.rank: not allowed beside adapter.kind 'ia3'; allowed: lora, rslora, dora, qlora");
  EXPECT_EQ(
      complaint({{"adapter.kind", "prompt"}, {"adapter.targets", "q_proj"}}),
      "adapter.targets: not allowed beside adapter.kind 'prompt'; allowed: lora, rslora, dora, qlora, ia3");
  EXPECT_EQ(complaint({{"adapter.kind", "lora"}, {"adapter.virtual_tokens", "8"}}),
            "adapter.virtual_tokens: not allowed beside adapter.kind 'lora'; allowed: prompt");
  EXPECT_EQ(complaint({{"adapter.virtual_tokens", "8"}}),
            "adapter.virtual_tokens: not allowed without adapter.kind; allowed: prompt");
  EXPECT_EQ(
      complaint({{"adapter.kind", "ia3"}, {"adapter.scaled_inputs", "q_proj"}}),
      "adapter.scaled_inputs: 'q_proj' is not allowed; allowed: some of adapter.targets, k_proj, v_proj, "
      "down_proj");
  EXPECT_EQ(
      complaint({{"adapter.kind", "ia3"}, {"model.weights", "nf4"}}),
      "adapter.kind: 'ia3' is not modelled beside quantised weights; allowed: qlora, or model.weights = "
      "trained");
}

}  // namespace
}  // namespace spillway::estimator::test
