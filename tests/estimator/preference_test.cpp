// Training on what is preferred, pairs or answers that are scored: what the models beside it hold, and what
// is refused.
#include "estimator/inputs/preference.h"

#include <gtest/gtest.h>

#include "estimator/advice/solve.h"
#include "estimator/verdict.h"
#include "tests/support/training_runs.h"

namespace spillway::estimator::test {
namespace {

RunKeys preferring(const RunKeys& keys) {
  const RunKeys dpo = {
      {"train.framework", "transformers"}, {"train.method", "dpo"}, {"train.sequence", "512"}};
  return with(with(llama(1024, 2816, 4, 16, 4, 32000), dpo), keys);
}

RankClass rank_of(const RunKeys& keys) {
  return must_estimate(must_read(preferring(keys))).peak();
}

double bucket(const RankClass& rank, std::string_view name) {
  for (const Bucket& bucket : rank.steady) {
    if (name == bucket.name) return bucket.bytes;
  }
  return 0;
}

std::string complaint(const RunKeys& keys) {
  const Result<TrainingRun> run = read_run(preferring(keys));
  return run.ok() ? "" : run.status().text();
}

TEST(Preference, AReferenceIsTheModelOnceMore) {
  const RankClass rank = rank_of({});
  EXPECT_GT(bucket(rank, "weights"), 0);
  EXPECT_EQ(bucket(rank, "reference model"), bucket(rank, "weights"));
  EXPECT_EQ(bucket(rank_of({{"train.reference", "precomputed"}}), "reference model"), 0);
  EXPECT_EQ(bucket(rank_of({{"adapter.kind", "lora"}}), "reference model"), 0);
}

// The reference's own pass comes on top of what the model keeps, and goes again.
TEST(Preference, WhatIsComputedBeforeCostsNothing) {
  const RankClass computed = rank_of({{"train.reference", "precomputed"}});
  const RankClass copy = rank_of({});
  EXPECT_GE(copy.peak_bytes, computed.peak_bytes + bucket(copy, "reference model"));
}

// No logits are kept: twice the vocabulary takes a table's bytes, and a wider tile at most.
TEST(Preference, KeepsNoLogits) {
  const RunKeys wide = {{"model.vocab_size", "131072"}, {"train.micro_batch", "8"}};
  const RunKeys twice = with(wide, {{"model.vocab_size", "262144"}});
  const double logits = 16 * 512 * 131072.0 * 4;
  const auto transient = [](const RunKeys& keys) {
    const RankClass rank = rank_of(with(keys, {{"train.precision", "bf16"}}));
    return rank.peak_bytes - rank.steady_bytes;
  };
  EXPECT_LT(transient(twice) - transient(wide), logits / 2);
}

TEST(Preference, APromptIsNotScored) {
  const RunKeys usual = {{"train.micro_batch", "8"}, {"train.recompute", "full"}};
  EXPECT_LT(rank_of(with(usual, {{"train.prompt", "500"}})).peak_bytes, rank_of(usual).peak_bytes);
}

// Steps of GRPOTrainer in a dry run of TRL 1.16 on transformers 5.24.0, 8 sequences of 64 and 192 tokens.
TEST(Preference, RolloutsAreScoredAsPairsAre) {
  struct Step {
    RunKeys keys;
    double peak;
  };
  const RunKeys same = {{"train.framework", "transformers"},
                        {"train.method", "grpo"},
                        {"train.micro_batch", "8"},
                        {"train.sequence", "256"},
                        {"train.prompt", "64"},
                        {"model.transformers_version", "5.24.0"}};
  const std::vector<Step> steps = {{{{"train.precision", "bf16"}}, 878655488},
                                   {{{"train.precision", "autocast"}}, 1292948480},
                                   {{{"train.precision", "bf16"}, {"train.recompute", "full"}}, 601335808}};
  for (const Step& step : steps) {
    const RunKeys keys = with(with(llama(512, 1536, 6, 8, 4, 32000), same), step.keys);
    EXPECT_NEAR(must_estimate(must_read(keys)).peak().peak_bytes / step.peak, 1, 0.005);
  }
}

TEST(Preference, AnEngineIsThereWhileItSleeps) {
  const auto peak = [](const RunKeys& keys) {
    return must_estimate(must_read(preferring(with({{"train.method", "grpo"}}, keys)))).peak();
  };
  const double gib = 1 << 30;
  const RankClass alone = peak({});
  const RankClass awake = peak({{"rollout.memory", "20GiB"}});
  const RankClass sleeping = peak({{"rollout.memory", "20GiB"}, {"rollout.sleeps", "true"}});
  EXPECT_NEAR(awake.peak_bytes - alone.peak_bytes, 20 * gib, 1);
  EXPECT_NEAR(sleeping.steady_bytes - alone.steady_bytes, 290e6, 1);
  EXPECT_NEAR(sleeping.peak_bytes, alone.steady_bytes + 20 * gib, 1);
  EXPECT_NEAR(total_bytes(sleeping.steady) + total_bytes(sleeping.peak), sleeping.peak_bytes, 1);
  // Its size is said: no allocator of the run reserves it, and nothing of it is uncertain.
  EXPECT_NEAR(sleeping.held_bytes(), alone.steady_bytes, 1);
  EXPECT_LT(sleeping.highest_bytes - sleeping.peak_bytes, alone.highest_bytes - alone.peak_bytes);
  // Before the first step there are no moments.
  EXPECT_LT(sleeping.peak_step1_bytes, sleeping.peak_bytes);
}

RankClass ppo_rank(const RunKeys& keys) {
  return rank_of(with({{"train.method", "ppo"}, {"train.precision", "bf16"}, {"train.prompt", "128"}}, keys));
}

// The value model has a row of the width in the place of a table of logits, and states as the model has.
TEST(Preference, AValueModelIsTrainedBesideTheModel) {
  const RankClass alone =
      rank_of({{"train.method", "grpo"}, {"train.precision", "bf16"}, {"train.reference", "copy"}});
  const RankClass rank = ppo_rank({});
  const double table = 2 * 1024 * 32000.0;
  EXPECT_NEAR(bucket(rank, "value model"), bucket(rank, "weights") - table + 2 * 1024, 1);
  EXPECT_NEAR(bucket(rank, "reward models"), bucket(rank, "value model"), 1);
  EXPECT_NEAR(bucket(rank, "optimizer states") - bucket(alone, "optimizer states"),
              2 * bucket(rank, "value model"), 1);
  EXPECT_EQ(bucket(ppo_rank({{"rollout.reward_memory", "0"}}), "reward models"), 0);
}

// 384 tokens of each answer of a step, of all its microbatches.
TEST(Preference, LogitsOfAnswersStay) {
  EXPECT_NEAR(bucket(ppo_rank({{"train.micro_batch", "4"}, {"train.gradient_accumulation", "2"}}),
                     "logits of answers"),
              8 * 384 * 32000.0 * 4, 1);
}

// Each phase is one of a whole update, and the peak is the largest of them.
TEST(Preference, WritingManyAnswersIsThePeak) {
  const RunKeys many = {{"train.micro_batch", "1"}, {"train.gradient_accumulation", "64"}};
  const RankClass rank = ppo_rank(many);
  const double logits = bucket(rank, "logits of answers");
  EXPECT_GE(rank.peak_bytes, rank.steady_bytes + 2 * logits - 1);
  EXPECT_NEAR(total_bytes(rank.steady) + total_bytes(rank.peak), rank.peak_bytes, 1);
  EXPECT_LT(ppo_rank(with(many, {{"rollout.batch", "1"}})).peak_bytes, rank.peak_bytes);
}

double phase(const RankClass& rank, std::string_view name) {
  for (const Phase& each : rank.phases) {
    if (name == each.name) return each.bytes;
  }
  ADD_FAILURE() << "no phase " << name;
  return 0;
}

// A pass that scores keeps each layer's hidden state, keys and values, of four key heads of 64 and of
// sixteen.
TEST(Preference, ScoringKeepsStatesAndCachesOfAllLayers) {
  const auto of_layer = [](const char* key_heads) {
    const auto scored = [&](const char* layers) {
      return phase(ppo_rank({{"model.num_hidden_layers", layers},
                             {"model.num_key_value_heads", key_heads},
                             {"train.micro_batch", "4"}}),
                   "answers scored");
    };
    const auto weights = [&](const char* layers) {
      return ppo_rank({{"model.num_hidden_layers", layers},
                       {"model.num_key_value_heads", key_heads},
                       {"train.micro_batch", "4"}})
          .steady_bytes;
    };
    return (scored("16") - scored("8") - weights("16") + weights("8")) / 8;
  };
  const double state = 2 * 4 * 512 * 1024.0;
  EXPECT_NEAR(of_layer("4") / state, 1.5, 0.01);
  EXPECT_NEAR(of_layer("16") / state, 3, 0.01);
}

// They are there until the optimizer's step is over too, of the model alone.
TEST(Preference, TheOptimizersStepFindsThemToo) {
  for (const char* precision : {"bf16", "fp32", "autocast"}) {
    const auto step = [&](const char* layers) {
      const RankClass rank = ppo_rank({{"model.num_hidden_layers", layers},
                                       {"model.num_key_value_heads", "16"},
                                       {"train.precision", precision},
                                       {"train.optimizer_step", "fused"},
                                       {"train.micro_batch", "4"}});
      const double gradients = bucket(rank, "weights") + bucket(rank, "value model");
      return phase(rank, "optimizer step") - rank.steady_bytes - gradients;
    };
    const double state = (std::string_view(precision) == "bf16" ? 2 : 4) * 4 * 512 * 1024.0;
    EXPECT_NEAR((step("16") - step("8")) / 8 / state, 3, 0.01) << precision;
  }
}

// TRL pads what it has written to whole batches.
TEST(Preference, AnswersArePaddedToWholeBatches) {
  const auto logits = [](const char* answers) {
    return bucket(ppo_rank({{"train.micro_batch", "1"}, {"train.gradient_accumulation", answers}}),
                  "logits of answers");
  };
  EXPECT_EQ(logits("65"), 2 * logits("64"));
  EXPECT_EQ(logits("64"), 64 * logits("1"));
}

TEST(Preference, AnAdviceIsNothingThatIsRefused) {
  const RunKeys keys = {{"train.method", "ppo"}, {"train.precision", "bf16"}, {"parallel.gpus", "4"}};
  for (const Mitigation& each : mitigations(must_read(preferring(keys)))) {
    EXPECT_EQ(each.change.find("recompute"), std::string::npos);
    EXPECT_EQ(each.change.find("zero"), std::string::npos);
  }
  const Result<Solution> found =
      solve(must_read(preferring(keys)), Unknown::kTensor, {"small", 1.0 * (1 << 28)}, estimate);
  ASSERT_TRUE(found.ok()) << found.status().text();
  EXPECT_FALSE(found.value().fits);
}

TEST(Preference, ASequenceThatFitsIsLongerThanItsPrompt) {
  const RunKeys keys = {{"train.micro_batch", "4"}, {"train.sequence", "2048"}, {"train.prompt", "1000"}};
  const Result<Solution> found =
      solve(must_read(preferring(keys)), Unknown::kSequence, {"small", 16.0 * (1 << 30)}, estimate);
  ASSERT_TRUE(found.ok()) << found.status().text();
  ASSERT_TRUE(found.value().fits);
  const int64_t most = found.value().fits->run.model.towers.back().sequence;
  EXPECT_GT(most, 1000);
  EXPECT_EQ(complaint(with(keys, {{"train.sequence", std::to_string(most)}})), "");
}

TEST(Preference, WhatFitsIsCountedInPairs) {
  const RunKeys keys = {{"adapter.kind", "lora"}, {"train.sequence", "2048"}};
  const GpuMemory gpu = {"small", 8.0 * (1 << 30)};
  const Result<Solution> found = solve(must_read(preferring(keys)), Unknown::kBatch, gpu, estimate);
  ASSERT_TRUE(found.ok()) << found.status().text();
  ASSERT_TRUE(found.value().fits);
  const int64_t most = found.value().fits->run.training.micro_batch;
  const auto needed = [&](int64_t batch) {
    const TrainingRun run = must_read(preferring(with(keys, {{"train.micro_batch", std::to_string(batch)}})));
    return needed_bytes(run, must_estimate(run));
  };
  EXPECT_LE(needed(most), gpu.bytes);
  EXPECT_GT(needed(most + 1), gpu.bytes);
}

TEST(Preference, RefusalsSayWhatIsAllowed) {
  EXPECT_EQ(complaint({{"train.method", "sft"}, {"train.prompt", "8"}}),
            "train.prompt: not allowed beside train.method 'sft'; allowed: dpo, grpo, ppo");
  EXPECT_EQ(complaint({{"rollout.memory", "20GiB"}}),
            "rollout.memory: not allowed beside train.method 'dpo'; allowed: grpo");
  EXPECT_EQ(complaint({{"train.method", "grpo"}, {"rollout.sleeps", "true"}}),
            "rollout.sleeps: not allowed without rollout.memory; allowed: the size that the engine takes");
  EXPECT_EQ(complaint({{"rollout.batch", "8"}}),
            "rollout.batch: not allowed beside train.method 'dpo'; allowed: ppo");
  EXPECT_EQ(complaint({{"train.method", "ppo"}, {"adapter.kind", "lora"}}),
            "adapter.kind: 'lora' is not modelled beside train.method 'ppo'; allowed: none");
  EXPECT_EQ(
      complaint({{"train.method", "ppo"}, {"train.recompute", "full"}}),
      "train.recompute: 'full' is not modelled beside train.method 'ppo', whose trainer recomputes nothing; "
      "allowed: none");
  EXPECT_EQ(complaint({{"train.reference", "base"}}),
            "train.reference: 'base' is not allowed without adapter.kind; allowed: copy, precomputed");
  EXPECT_EQ(complaint({{"train.reference", "copy"}, {"adapter.kind", "lora"}}),
            "train.reference: 'copy' is not allowed beside adapter.kind; allowed: base, which is the model "
            "without its adapters, precomputed");
  EXPECT_EQ(complaint({{"train.prompt", "512"}}),
            "train.prompt: '512' is not allowed; allowed: whole numbers from 0 to 511");
  EXPECT_EQ(
      complaint({{"train.framework", "pytorch"}}),
      "train.method: 'dpo' is not modelled beside this train.framework or what it cannot play; allowed: "
      "transformers, of a model whose code is known");
}

}  // namespace
}  // namespace spillway::estimator::test
