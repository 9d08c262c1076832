// Servers of generated text against what vLLM and SGLang printed when people started them.
#include "estimator/serving/serving.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "estimator/inputs/known_models.h"
#include "estimator/inputs/serving.h"
#include "tests/support/training_runs.h"

namespace spillway::estimator::test {
namespace {

using Json = nlohmann::json;

constexpr double kGiB = 1 << 30;
constexpr double kTolerance = 0.02;

ServingRun must_serve(const RunKeys& keys) {
  Result<ServingRun> run = read_serving(keys);
  EXPECT_TRUE(run.ok()) << run.status().text();
  return run.ok() ? std::move(run.value()) : ServingRun{};
}

std::string complaint(const RunKeys& keys) {
  const Result<ServingRun> run = read_serving(keys);
  return run.ok() ? "" : run.status().text();
}

RunKeys llama_8b() {
  return with(llama(4096, 14336, 32, 32, 8, 128256), {{"model.max_position_embeddings", "131072"}});
}

// --- Published starts.

std::vector<Json> starts() {
  std::ifstream file(SPILLWAY_PARAMETERS "/serving-starts.jsonl");
  std::vector<Json> out;
  for (std::string line; std::getline(file, line);) out.push_back(Json::parse(line));
  return out;
}

RunKeys keys_of(const Json& row) {
  Result<RunKeys> keys = read_model_json(row["config"].dump());
  EXPECT_TRUE(keys.ok()) << keys.status().text();
  RunKeys out = keys.value();
  for (const auto& [key, value] : row["serve"].items())
    out["serve." + key] = value.is_string() ? value.get<std::string>() : value.dump();
  if (row.contains("cache_gib"))
    out["serve.kv_cache_memory_bytes"] = fmt::format("{}GiB", row["cache_gib"].get<double>());
  return out;
}

struct Start {
  double weights_gib = 0;
  double request_gib = 0;
  EngineAnswer engine = {};
};

Start start_of(const Json& row) {
  const ServingRun run = must_serve(keys_of(row));
  const ServingEstimate estimate = estimate_serving(run, GpuMemory{"h100-80", 79 * kGiB});
  return {estimate.weight_bytes / kGiB, estimate.token_bytes * static_cast<double>(estimate.length) / kGiB,
          row.value("engine", "vllm") == "sglang" ? estimate.sglang : estimate.vllm};
}

// Everything that a row's log says, beside ours.
struct Compared {
  std::string what;
  double printed = 0;
  double ours = 0;
};

std::vector<Compared> compared(const Json& row) {
  const Start start = start_of(row);
  std::vector<Compared> out;
  const auto add = [&](const char* key, double ours) {
    if (row.contains(key)) out.push_back({key, row[key].get<double>(), ours});
  };
  add("weights_gib", start.weights_gib);
  add("request_gib", start.request_gib);
  add("tokens", static_cast<double>(start.engine.tokens));
  add("concurrency", start.engine.concurrency);
  return out;
}

TEST(ServingStarts, AreMetWithinTwoPercent) {
  size_t weights = 0, tokens = 0;
  for (const Json& row : starts()) {
    for (const Compared& figure : compared(row)) {
      // A hundredth is the log's last digit.
      EXPECT_NEAR(figure.ours, figure.printed, kTolerance * figure.printed + 0.005)
          << row["source"] << " " << row["model"] << ": " << figure.what;
      weights += figure.what == "weights_gib" ? 1 : 0;
      tokens += figure.what == "tokens" ? 1 : 0;
    }
  }
  EXPECT_GE(weights, 10u);
  EXPECT_GE(tokens, 10u);
}

std::string page_row(const Json& row) {
  std::string out =
      fmt::format("| [{}]({}) | {} |", row["model"].get<std::string>(), row["source"].get<std::string>(),
                  row.value("engine", "vllm") == "sglang" ? "SGLang" : "vLLM");
  const std::vector<Compared> figures = compared(row);
  for (const char* what : {"weights_gib", "request_gib", "tokens", "concurrency"}) {
    std::string cell = "  |";
    for (const Compared& figure : figures) {
      if (figure.what == what)
        cell = fmt::format(" {:.7g} : {:.7g} ({:+.1f} %) |", figure.printed, figure.ours,
                           100 * (figure.ours / figure.printed - 1));
    }
    out += cell;
  }
  return out;
}

TEST(ServingStarts, PageShowsEach) {
  std::ifstream file(SPILLWAY_SERVING_PAGE);
  std::ostringstream page;
  page << file.rdbuf();
  for (const Json& row : starts())
    EXPECT_NE(page.str().find(page_row(row)), std::string::npos) << page_row(row);
}

// --- Rules that no start shows alone.

TEST(Serving, KeysAndValuesOfFewerHeadsThanRanksAreOnEach) {
  const auto token_bytes = [](const char* ranks) {
    const ServingRun run = must_serve(with(llama_8b(), {{"serve.tensor_parallel_size", ranks}}));
    return estimate_serving(run, GpuMemory{"h100-80", 79 * kGiB}).token_bytes;
  };
  EXPECT_EQ(token_bytes("1"), 131072);
  EXPECT_EQ(token_bytes("8"), 131072 / 8);
  EXPECT_EQ(token_bytes("16"), 131072 / 8);
}

TEST(Serving, StagesHoldTheirLayersAndTables) {
  const ServingRun run = must_serve(with(llama_8b(), {{"serve.pipeline_parallel_size", "3"}}));
  EXPECT_EQ(serving_stage(run, 0).end, 11u);
  EXPECT_EQ(serving_stage(run, 1).end, 22u);
  EXPECT_EQ(serving_stage(run, 2).end, 32u);
  const double rotary = 131072.0 * 128 * 2;
  double sum = -2 * rotary;
  for (int64_t stage = 0; stage < 3; ++stage) sum += serving_weight_bytes(run, stage);
  EXPECT_EQ(sum, serving_weight_bytes(must_serve(llama_8b()), 0));
}

TEST(Serving, ExpertsAreSharedOutOverDataParallelRanks) {
  RunKeys keys;
  for (const Json& row : starts()) {
    if (row["model"] == "Qwen3 30B-A3B") keys = keys_of(row);
  }
  keys["serve.tensor_parallel_size"] = "1";
  keys["serve.data_parallel_size"] = "4";
  const double each = serving_weight_bytes(must_serve(keys), 0);
  keys["serve.enable_expert_parallel"] = "true";
  const double shared = serving_weight_bytes(must_serve(keys), 0);
  const double experts = 48.0 * 128 * 3 * 2048 * 768 * 2;
  EXPECT_EQ(each - shared, experts * 3 / 4);
}

// A window of 1024 and blocks of 16: what is out of reach is free again.
TEST(Serving, WindowsBoundWhatARequestHolds) {
  RunKeys keys = with(llama_8b(), {{"model.sliding_window", "1024"},
                                   {"model.model_type", "mistral"},
                                   {"serve.kv_cache_memory_bytes", "8GiB"},
                                   {"serve.max_num_batched_tokens", "2048"},
                                   {"serve.max_model_len", "100000"}});
  const EngineAnswer windowed = estimate_serving(must_serve(keys), {}).vllm;
  EXPECT_EQ(windowed.longest, kMostTokens);
  const double blocks = std::floor(8 * kGiB / (131072.0 * 16));
  EXPECT_DOUBLE_EQ(windowed.concurrency, blocks / (std::ceil((1023.0 + 2048) / 16) + 1));
  keys["model.sliding_window"] = "null";
  const EngineAnswer whole = estimate_serving(must_serve(keys), {}).vllm;
  EXPECT_EQ(whole.longest, static_cast<int64_t>(blocks) * 16);
  EXPECT_DOUBLE_EQ(whole.concurrency, blocks / 6250);
}

size_t windows(const ServingRun& run) {
  size_t out = 0;
  for (const std::vector<CacheLayer>& layer : run.caches) {
    for (const CacheLayer& cache : layer) out += cache.kind == CacheKind::kWindow ? 1 : 0;
  }
  return out;
}

// Gemma 4 E2B: 20 of 35 layers use the keys and values of layers 13 and 14. vLLM makes their matrices all
// the same, and divides the table of the layers' inputs.
TEST(Serving, LayersThatShareKeysCacheNone) {
  RunKeys keys = known_model_keys(*find_known_model("gemma-4-e2b"));
  const ServingRun run = must_serve(keys);
  size_t caches = 0;
  for (const std::vector<CacheLayer>& layer : run.caches) caches += layer.size();
  EXPECT_EQ(caches, 15u);
  EXPECT_EQ(windows(run), 12u);
  RunKeys alone = keys;
  alone["model.num_kv_shared_layers"] = "0";
  alone["model.use_double_wide_mlp"] = "false";
  keys["model.use_double_wide_mlp"] = "false";
  const double head_norms = 2.0 * (16 * 256 + 4 * 512);
  EXPECT_DOUBLE_EQ(serving_weight_bytes(must_serve(alone), 0) - serving_weight_bytes(must_serve(keys), 0),
                   head_norms);
  keys["serve.tensor_parallel_size"] = "2";
  RunKeys fewer = keys;
  fewer["model.vocab_size_per_layer_input"] = "200000";
  EXPECT_DOUBLE_EQ(serving_weight_bytes(must_serve(keys), 0) - serving_weight_bytes(must_serve(fewer), 0),
                   62144.0 * 35 * 256 * 2 / 2);
}

// As Gemma4TextConfig fills them in: five of six layers, and never the last one.
TEST(Serving, WindowsOfAGemma4ThatDoesNotSayThem) {
  RunKeys keys = known_model_keys(*find_known_model("gemma-4-26b-a4b"));
  keys.erase("model.layer_types");
  keys.erase("model.sliding_window");
  keys["model.num_hidden_layers"] = "8";
  const ServingRun run = must_serve(keys);
  EXPECT_EQ(windows(run), 6u);
  EXPECT_EQ(run.caches.back().front().kind, CacheKind::kFull);
  EXPECT_EQ(run.caches.front().front().reach, 512);
}

// The profile run took so much beside the weights, from starts that say so.
TEST(Serving, ProfileRunIsTheFeedForwardOrTheSampler) {
  const ServingRun llama = must_serve(with(llama_8b(), {{"serve.vllm_version", "0.6"}}));
  EXPECT_NEAR(profile_bytes(llama, 20000, 256, nullptr) / kGiB, 17.06 - 14.99, 0.02);
  EXPECT_NEAR(profile_bytes(llama, 29000, 256, nullptr) / kGiB, 17.98 - 14.99, 0.02);
  for (const Json& row : starts()) {
    const bool sampler = row["model"] == "DeepSeek-R1-Distill-Qwen 1.5B";
    const bool forward = row["model"] == "Qwen3 4B AWQ";
    if (!sampler && !forward) continue;
    const double ours = profile_bytes(must_serve(keys_of(row)), sampler ? 2048 : 8192, 256, nullptr);
    EXPECT_NEAR(ours / kGiB, sampler ? 1.39 : 0.57, 0.02);
  }
}

// The budget, end to end: what was printed as available, from the GPU and the options alone.
TEST(Serving, CacheIsWhatTheGpuLeaves) {
  for (const Json& row : starts()) {
    if (!row.contains("gpu") || !row.contains("cache_gib")) continue;
    RunKeys keys = keys_of(row);
    keys.erase("serve.kv_cache_memory_bytes");
    const Result<GpuMemory> gpu = gpu_memory(row["gpu"]);
    ASSERT_TRUE(gpu.ok());
    const double ours = estimate_serving(must_serve(keys), gpu.value()).vllm.cache_bytes / kGiB;
    EXPECT_NEAR(ours, row["cache_gib"].get<double>(), 0.5) << row["model"];
  }
}

TEST(Serving, SaysWhatIsWrong) {
  const auto says = [](const RunKeys& changes, const char* text) {
    const std::string found = complaint(with(llama_8b(), changes));
    EXPECT_NE(found.find(text), std::string::npos) << found;
  };
  says({{"serve.tensor_parallel_size", "3"}}, "divisors of 32 attention heads");
  says({{"serve.tensor_parallel_size", "0"}}, "serve.tensor_parallel_size");
  says({{"serve.pipeline_parallel_size", "33"}}, "up to 32 layers");
  says({{"serve.gpu_memory_utilization", "1.5"}}, "serve.gpu_memory_utilization");
  says({{"serve.kv_cache_dtype", "fp7"}}, "serve.kv_cache_dtype");
  says({{"serve.kv_cache_memory_bytes", "0"}}, "sizes such as 8GiB");
  says({{"serve.vllm_version", "new"}}, "versions such as 0.11");
  says({{"serve.max_modle_len", "4096"}}, "did you mean 'serve.max_model_len'?");
  says({{"model.model_type", "bert"}}, "generates no text");
  says({{"model.model_type", "t5"}}, "t5");
}

TEST(Serving, KnowsTheEnginesOptions) {
  EXPECT_EQ(serving_key("max_model_len"), "serve.max_model_len");
  EXPECT_EQ(serving_key("--tensor-parallel-size"), "serve.tensor_parallel_size");
  EXPECT_EQ(serving_key("tp"), "serve.tensor_parallel_size");
  EXPECT_EQ(serving_key("train.micro_batch"), "train.micro_batch");
}

}  // namespace
}  // namespace spillway::estimator::test
