#include <fmt/format.h>

#include <algorithm>

#include "estimator/measured.h"
#include "estimator/serving/serving.h"

namespace spillway::estimator {
namespace {

// Elements for each token that are alive at once where a block needs the most of them: results of a product
// beside its activation, the residual, and the block's input and output.
class BlockPeak {
 public:
  explicit BlockPeak(const ServingRun& run)
      : hidden_(static_cast<double>(run.model.hidden)),
        ranks_(static_cast<double>(run.settings.tensor)),
        expert_ranks_(run.settings.expert_parallel ? 1 : ranks_) {}

  double operator()(const Attention& block) const {
    const double heads = static_cast<double>(block.heads) / ranks_;
    if (block.latent.has_value()) {
      const LatentAttention& latent = *block.latent;
      const auto width = static_cast<double>(latent.head_dim + latent.rotary_dim);
      // Queries, keys and values of every head while a prompt is read.
      return heads * (2 * width + 2 * static_cast<double>(latent.value_dim)) + 2 * hidden_;
    }
    const double keys = std::max(1.0, static_cast<double>(block.key_value_heads) / ranks_);
    return static_cast<double>(block.head_dim) * ((block.gated ? 3 : 2) * heads + 2 * keys) + 2 * hidden_;
  }
  double operator()(const Mlp& block) const {
    return (block.gated ? 3 : 2) * static_cast<double>(block.ffn) / ranks_ + 3 * hidden_;
  }
  // fused_moe.py: the first product's result and the second's share a buffer beside the activation's.
  double operator()(const Experts& block) const {
    const double ffn = static_cast<double>(block.ffn) / expert_ranks_;
    const double first = (block.gated ? 2 : 1) * ffn;
    const double shared = 3 * static_cast<double>(block.shared_ffn) / ranks_;
    return static_cast<double>(block.top_k) * (std::max(first, hidden_) + ffn) + std::max(hidden_, shared) +
           2 * hidden_;
  }
  double operator()(const Mamba& block) const {
    return 3 * static_cast<double>(block.heads * block.head_dim) / ranks_ + 2 * hidden_;
  }
  double operator()(const Mixer& block) const {
    return static_cast<double>(block.saved) / ranks_ + 2 * hidden_;
  }
  double operator()(const PredictionInput&) const { return 0; }

 private:
  double hidden_, ranks_, expert_ranks_;
};

// The first version whose sampler does not sort.
constexpr EngineVersion kSamplesWithoutSorting{0, 20};
// The first that takes what CUDA graphs will need out of the cache's share.
constexpr EngineVersion kCountsGraphs{0, 21};
constexpr double kMiBs = 1 << 20;
constexpr double kGiBs = 1024 * kMiBs;

// vLLM, engine/arg_utils.py: GPUs of 70 GiB and more but the A100 have the larger defaults.
bool is_large(const GpuMemory& gpu) {
  return gpu.bytes >= 70 * kGiBs && gpu.name.rfind("a100", 0) != 0;
}

// SGLang, server_args.py: what is kept free for activations and graphs, by the GPU's size.
double sglang_fraction(const ServingSettings& settings, const GpuMemory& gpu) {
  struct Row {
    double below_gib;
    double prefill;
    double graph_small;  // up to three tensor-parallel ranks
    double graph_large;
  };
  constexpr std::array<Row, 5> kRows = {{{20, 2048, 8, 8},
                                         {35, 2048, 24, 80},
                                         {60, 4096, 32, 160},
                                         {90, 8192, 256, 512},
                                         {1e9, 16384, 256, 512}}};
  const auto* const row = std::find_if(kRows.begin(), kRows.end(),
                                       [&](const Row& each) { return gpu.bytes < each.below_gib * kGiBs; });
  const double graphs = settings.tensor < 4 ? row->graph_small : row->graph_large;
  const double reserved =
      512 + 1.5 * row->prefill + 2 * graphs + static_cast<double>(settings.tensor * settings.pipeline) * 128;
  return std::max(0.0, 1 - reserved * kMiBs / gpu.bytes);
}

class Estimator {
 public:
  Estimator(const ServingRun& run, const std::optional<GpuMemory>& gpu) : run_(run), gpu_(gpu) {
    const ServingSettings& settings = run.settings;
    const bool large = gpu.has_value() && is_large(*gpu);
    out_.length =
        settings.length > 0 ? settings.length : std::max<int64_t>(1, run.model.towers.back().sequence);
    out_.batched_tokens = settings.batched_tokens > 0 ? settings.batched_tokens : large ? 8192 : 2048;
    out_.sequences = settings.sequences > 0 ? settings.sequences : large ? 1024 : 256;
  }

