#include "estimator/inputs/run_words.h"

#include <gtest/gtest.h>

#include "tests/support/training_runs.h"

namespace spillway::estimator::test {
namespace {

std::string said(const char* name, const char* value) {
  const NamedValue named = run_key(name, value);
  return named.key + "=" + named.value;
}

TEST(RunWords, AreThoseOfOtherTrainers) {
  EXPECT_EQ(said("batch_size", "4"), "train.micro_batch=4");
  EXPECT_EQ(said("per_device_train_batch_size", "4"), "train.micro_batch=4");
  EXPECT_EQ(said("train.batch_size", "4"), "train.micro_batch=4");
  EXPECT_EQ(said("seq_len", "2048"), "train.sequence=2048");
  EXPECT_EQ(said("gradient_checkpointing", "true"), "train.recompute=full");
  EXPECT_EQ(said("gradient_checkpointing", "False"), "train.recompute=none");
  EXPECT_EQ(said("optim", "adamw_8bit"), "train.optimizer=adamw8bit");
  EXPECT_EQ(said("optim", "adamw_torch_4bit"), "train.optimizer=adamw4bit");
  EXPECT_EQ(said("optimizer", "paged_adamw_8bit"), "train.optimizer=adamw8bit");
  EXPECT_EQ(said("optimizer", "adamw_torch_fused"), "train.optimizer=adamw");
  EXPECT_EQ(said("optimizer", "AdamW"), "train.optimizer=adamw");
  EXPECT_EQ(said("attn_implementation", "flash_attention_2"), "train.attention=flash");
  EXPECT_EQ(said("torch_dtype", "bfloat16"), "train.precision=bf16");
  EXPECT_EQ(said("bf16", "true"), "train.precision=autocast");
  EXPECT_EQ(said("tensor_parallel_size", "2"), "parallel.tensor=2");
}

TEST(RunWords, WithoutTheirSectionAreTheKeys) {
  for (const std::string_view key : run_key_names()) {
    const std::string bare(key.substr(key.find('.') + 1));
    const std::string found = run_key(bare, "1").key;
    EXPECT_EQ(found.substr(found.find('.') + 1), bare);
  }
  EXPECT_EQ(run_key("cuda_graph", "step").key, "train.cuda_graph");
  EXPECT_EQ(run_key("reduce_bucket_size", "1").key, "communication.reduce_bucket_size");
}

TEST(RunWords, ThatAreNoneStay) {
  EXPECT_EQ(said("banana", "4"), "banana=4");
  EXPECT_EQ(said("model.batch_size", "4"), "model.batch_size=4");
  EXPECT_EQ(said("parallel.batch_size", "4"), "parallel.batch_size=4");
  EXPECT_EQ(meant_run_key("microbatch"), "; did you mean 'micro_batch'?");
  EXPECT_EQ(meant_run_key("train.sequense"), "; did you mean 'train.sequence'?");
  EXPECT_EQ(meant_run_key("banana_split_size"), "");
}

// docs/estimate.md lists them, and a reader asks for each.
TEST(RunWords, EveryKeyIsReadByARun) {
  for (const std::string_view key : run_key_names()) {
    const bool zero = key.substr(0, 14) == "communication." &&
                      key.find("bucket_cap") == std::string_view::npos &&
                      key.find("as_bucket_view") == std::string_view::npos;
    const RunKeys base =
        zero ? RunKeys{{"communication.engine", "deepspeed"}, {"parallel.zero", "3"}} : RunKeys{};
    const Result<TrainingRun> run = read_run(with(llama32_3b(), with(base, {{std::string(key), "?"}})));
    EXPECT_EQ(run.status().text().find("not known"), std::string::npos) << run.status().text();
  }
}

}  // namespace
}  // namespace spillway::estimator::test
