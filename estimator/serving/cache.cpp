#include <algorithm>
#include <cmath>

#include "estimator/serving/serving.h"

namespace spillway::estimator {
namespace {

// Layers that have the same kind of page, of which vLLM makes a group or several of the same size.
struct Group {
  CacheKind kind = CacheKind::kFull;
  int64_t reach = 0;
  double unit_bytes = 0;  // of a token, or of a state
  int64_t block = 0;      // tokens of a page
  std::vector<size_t> layers = {};
};

// Since then "GPU KV cache size" is the concurrency times the length; before it named the blocks that every
// group has.
constexpr EngineVersion kDerivedTokens{0, 21};

int64_t ceil_div(int64_t number, int64_t by) {
  return (number + by - 1) / by;
}

std::vector<Group> same_pages(const ServingRun& run) {
  std::vector<Group> out;
  for (size_t layer = 0; layer < run.caches.size(); ++layer) {
    for (const CacheLayer& cache : run.caches[layer]) {
      const double unit = layer_cache_bytes(cache, run.settings);
      const auto found = std::find_if(out.begin(), out.end(), [&](const Group& group) {
        return group.kind == cache.kind && group.reach == cache.reach && group.unit_bytes == unit;
      });
      if (found != out.end()) {
        found->layers.push_back(layer);
      } else {
        out.push_back({cache.kind, cache.reach, unit, run.settings.block, {layer}});
      }
    }
  }
  return out;
}

bool is_latent(const ServingRun& run) {
  for (const std::vector<CacheLayer>& layer : run.caches) {
    for (const CacheLayer& cache : layer) {
      if (cache.latent) return true;
    }
  }
  return false;
}

// All pages become as large as the largest: a block of attention holds more tokens until its page is no
// smaller than a state, and layers whose tokens are smaller hold more of them. Returns a page's bytes.
double unify_pages(const ServingRun& run, std::vector<Group>& groups) {
  double state = 0, token = 0;
  for (const Group& group : groups)
    (group.kind == CacheKind::kState ? state : token) =
        std::max(group.kind == CacheKind::kState ? state : token, group.unit_bytes);
  if (token == 0) return state;
  const int64_t alignment = is_latent(run) ? 64 : 16;
  const auto needed = static_cast<int64_t>(std::ceil(state / token));
  const int64_t block = std::max(run.settings.block, ceil_div(needed, alignment) * alignment);
  const double page = token * static_cast<double>(block);
  for (Group& group : groups) {
    if (group.kind != CacheKind::kState)
      group.block = std::max<int64_t>(1, static_cast<int64_t>(page / group.unit_bytes));
  }
  return page;
}

// Groups of equally many layers; the last of a kind may have fewer.
std::vector<Group> split(const std::vector<Group>& kinds) {
  size_t least = kinds.front().layers.size(), most = least;
  for (const Group& kind : kinds) {
    least = std::min(least, kind.layers.size());
    most = std::max(most, kind.layers.size());
  }
  // Padding is cheaper than many groups where kinds have nearly as many layers.
  const size_t size = 2 * most < 3 * least ? most : least;
  std::vector<Group> out;
  for (const Group& kind : kinds) {
    const size_t count = (kind.layers.size() + size - 1) / size;
    for (size_t i = 0; i < count; ++i) {
      Group group = kind;
      group.layers.clear();
      for (size_t at = i; at < kind.layers.size(); at += count) group.layers.push_back(kind.layers[at]);
      out.push_back(std::move(group));
    }
  }
  return out;
}

class VllmCache {
 public:
  VllmCache(const ServingRun& run, int64_t batched_tokens) : run_(run), batched_(batched_tokens) {
    std::vector<Group> kinds = same_pages(run);
    if (kinds.empty()) return;
    const bool one_kind = std::all_of(kinds.begin(), kinds.end(), [&](const Group& group) {
      return group.kind == kinds.front().kind && group.reach == kinds.front().reach;
    });
    if (one_kind && kinds.front().kind != CacheKind::kState) {
      groups_ = std::move(kinds);
      merged_ = true;
      return;
    }
    page_ = unify_pages(run, kinds);
    groups_ = split(kinds);
  }

  bool empty() const { return groups_.empty(); }

  int64_t block() const {
    int64_t least = run_.settings.block;
    bool any = false;
    for (const Group& group : groups_) {
      if (group.kind == CacheKind::kState) continue;
      least = any ? std::min(least, group.block) : group.block;
      any = true;
    }
    return least;
  }

  // Counts those of the stage that has room for the fewest.
  int64_t blocks(double bytes) const {
    double out = -1;
    for (int64_t stage = 0; stage < run_.settings.pipeline; ++stage) {
      const double one = block_bytes(serving_stage(run_, stage));
      if (one <= 0) continue;
      const double count = std::floor(std::max(0.0, bytes) / one);
      out = out < 0 ? count : std::min(out, count);
    }
    return static_cast<int64_t>(std::max(0.0, out));
  }

  int64_t blocks_of_request(int64_t length) const {
    if (merged_) return group_blocks(groups_.front(), length);
    int64_t out = 0;
    for (const Group& group : groups_) out += group_blocks(group, length);
    return out;
  }