  ServingEstimate answer() {
    out_.parameters = total_parameters(run_.model);
    for (int64_t stage = 0; stage < run_.settings.pipeline; ++stage)
      out_.weight_bytes = std::max(out_.weight_bytes, serving_weight_bytes(run_, stage));
    cache_sizes();
    std::string formula;
    const double profile = profile_bytes(run_, out_.batched_tokens, out_.sequences, &formula);
    const double libraries =
        kServingLibraryBytes.value +
        (run_.settings.tensor * run_.settings.pipeline > 1 ? kServingCommunicatorBytes.value : 0);
    const bool counts_graphs = run_.settings.graphs && !(run_.settings.version < kCountsGraphs);
    const double graphs = run_.settings.graphs ? graph_bytes() : 0;
    out_.buckets = {{"weights", out_.weight_bytes, "of the fullest rank"},
                    {"profile run", profile, formula},
                    {"libraries", libraries, "measured"}};
    if (counts_graphs) out_.buckets.push_back({"CUDA graphs", graphs, "8 MiB for each layer"});
    double taken = 0;
    for (const ServingBucket& bucket : out_.buckets) taken += bucket.bytes;
    out_.budget_bytes = gpu_ ? run_.settings.utilization * gpu_->bytes : 0;
    const double left =
        run_.settings.cache_memory > 0 ? run_.settings.cache_memory : out_.budget_bytes - taken;
    out_.vllm = vllm_cache(run_, left, out_.length, out_.batched_tokens, &out_.block);
    out_.vllm.largest_batch = std::min(out_.vllm.largest_batch, out_.sequences);
    out_.buckets.push_back({"cache of keys and values", left,
                            run_.settings.cache_memory > 0
                                ? "serve.kv_cache_memory_bytes"
                                : "what is left of gpu_memory_utilization x the GPU's memory"});
    if (gpu_) sglang();
    return std::move(out_);
  }

 private:
  // On the fullest rank.
  void cache_sizes() {
    for (int64_t stage = 0; stage < run_.settings.pipeline; ++stage) {
      const StageSpan span = serving_stage(run_, stage);
      double token = 0, sequence = 0;
      for (size_t layer = span.first; layer < span.end; ++layer) {
        for (const CacheLayer& cache : run_.caches[layer])
          (cache.kind == CacheKind::kState ? sequence : token) += layer_cache_bytes(cache, run_.settings);
      }
      out_.token_bytes = std::max(out_.token_bytes, token);
      out_.sequence_bytes = std::max(out_.sequence_bytes, sequence);
    }
  }

  double graph_bytes() const {
    const auto layers = static_cast<double>(run_.caches.size()) / static_cast<double>(run_.settings.pipeline);
    return layers * kGraphLayerBytes.value;
  }

  // Returns what is left of a share of the memory that was free before the weights came.
  void sglang() {
    const ServingSettings& settings = run_.settings;
    out_.static_fraction =
        settings.static_fraction > 0 ? settings.static_fraction : sglang_fraction(settings, *gpu_);
    const double free = gpu_->bytes - kContextBytes.value - kServingLibraryBytes.value -
                        (settings.tensor > 1 ? kCommunicatorBytes.value : 0);
    const double pool =
        settings.cache_memory > 0 ? settings.cache_memory : free * out_.static_fraction - out_.weight_bytes;
    out_.sglang = sglang_cache(run_, pool, out_.length);
  }

  const ServingRun& run_;
  const std::optional<GpuMemory>& gpu_;
  ServingEstimate out_ = {};
};

}  // namespace

double profile_bytes(const ServingRun& run, int64_t batched_tokens, int64_t sequences, std::string* formula) {
  double elements = 0;
  const BlockPeak peak(run);
  for (const Layer& layer : run.model.towers.back().layers) {
    for (const Block& block : layer) elements = std::max(elements, std::visit(peak, block));
  }
  const double forward = elements * static_cast<double>(batched_tokens) * run.settings.element_bytes;
  const double logit =
      run.settings.version < kSamplesWithoutSorting ? kSamplerBytesOld.value : kSamplerBytes.value;
  const double sampler = static_cast<double>(sequences) * static_cast<double>(run.model.vocabulary) * logit;
  if (formula != nullptr)
    *formula = sampler > forward ? fmt::format("{} sequences x {} logits x {} bytes", sequences,
                                               run.model.vocabulary, logit)
                                 : fmt::format("{} tokens x {:.0f} elements x {:g} bytes", batched_tokens,
                                               elements, run.settings.element_bytes);
  return std::max(forward, sampler);
}

ServingEstimate estimate_serving(const ServingRun& run, const std::optional<GpuMemory>& gpu) {
  return Estimator(run, gpu).answer();
}

}  // namespace spillway::estimator
