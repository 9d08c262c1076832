// Training runs that several tests of the estimator start from.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "estimator/buckets/states.h"
#include "estimator/estimate.h"
#include "estimator/inputs/run_file.h"

namespace spillway::estimator::test {

inline RunKeys llama(int64_t hidden, int64_t ffn, int64_t layers, int64_t heads, int64_t key_value_heads,
                     int64_t vocabulary, bool tied = false) {
  return {{"model.model_type", "llama"},
          {"model.hidden_size", std::to_string(hidden)},
          {"model.intermediate_size", std::to_string(ffn)},
          {"model.num_hidden_layers", std::to_string(layers)},
          {"model.num_attention_heads", std::to_string(heads)},
          {"model.num_key_value_heads", std::to_string(key_value_heads)},
          {"model.vocab_size", std::to_string(vocabulary)},
          {"model.tie_word_embeddings", tied ? "true" : "false"},
          {"model.max_position_embeddings", "131072"}};
}

inline RunKeys llama32_3b() {
  RunKeys keys = llama(3072, 8192, 28, 24, 8, 128256, true);
  keys["model.head_dim"] = "128";
  return keys;
}

inline RunKeys with(RunKeys keys, const RunKeys& more) {
  for (const auto& [key, value] : more) keys[key] = value;
  return keys;
}

inline TrainingRun must_read(const RunKeys& keys) {
  Result<TrainingRun> run = read_run(keys);
  EXPECT_TRUE(run.ok()) << run.status().text();
  return run.ok() ? std::move(run.value()) : TrainingRun{};
}

inline Estimate must_estimate(const TrainingRun& run) {
  Result<Estimate> answer = estimate(run);
  EXPECT_TRUE(answer.ok()) << answer.status().text();
  return answer.ok() ? std::move(answer.value()) : Estimate{};
}

// Of the rank class with the highest peak.
inline RankClass must_rank(const Result<TrainingRun>& run) {
  EXPECT_TRUE(run.ok()) << run.status().text();
  return run.ok() ? must_estimate(run.value()).peak() : RankClass{};
}

// Empty where the run was read.
inline std::string complaint_of(const Result<TrainingRun>& run) {
  return run.ok() ? "" : run.status().text();
}

constexpr double kGB = 1e9;

// Gigabytes of weights, gradients and the optimizer's share, of a dense model without experts in mixed fp16.
inline double states_gb(double parameters, int64_t ranks, DataSharding sharding) {
  TrainingRun run;
  run.framework = Framework::kPytorch;
  run.training.precision = Precision::kFp16;
  run.training.fp32_gradients = false;
  run.parallel.world = ranks;
  run.parallel.sharding = sharding;
  const StateBytes states = state_bytes(run, {static_cast<int64_t>(parameters), 0});
  return (states.weights + states.gradients + states.master + states.moments) / kGB;
}

}  // namespace spillway::estimator::test