  size_t group_count() const { return merged_ ? 1 : groups_.size(); }

 private:
  double block_bytes(const StageSpan& span) const {
    const auto here = [&](const Group& group) {
      return std::count_if(group.layers.begin(), group.layers.end(),
                           [&](size_t layer) { return layer >= span.first && layer < span.end; });
    };
    double sum = 0, most = 0;
    for (const Group& group : groups_) {
      const auto layers = static_cast<double>(here(group));
      sum += layers * group.unit_bytes * static_cast<double>(group.block);
      most = std::max(most, layers);
    }
    return merged_ ? sum : most * page_;
  }

  int64_t group_blocks(const Group& group, int64_t length) const {
    switch (group.kind) {
      case CacheKind::kFull:
        return ceil_div(length, group.block);
      case CacheKind::kWindow:
        // A window need not begin where a block does.
        return ceil_div(std::min(group.reach - 1 + batched_, length), group.block) + 1;
      case CacheKind::kChunk:
        return ceil_div(std::min(group.reach + batched_, length), group.block);
      case CacheKind::kState:
        // One that is written, and with prefix caching, which these models have had since 0.21, one that is
        // read.
        return run_.settings.prefix_caching && !(run_.settings.version < kDerivedTokens) ? 2 : 1;
    }
    return 0;
  }

  const ServingRun& run_;
  int64_t batched_;
  std::vector<Group> groups_ = {};
  double page_ = 0;
  bool merged_ = false;  // one group whose pages' bytes add up
};

template <typename Fits>
int64_t longest_that(const Fits& fits, int64_t most) {
  int64_t low = 0, high = most;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// SGLang's pools of models with windows or states: server_args.py, swa_full_tokens_ratio and
// mamba_full_memory_ratio.
constexpr double kWindowTokens = 0.8;
constexpr double kStateMemory = 0.9;

}  // namespace

double layer_cache_bytes(const CacheLayer& layer, const ServingSettings& settings) {
  const auto ranks = static_cast<double>(settings.tensor);
  if (layer.kind == CacheKind::kState)
    return static_cast<double>(layer.convolution) / ranks * settings.element_bytes +
           static_cast<double>(layer.recurrent) / ranks * settings.recurrent_bytes;
  if (layer.latent) return static_cast<double>(layer.width) * settings.cache_bytes;
  const double heads = std::max(1.0, static_cast<double>(layer.heads) / ranks);
  return heads * static_cast<double>(layer.width) * settings.cache_bytes;
}

EngineAnswer vllm_cache(const ServingRun& run, double bytes, int64_t length, int64_t batched_tokens,
                        int64_t* block) {
  EngineAnswer out;
  out.cache_bytes = bytes;
  const VllmCache cache(run, batched_tokens);
  if (cache.empty()) return out;
  if (block != nullptr) *block = cache.block();
  const int64_t blocks = cache.blocks(bytes);
  out.concurrency = static_cast<double>(blocks) / static_cast<double>(cache.blocks_of_request(length));
  out.tokens = run.settings.version < kDerivedTokens
                   ? blocks / static_cast<int64_t>(cache.group_count()) * cache.block()
                   : static_cast<int64_t>(out.concurrency * static_cast<double>(length));
  out.longest =
      longest_that([&](int64_t tokens) { return cache.blocks_of_request(tokens) <= blocks; }, kMostTokens);
  out.largest_batch = static_cast<int64_t>(out.concurrency);
  return out;
}

EngineAnswer sglang_cache(const ServingRun& run, double bytes, int64_t length) {
  EngineAnswer out;
  out.cache_bytes = bytes;
  double states_bytes = -1, tokens = -1;
  for (int64_t stage = 0; stage < run.settings.pipeline; ++stage) {
    const StageSpan span = serving_stage(run, stage);
    double full = 0, window = 0, state = 0;
    for (size_t layer = span.first; layer < span.end; ++layer) {
      for (const CacheLayer& cache : run.caches[layer])
        (cache.kind == CacheKind::kState  ? state
         : cache.kind == CacheKind::kFull ? full
                                          : window) += layer_cache_bytes(cache, run.settings);
    }
    const double states = state > 0 ? bytes * kStateMemory / (1 + kStateMemory) : 0;
    const double token = full > 0 ? full + kWindowTokens * window : window;
    if (token > 0) {
      const double here = std::floor(std::max(0.0, bytes - states) / token);
      tokens = tokens < 0 ? here : std::min(tokens, here);
    }
    if (state > 0) {
      const double here = std::floor(std::max(0.0, token > 0 ? states : bytes) / state);
      states_bytes = states_bytes < 0 ? here : std::min(states_bytes, here);
    }
  }
  out.tokens = static_cast<int64_t>(std::max(0.0, tokens));
  const double by_tokens = tokens < 0 ? -1 : tokens / static_cast<double>(length);
  out.concurrency = by_tokens < 0      ? std::max(0.0, states_bytes)
                    : states_bytes < 0 ? by_tokens
                                       : std::min(by_tokens, states_bytes);
  out.longest = out.tokens;
  out.largest_batch = static_cast<int64_t>(out.concurrency);
  return out;
}

}  // namespace spillway::estimator
