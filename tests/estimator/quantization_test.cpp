#include "estimator/inputs/quantization.h"

#include <gtest/gtest.h>

#include "tests/support/training_runs.h"

namespace spillway::estimator::test {
namespace {

RunKeys quantised(const RunKeys& keys) {
  RunKeys out = llama(4096, 14336, 32, 32, 8, 128256);
  for (const auto& [key, value] : keys) out["model.quantization_config." + key] = value;
  return out;
}

// Counts those of the layers' matrices.
double weight_bytes(const RunKeys& keys) {
  const TrainingRun run = must_read(keys);
  EXPECT_EQ(run.notes.warnings.size(), 1u);
  const double whole = 2 * 8030261248.0;
  constexpr double kMatrices = 32.0 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336);
  const RankClass rank = must_estimate(run).peak();
  double weights = 0, others = 0;
  for (const Bucket& bucket : rank.steady) {
    const std::string_view name = bucket.name;
    (name == "weights" ? weights : name == "workspaces" ? others : weights) += bucket.bytes;
  }
  return (weights - whole) / kMatrices + 2;
}

TEST(Quantization, HasTheBytesOfItsMethod) {
  EXPECT_NEAR(weight_bytes(quantised({{"quant_method", "bitsandbytes"},
                                      {"load_in_4bit", "true"},
                                      {"bnb_4bit_quant_type", "nf4"},
                                      {"bnb_4bit_use_double_quant", "true"}})),
              0.5159, 1e-4);
  EXPECT_NEAR(weight_bytes(quantised({{"quant_method", "bitsandbytes"}, {"load_in_4bit", "true"}})), 0.5625,
              1e-9);
  EXPECT_NEAR(weight_bytes(quantised({{"load_in_8bit", "true"}})), 1, 1e-9);
  EXPECT_NEAR(weight_bytes(quantised({{"quant_method", "gptq"}, {"bits", "4"}, {"group_size", "128"}})),
              0.51953, 1e-5);
  EXPECT_NEAR(weight_bytes(quantised({{"quant_method", "gptq"}, {"bits", "8"}, {"group_size", "-1"}})), 1,
              1e-6);
  EXPECT_NEAR(weight_bytes(quantised({{"quant_method", "awq"}, {"bits", "4"}, {"group_size", "128"}})),
              0.51953, 1e-5);
  EXPECT_NEAR(weight_bytes(quantised({{"quant_method", "fp8"}})), 1.00024, 1e-5);
  EXPECT_NEAR(weight_bytes(quantised({{"quant_method", "compressed-tensors"},
                                      {"config_groups.group_0.weights.num_bits", "4"},
                                      {"config_groups.group_0.weights.group_size", "128"}})),
              0.515625, 1e-6);
  EXPECT_NEAR(weight_bytes(with(llama(4096, 14336, 32, 32, 8, 128256), {{"model.weights", "nf4"}})), 0.5159,
              1e-4);
}

TEST(Quantization, OfABaseWithAnAdapterNeedsNoWarning) {
  const RunKeys base = with(llama(4096, 14336, 32, 32, 8, 128256),
                            {{"model.weights", "nf4"}, {"train.framework", "transformers"}});
  EXPECT_EQ(must_read(with(base, {{"adapter.kind", "none"}})).notes.warnings.size(), 1u);
  EXPECT_TRUE(must_read(with(base, {{"adapter.kind", "lora"}})).notes.warnings.empty());
}

// gpt-oss-20b's checkpoint: 13.76 GB on the disk.
TEST(Quantization, OfExpertsLeavesTheOthers) {
  const RunKeys oss = {
      {"model.model_type", "gpt_oss"},
      {"model.hidden_size", "2880"},
      {"model.intermediate_size", "2880"},
      {"model.num_hidden_layers", "24"},
      {"model.num_attention_heads", "64"},
      {"model.num_key_value_heads", "8"},
      {"model.head_dim", "64"},
      {"model.vocab_size", "201088"},
      {"model.num_local_experts", "32"},
      {"model.num_experts_per_tok", "4"},
      {"model.attention_bias", "true"},
      {"overhead.workspace", "0"},
      {"model.quantization_config.quant_method", "mxfp4"},
      {"model.quantization_config.modules_to_not_convert", R"(["model.layers.*.self_attn"])"}};
  EXPECT_NEAR(must_estimate(must_read(oss)).peak().steady_bytes, 13.76e9, 0.05e9);
}

TEST(Quantization, IsPassedOverWhereWeightsAreTrained) {
  const TrainingRun run =
      must_read(with(quantised({{"quant_method", "fp8"}}), {{"model.weights", "trained"}}));
  EXPECT_FALSE(run.training.frozen.on());
  EXPECT_TRUE(run.notes.warnings.empty());
}

TEST(Quantization, ByAnotherMethodIsRefused) {
  const auto complaint = [](const RunKeys& keys) { return read_run(keys).status().text(); };
  EXPECT_EQ(complaint(quantised({{"quant_method", "aqlm"}}))
                .rfind("model.quantization_config.quant_method: 'aqlm' is not modelled; allowed: "
                       "bitsandbytes, gptq, awq",
                       0),
            0u);
  EXPECT_NE(complaint(quantised({{"quant_method", "gtpq"}})).find("did you mean 'gptq'?"), std::string::npos);
  EXPECT_NE(complaint(quantised({{"quant_method", "gptq"}, {"bits", "400"}})).find("'400' is not allowed"),
            std::string::npos);
  EXPECT_NE(complaint(with(llama32_3b(), {{"model.weights", "nf5"}})).find("did you mean 'nf4'?"),
            std::string::npos);
}

}  // namespace
}  // namespace spillway::estimator::test
