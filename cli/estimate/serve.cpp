#include "cli/estimate/serve.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/size.h"

namespace spillway {
namespace {

using estimator::EngineAnswer;
using estimator::GpuMemory;
using estimator::ServingEstimate;
using estimator::ServingRun;
using estimator::ServingSettings;
using Json = nlohmann::ordered_json;

std::string number(int64_t count) {
  return count >= estimator::kMostTokens ? "any number of"
                                         : grouped(static_cast<uint64_t>(std::max<int64_t>(0, count)));
}

std::string gib_of(double bytes) {
  return fmt::format("{:.2f}", bytes / kGiB);
}

std::string ranks(const ServingSettings& settings) {
  const int64_t gpus = settings.tensor * settings.pipeline * settings.data;
  if (gpus == 1) return "one GPU";
  std::string out = fmt::format("{} GPUs (tensor {}, pipeline {}, data {}", gpus, settings.tensor,
                                settings.pipeline, settings.data);
  return out + (settings.expert_parallel ? ", expert parallel)" : ")");
}

// Both engines' lines, each beside what the other one says of the same.
std::string engine_lines(const ServingEstimate& estimate) {
  struct Line {
    std::string vllm;
    std::string sglang;
  };
  const EngineAnswer& vllm = estimate.vllm;
  const EngineAnswer& sglang = estimate.sglang;
  const double elements = static_cast<double>(sglang.tokens) * estimate.token_bytes / 2;
  const std::vector<Line> lines = {
      {fmt::format("Model loading took {} GiB", gib_of(estimate.weight_bytes)),
       fmt::format("Load weight end. mem usage={} GB", gib_of(estimate.weight_bytes))},
      {fmt::format("Available KV cache memory: {} GiB", gib_of(vllm.cache_bytes)),
       fmt::format("KV Cache is allocated. #tokens: {}, K size: {} GB, V size: {} GB", sglang.tokens,
                   gib_of(elements), gib_of(elements))},
      {fmt::format("GPU KV cache size: {} tokens", number(vllm.tokens)),
       fmt::format("max_total_num_tokens={}", sglang.tokens)},
      {fmt::format("Maximum concurrency for {} tokens per request: {:.2f}x", number(estimate.length),
                   vllm.concurrency),
       fmt::format("mem_fraction_static={:.3f}, context_len={}", estimate.static_fraction, estimate.length)}};
  std::string out = fmt::format("  {:<62} {}\n", "vLLM", "SGLang");
  for (const Line& line : lines) out += fmt::format("  {:<62} {}\n", line.vllm, line.sglang);
  return out;
}

std::string bucket_rows(const ServingEstimate& estimate) {
  std::string out;
  double sum = 0;
  for (const estimator::ServingBucket& bucket : estimate.buckets) {
    out += fmt::format("  {:<26} {:>18.0f} {:>9}  {}\n", bucket.name, bucket.bytes, gib_of(bucket.bytes),
                       bucket.formula);
    sum += bucket.bytes;
  }
  return out + fmt::format("= {:<26} {:>18.0f} {:>9}\n", "on the fullest rank", sum, gib_of(sum));
}

std::string holds(const char* engine, const EngineAnswer& answer, const ServingEstimate& estimate) {
  return fmt::format(
      "  {:<7} holds {} tokens; the longest request has {} tokens; {} requests of {} at once\n", engine,
      number(answer.tokens), number(answer.longest), number(answer.largest_batch), number(estimate.length));
}

std::string text_of(const ServingRun& run, const ServingEstimate& estimate, const GpuMemory& gpu) {
  std::string out = fmt::format("{} ({} GiB)\n", gpu.name, gib_of(gpu.bytes));
  out += engine_lines(estimate) + bucket_rows(estimate);
  out += holds("vLLM", estimate.vllm, estimate) + holds("SGLang", estimate.sglang, estimate);
  const int64_t wanted = run.settings.requests;
  return out + fmt::format("{:<6} on {}: {} of {} request{} of {} tokens\n",
                           estimate.fits(run.settings) ? "FITS" : "NO", gpu.name,
                           std::min(wanted, estimate.vllm.largest_batch), wanted, wanted == 1 ? "" : "s",
                           number(estimate.length));
}

std::string head_of(const ServingRun& run, const ServingEstimate& estimate) {
  std::string out = fmt::format("{}: {} parameters on {}; a rank caches {} for each token", run.model.type,
                                grouped(static_cast<uint64_t>(estimate.parameters)), ranks(run.settings),
                                format_size(static_cast<uint64_t>(whole(estimate.token_bytes))));
  if (estimate.sequence_bytes > 0)
    out += fmt::format(", {} for each request",
                       format_size(static_cast<uint64_t>(whole(estimate.sequence_bytes))));
  return out + fmt::format("; blocks of {} tokens\n", estimate.block);
}

Json json_of(const EngineAnswer& answer) {
  const bool unbounded = answer.longest >= estimator::kMostTokens;
  return {{"cache_bytes", whole(answer.cache_bytes)},
          {"tokens", answer.tokens},
          {"concurrency", answer.concurrency},
          {"longest_request_tokens", unbounded ? Json(nullptr) : Json(answer.longest)},
          {"largest_batch", answer.largest_batch}};
}

Json json_of(const ServingRun& run, const ServingEstimate& estimate, const GpuMemory& gpu) {
  Json buckets = Json::array();
  for (const estimator::ServingBucket& bucket : estimate.buckets)
    buckets.push_back({{"name", bucket.name}, {"bytes", whole(bucket.bytes)}, {"formula", bucket.formula}});
  return {{"gpu", gpu.name},
          {"memory_bytes", whole(gpu.bytes)},
          {"verdict", estimate.fits(run.settings) ? "FITS" : "NO"},
          {"max_num_batched_tokens", estimate.batched_tokens},
          {"max_num_seqs", estimate.sequences},
          {"mem_fraction_static", estimate.static_fraction},
          {"buckets", buckets},
          {"vllm", json_of(estimate.vllm)},
          {"sglang", json_of(estimate.sglang)}};
}

}  // namespace

Answer answer_serve(const ServingRun& run, const std::vector<GpuMemory>& gpus, bool json) {
  Answer out;
  Json rows = Json::array();
  ServingEstimate estimate;
  for (const GpuMemory& gpu : gpus) {
    estimate = estimator::estimate_serving(run, gpu);
    out.yes = out.yes && estimate.fits(run.settings);
    if (out.text.empty()) out.text = head_of(run, estimate);
    out.text += text_of(run, estimate, gpu);
    rows.push_back(json_of(run, estimate, gpu));
  }
  if (json) {
    out.text = Json{{"schema_version", 1},
                    {"parameters", estimate.parameters},
                    {"weight_bytes", whole(estimate.weight_bytes)},
                    {"token_bytes", whole(estimate.token_bytes)},
                    {"request_bytes", whole(estimate.sequence_bytes)},
                    {"block_tokens", estimate.block},
                    {"length_tokens", estimate.length},
                    {"gpus", rows},
                    {"assumptions", run.notes.assumptions},
                    {"warnings", run.notes.warnings}}
                   .dump(2) +
               "\n";
  } else if (!run.notes.assumptions.empty()) {
    out.text += fmt::format("assumed: {}\n", fmt::join(run.notes.assumptions, "; "));
  }
  return out;
}

}  // namespace spillway
