// Memory of a server of generated text: weights, the cache of keys and values, what the start's profile run
// takes, and how many tokens are left room for, as vLLM and SGLang count them.
// Sources: vLLM, v1/core/kv_cache_utils.py, v1/kv_cache_interface.py, v1/worker/gpu_worker.py,
// model_executor/layers/mamba/mamba_utils.py; SGLang, model_executor/model_runner.py, server_args.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "estimator/gpus.h"
#include "estimator/model.h"
#include "estimator/run.h"

namespace spillway::estimator {

enum class CacheKind {
  kFull,    // keys and values of every token
  kWindow,  // of the last `reach` tokens
  kChunk,   // of the tokens in the chunk of `reach` that the newest one is in
  kState,   // of a fixed size for each sequence: state spaces, linear attention, convolutions
};

// Says what one block keeps of each sequence.
struct CacheLayer {
  CacheKind kind = CacheKind::kFull;
  int64_t reach = 0;
  // These are of attention, in elements for each token: widths of one key and one value, and how many of
  // both. One latent vector (MLA) is a key without a value, the same on every tensor-parallel rank.
  int64_t heads = 0;
  int64_t width = 0;
  bool latent = false;
  // This is of a state, in elements for each sequence.
  int64_t convolution = 0;
  int64_t recurrent = 0;
};

// vLLM's answer differs by version; "0.21" is {0, 21}.
struct EngineVersion {
  int64_t major = 0;
  int64_t minor = 24;
  bool operator<(const EngineVersion& other) const {
    return major != other.major ? major < other.major : minor < other.minor;
  }
};

// Keys of [serve]; the engines' own names. 0 where the engine decides by the GPU.
struct ServingSettings {
  int64_t tensor = 1;
  int64_t pipeline = 1;
  int64_t data = 1;
  bool expert_parallel = false;
  double utilization = 0.9;    // gpu_memory_utilization
  double static_fraction = 0;  // mem_fraction_static
  int64_t length = 0;          // max_model_len
  int64_t batched_tokens = 0;  // max_num_batched_tokens
  int64_t sequences = 0;       // max_num_seqs
  double element_bytes = 2;    // of weights that are not quantised, and of activations
  double cache_bytes = 2;      // of a key's or value's element
  double recurrent_bytes = 2;  // of a recurrent state's element
  int64_t block = 16;          // tokens of a block of the cache
  bool graphs = true;          // CUDA graphs; false: enforce_eager
  bool prefix_caching = true;
  double cache_memory = 0;  // kv_cache_memory_bytes: bytes of the cache that somebody has decided
  int64_t requests = 1;     // that are to fit at once
  EngineVersion version = {};
};

struct ServingRun {
  Model model;
  FrozenWeights frozen = {};
  bool padded_experts = false;                       // their width is rounded up for the kernels of mxfp4
  std::vector<std::vector<CacheLayer>> caches = {};  // by layers
  double rotary_bytes = 0;                           // of the table of sines and cosines
  ServingSettings settings = {};
  Notes notes = {};
};

struct ServingBucket {
  const char* name;
  double bytes = 0;
  std::string formula;
};

// A cache without a bound on the length of a request is said to hold this.
constexpr int64_t kMostTokens = int64_t{1} << 40;

struct EngineAnswer {
  double cache_bytes = 0;     // that the engine gives its cache; less than none where weights do not fit
  int64_t tokens = 0;         // as the engine prints them
  double concurrency = 0;     // requests of `length` tokens at once
  int64_t longest = 0;        // tokens of the longest single request
  int64_t largest_batch = 0;  // whole requests of `length`
};

struct ServingEstimate {
  int64_t length = 0;
  int64_t batched_tokens = 0;
  int64_t sequences = 0;
  int64_t parameters = 0;
  double weight_bytes = 0;                  // of the fullest rank
  double token_bytes = 0;                   // of the cache on the fullest rank, where nothing is out of reach
  double sequence_bytes = 0;                // of states
  int64_t block = 0;                        // tokens of a block of vLLM's cache
  std::vector<ServingBucket> buckets = {};  // of vLLM's rank, up to the budget
  double budget_bytes = 0;
  EngineAnswer vllm = {};
  EngineAnswer sglang = {};
  double static_fraction = 0;

  bool fits(const ServingSettings& settings) const {
    return vllm.concurrency >= static_cast<double>(settings.requests);
  }
};

// Estimates what the engines hold on one GPU of that kind. Without one the cache's size must be settled.
ServingEstimate estimate_serving(const ServingRun& run, const std::optional<GpuMemory>& gpu);

// Bytes of weights on a rank of a pipeline stage, as vLLM says "Model loading took".
double serving_weight_bytes(const ServingRun& run, int64_t stage);

// First and one past the last layer of a stage.
struct StageSpan {
  size_t first = 0;
  size_t end = 0;
};
StageSpan serving_stage(const ServingRun& run, int64_t stage);

// Tokens that a cache of so many bytes on each rank holds. `sglang` fills in another engine's rules.
EngineAnswer vllm_cache(const ServingRun& run, double bytes, int64_t length, int64_t batched_tokens,
                        int64_t* block);
EngineAnswer sglang_cache(const ServingRun& run, double bytes, int64_t length);

// Bytes that one layer keeps on a rank: for each token, or for each sequence where it is a state.
double layer_cache_bytes(const CacheLayer& layer, const ServingSettings& settings);

// The most that the profile run takes beside the weights.
double profile_bytes(const ServingRun& run, int64_t batched_tokens, int64_t sequences, std::string* formula);

}  // namespace spillway::estimator
