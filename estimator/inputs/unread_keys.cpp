#include "estimator/inputs/unread_keys.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "estimator/inputs/key_values.h"

namespace spillway::estimator {
namespace {

// Words of keys that give weights their number or their size.
constexpr std::array kSizeWords = {std::string_view("bias"),
                                   std::string_view("expert"),
                                   std::string_view("moe"),
                                   std::string_view("mamba"),
                                   std::string_view("ssm"),
                                   std::string_view("conv"),
                                   std::string_view("state_size"),
                                   std::string_view("d_state"),
                                   std::string_view("d_inner"),
                                   std::string_view("expand"),
                                   std::string_view("kv_shared"),
                                   std::string_view("lora"),
                                   std::string_view("_rank"),
                                   std::string_view("hidden"),
                                   std::string_view("intermediate"),
                                   std::string_view("ffn"),
                                   std::string_view("layers"),
                                   std::string_view("layer_types"),
                                   std::string_view("block_type"),
                                   std::string_view("n_layer"),
                                   std::string_view("hybrid"),
                                   std::string_view("pattern"),
                                   std::string_view("heads"),
                                   std::string_view("n_head"),
                                   std::string_view("head_dim"),
                                   std::string_view("d_model"),
                                   std::string_view("d_ff"),
                                   std::string_view("d_kv"),
                                   std::string_view("embedding_size"),
                                   std::string_view("embedding_dim"),
                                   std::string_view("per_layer"),
                                   std::string_view("adapter"),
                                   std::string_view("qk_norm"),
                                   std::string_view("qk_layernorm"),
                                   std::string_view("codebooks"),
                                   std::string_view("vocab_size"),
                                   std::string_view("is_encoder_decoder")};

// Keys with such a word that change no weight.
constexpr std::array kNoSizes = {std::string_view("attention_layers"),
                                 std::string_view("chunk_size_feed_forward"),
                                 std::string_view("experts_implementation"),
                                 std::string_view("hidden_act"),
                                 std::string_view("hidden_activation"),
                                 std::string_view("hidden_dropout"),
                                 std::string_view("hidden_dropout_prob"),
                                 std::string_view("max_window_layers"),
                                 std::string_view("moe_aux_loss_coef"),
                                 std::string_view("moe_layers"),
                                 std::string_view("no_rope_layer_interval"),
                                 std::string_view("no_rope_layers"),
                                 std::string_view("num_experts_per_tok"),
                                 std::string_view("output_hidden_states"),
                                 std::string_view("qk_head_dim"),
                                 std::string_view("sliding_window_pattern"),
                                 std::string_view("_sliding_window_pattern"),
                                 std::string_view("use_mamba_kernels"),
                                 std::string_view("mamba_chunk_size")};

// Kinds of attention that have the same weights.
constexpr std::array<std::string_view, 4> kSameWeights = {"full_attention", "sliding_attention",
                                                          "chunked_attention", "global_attention"};

bool is_none(const std::string& value) {
  return value == "null" || value == "false" || value == "False" || value == "0" || value == "0.0" ||
         value == "[]" || value == "{}" || value.empty();
}

// A list of layers' kinds as JSON writes it.
bool only_attention(std::string list) {
  for (const std::string_view kind : kSameWeights) {
    for (size_t at = list.find(kind); at != std::string::npos; at = list.find(kind))
      list.erase(at, kind.size());
  }
  return list.find_first_not_of("[]\", ") == std::string::npos;
}

// Endings of keys that scale, choose a function or a type, and size nothing.
constexpr std::array kNoSizeEndings = {std::string_view("_act"),        std::string_view("_activation"),
                                       std::string_view("_dtype"),      std::string_view("multiplier"),
                                       std::string_view("multipliers"), std::string_view("_eps")};

bool gives_a_size(std::string_view key, const std::string& value) {
  if (is_none(value)) return false;
  if (std::any_of(kNoSizeEndings.begin(), kNoSizeEndings.end(),
                  [&](std::string_view ending) { return key.ends_with(ending); }))
    return false;
  if (std::find(kNoSizes.begin(), kNoSizes.end(), key) != kNoSizes.end()) return false;
  if (key == "layer_types" && only_attention(value)) return false;
  return std::any_of(kSizeWords.begin(), kSizeWords.end(),
                     [&](std::string_view word) { return key.find(word) != std::string_view::npos; });
}

bool is_part(std::string_view section) {
  constexpr std::string_view kEnding = "_config";
  return section.size() > kEnding.size() && section.substr(section.size() - kEnding.size()) == kEnding &&
         section != "quantization_config" && section != "generation_config" && section != "text_config";
}

}  // namespace

std::vector<std::string> unread_sizes(const KeyValues& values, const std::string& prefix) {
  std::set<std::string> found;
  for (const std::string& key : values.unread()) {
    if (key.rfind(prefix, 0) != 0) continue;
    const std::string name = key.substr(prefix.size());
    if (const size_t dot = name.find('.'); dot != std::string::npos) {
      if (is_part(name.substr(0, dot))) found.insert(name.substr(0, dot));
    } else if (gives_a_size(name, values.peek(key))) {
      found.insert(name);
    }
  }
  return {found.begin(), found.end()};
}

}  // namespace spillway::estimator
