// bench_estimator: what one estimate costs, and one configuration of a sweep, which also reads its settings.
#include <benchmark/benchmark.h>

#include <string>

#include "estimator/estimate.h"
#include "estimator/inputs/run_file.h"

namespace spillway::estimator {
namespace {

RunKeys llama(int64_t hidden, int64_t ffn, int64_t layers, int64_t heads) {
  return {{"model.model_type", "llama"},
          {"model.hidden_size", std::to_string(hidden)},
          {"model.intermediate_size", std::to_string(ffn)},
          {"model.num_hidden_layers", std::to_string(layers)},
          {"model.num_attention_heads", std::to_string(heads)},
          {"model.num_key_value_heads", "8"},
          {"model.vocab_size", "128256"},
          {"model.max_position_embeddings", "131072"},
          {"train.sequence", "8192"},
          {"parallel.gpus", "512"},
          {"parallel.tensor", "8"},
          {"parallel.zero", "3"}};
}

RunKeys small() {
  return llama(4096, 14336, 32, 32);
}

// 405 billion parameters.
RunKeys large(const char* pipeline, const char* allocator) {
  RunKeys keys = llama(16384, 53248, 126, 128);
  keys["parallel.pipeline"] = pipeline;
  keys["allocator.model"] = allocator;
  return keys;
}

void one_estimate(benchmark::State& state, const RunKeys& keys) {
  const Result<TrainingRun> run = read_run(keys);
  if (!run.ok()) return state.SkipWithError(run.status().text().c_str());
  for (auto _ : state) {
    const Result<Estimate> answer = estimate(run.value());
    benchmark::DoNotOptimize(answer.value().peak().peak_bytes);
  }
}

void one_configuration(benchmark::State& state, const RunKeys& base) {
  int64_t batch = 0;
  for (auto _ : state) {
    RunKeys keys = base;
    keys["train.micro_batch"] = std::to_string(1 + batch++ % 64);
    const Result<TrainingRun> run = read_run(keys);
    const Result<Estimate> answer = estimate(run.value());
    benchmark::DoNotOptimize(answer.value().peak().peak_bytes);
  }
}

BENCHMARK_CAPTURE(one_estimate, llama_8b, small())->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(one_estimate, llama_405b, large("1", "spillway"))->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(one_estimate, llama_405b_2_stages, large("2", "spillway"))->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(one_estimate, llama_405b_pytorch_rounding, large("1", "pytorch"))
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(one_configuration, llama_8b, small())->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace spillway::estimator

BENCHMARK_MAIN();
