#include "estimator/inputs/type_defaults.h"

#include <algorithm>
#include <map>
#include <vector>

#include "estimator/inputs/model_descriptions.h"

namespace spillway::estimator {
namespace {

// Types, then what they have in common. Source: transformers 4.57 and 5.17,
// models/<type>/configuration_<type>.py.
constexpr std::string_view kDefaults = R"(
Glm4vMoe_text glm4_moe glm4v_moe_text first_k_dense_replace=1 intermediate_size=10944
  moe_intermediate_size=1408 n_routed_experts=128 n_shared_experts=1 num_experts_per_tok=8
  num_key_value_heads=8
albert intermediate_size=16384
apertus intermediate_size=14336
arcee intermediate_size=18432
bamba intermediate_size=14336 mamba_n_heads=128 num_key_value_heads=8
bart m2m_100 marian mbart pegasus decoder_ffn_dim=4096 encoder_ffn_dim=4096
bert camembert data2vec-text deberta deit mpnet roberta roberta-prelayernorm siglip_text_model vit vit_msn
  xlm-roberta intermediate_size=3072
biogpt megatron-bert intermediate_size=4096
bitnet intermediate_size=6912 num_key_value_heads=5
blenderbot decoder_ffn_dim=10240 encoder_ffn_dim=10240
blenderbot-small decoder_ffn_dim=2048 encoder_ffn_dim=2048
clip_text_model intermediate_size=2048
cohere cohere2 intermediate_size=22528
cwm head_dim=128 intermediate_size=21504 num_key_value_heads=8
deberta-v2 intermediate_size=6144
deepseek_v2 first_k_dense_replace=0 intermediate_size=11008 kv_lora_rank=512 moe_intermediate_size=1407
  n_routed_experts=64 n_shared_experts=2 q_lora_rank=1536 qk_nope_head_dim=128 qk_rope_head_dim=64
  v_head_dim=128
deepseek_v3 kimi_k2 first_k_dense_replace=3 intermediate_size=18432 kv_lora_rank=512
  moe_intermediate_size=2048 n_routed_experts=256 n_shared_experts=1 num_experts_per_tok=8
  num_key_value_heads=128 q_lora_rank=1536 qk_nope_head_dim=128 qk_rope_head_dim=64 v_head_dim=128
distilbert hidden_dim=3072
electra intermediate_size=1024
ernie4_5 paddleocr_vl_text head_dim=128 intermediate_size=3072 num_key_value_heads=2
ernie4_5_moe intermediate_size=12288 moe_intermediate_size=1536 moe_k=6 moe_num_experts=64
  moe_num_shared_experts=2 num_key_value_heads=4
exaone4 exaone4_5_text intermediate_size=16384 num_key_value_heads=32
falcon_h1 intermediate_size=14336 mamba_d_ssm=1024 mamba_n_heads=128 num_key_value_heads=8
falcon_mamba mamba time_step_rank=auto
flex_olmo intermediate_size=11008 num_experts=7 num_experts_per_tok=5
gemma head_dim=256 intermediate_size=24576 num_key_value_heads=16
gemma2 gemma3_text vaultgemma head_dim=256 intermediate_size=9216 num_key_value_heads=4
gemma3n_text head_dim=256 intermediate_size=16384 num_key_value_heads=2 num_kv_shared_layers=15
gemma4_text head_dim=256 intermediate_size=9216 num_key_value_heads=4 num_kv_shared_layers=0
glm glm4 head_dim=128 intermediate_size=13696 num_key_value_heads=2
glm4_moe_lite intermediate_size=10240 kv_lora_rank=512 moe_intermediate_size=1536 n_routed_experts=64
  n_shared_experts=1 num_experts_per_tok=4 num_key_value_heads=20 q_lora_rank=768 qk_nope_head_dim=192
  qk_rope_head_dim=64 v_head_dim=256
glm4v_text intermediate_size=13696 num_key_value_heads=2
glm_ocr_text intermediate_size=4096 num_key_value_heads=8
gpt_neox nemotron intermediate_size=24576
gpt_oss head_dim=64 intermediate_size=2880 num_experts_per_tok=4 num_key_value_heads=8 num_local_experts=128
granite llama olmo olmo2 olmo3 intermediate_size=11008
granitemoe intermediate_size=11008 num_experts_per_tok=2 num_local_experts=8
granitemoehybrid intermediate_size=11008 mamba_n_heads=128 num_experts_per_tok=2 num_local_experts=8
  shared_intermediate_size=1024
helium head_dim=128 intermediate_size=7040 num_key_value_heads=20
jamba attn_layer_offset=4 attn_layer_period=8 expert_layer_offset=1 expert_layer_period=2
  intermediate_size=14336 mamba_dt_rank=auto num_experts=16 num_experts_per_tok=2 num_key_value_heads=8
kimi_linear intermediate_size=9216 kv_lora_rank=512 linear_head_dim=128 linear_num_heads=32
  moe_intermediate_size=1024 num_shared_experts=1 num_experts_per_token=8 num_key_value_heads=32
  num_experts=256 qk_nope_head_dim=128 qk_rope_head_dim=64 v_head_dim=128
lfm2 intermediate_size=12288 num_key_value_heads=8
llama4_text head_dim=128 interleave_moe_layer_step=1 intermediate_size=8192 intermediate_size_mlp=16384
  num_experts_per_tok=1 num_key_value_heads=8 num_local_experts=16
mamba2 head_dim=64 time_step_rank=auto
minicpm3 intermediate_size=6400 kv_lora_rank=256 num_key_value_heads=40 q_lora_rank=768 qk_nope_head_dim=64
  qk_rope_head_dim=32 tie_word_embeddings=true
minimax mixtral intermediate_size=14336 num_experts_per_tok=2 num_key_value_heads=8 num_local_experts=8
minimax_m2 head_dim=128 intermediate_size=1536 num_experts_per_tok=8 num_key_value_heads=8
  num_local_experts=256
ministral mistral intermediate_size=14336 num_key_value_heads=8
ministral3 head_dim=128 intermediate_size=14336 num_key_value_heads=8
mistral4 first_k_dense_replace=0 intermediate_size=12288 kv_lora_rank=256 moe_intermediate_size=2048
  n_routed_experts=128 n_shared_experts=1 num_experts_per_tok=4 num_key_value_heads=32 q_lora_rank=1024
  qk_nope_head_dim=64 qk_rope_head_dim=64 v_head_dim=128
modernbert intermediate_size=1152
mt5 umt5 d_ff=1024 d_kv=64
nemotron_h head_dim=128 intermediate_size=21504 mamba_head_dim=64 mamba_num_heads=128
  moe_intermediate_size=7688 moe_shared_expert_intermediate_size=7688 n_routed_experts=8 n_shared_experts=1
  num_experts_per_tok=2 num_key_value_heads=8
olmoe intermediate_size=2048 num_experts=64 num_experts_per_tok=8
opt ffn_dim=3072
phi phi3 intermediate_size=8192
phimoe intermediate_size=6400 num_experts_per_tok=2 num_key_value_heads=8 num_local_experts=16
plbart decoder_ffn_dim=3072 encoder_ffn_dim=3072
qwen2 intermediate_size=22016 num_key_value_heads=32
qwen2_5_vl qwen2_5_vl_text qwen2_vl qwen2_vl_text intermediate_size=29568 num_key_value_heads=8
qwen2_moe decoder_sparse_step=1 intermediate_size=5632 moe_intermediate_size=1408 num_experts=60
  num_experts_per_tok=4 num_key_value_heads=16 shared_expert_intermediate_size=5632
qwen3 qwen3_vl_text head_dim=128 intermediate_size=22016 num_key_value_heads=32
qwen3_5_moe_text head_dim=256 linear_key_head_dim=128 linear_num_key_heads=16 linear_num_value_heads=32
  linear_value_head_dim=128 moe_intermediate_size=512 num_experts=256 num_experts_per_tok=8
  num_key_value_heads=2 shared_expert_intermediate_size=512
qwen3_5_text head_dim=256 intermediate_size=12288 linear_key_head_dim=128 linear_num_key_heads=16
  linear_num_value_heads=32 linear_value_head_dim=128 num_key_value_heads=4
qwen3_moe decoder_sparse_step=1 intermediate_size=6144 moe_intermediate_size=768 num_experts=128
  num_experts_per_tok=8 num_key_value_heads=4
qwen3_next decoder_sparse_step=1 head_dim=256 intermediate_size=5632 linear_key_head_dim=128
  linear_num_key_heads=16 linear_num_value_heads=32 linear_value_head_dim=128 moe_intermediate_size=512
  num_experts=512 num_experts_per_tok=10 num_key_value_heads=2 shared_expert_intermediate_size=512
qwen3_vl_moe_text decoder_sparse_step=1 intermediate_size=5632 moe_intermediate_size=1408 num_experts=60
  num_experts_per_tok=4 num_key_value_heads=16
seed_oss head_dim=128 intermediate_size=27648 num_key_value_heads=8
smollm3 intermediate_size=11008 num_key_value_heads=4
solar_open head_dim=128 moe_intermediate_size=1280 n_routed_experts=128 n_shared_experts=1
  num_experts_per_tok=8 num_key_value_heads=8
stablelm intermediate_size=6912 num_key_value_heads=32
starcoder2 intermediate_size=12288 num_key_value_heads=2
t5 d_ff=2048 d_kv=64
whisper decoder_ffn_dim=1536 encoder_ffn_dim=1536 num_mel_bins=80
xglm ffn_dim=4096
xlm-roberta-xl intermediate_size=10240 max_position_embeddings=514 type_vocab_size=1
youtu intermediate_size=6144 kv_lora_rank=512 num_key_value_heads=16 q_lora_rank=1536 qk_nope_head_dim=128
  qk_rope_head_dim=64 v_head_dim=128 tie_word_embeddings=true
)";

using Defaults = std::vector<std::string_view>;  // key=value

std::map<std::string_view, Defaults> read_defaults() {
  std::map<std::string_view, Defaults> out;
  std::vector<std::string_view> types;
  bool names_types = false;
  for (const std::string_view line : split(kDefaults, '\n')) {
    for (const std::string_view word : split(line, ' ')) {
      const bool is_type = word.find('=') == std::string_view::npos;
      if (is_type && !names_types) types.clear();
      names_types = is_type;
      if (is_type) {
        types.push_back(word);
      } else {
        for (const std::string_view type : types) out[type].push_back(word);
      }
    }
  }
  return out;
}

// One size, as types call it.
const std::vector<std::vector<std::string_view>> kNames = {
    {"intermediate_size", "n_inner", "d_ff", "ffn_dim", "ffn_hidden_size", "hidden_dim"},
    {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts"},
    {"num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts"},
    {"n_shared_experts", "num_shared_experts", "moe_num_shared_experts"},
    {"num_key_value_heads", "num_kv_heads", "multi_query", "n_head_kv", "num_query_groups"},
    {"head_dim", "d_kv", "d_head", "attention_head_dim", "kv_channels"},
};

bool is_said(const KeyValues& values, const std::string& prefix, std::string_view key) {
  for (const std::vector<std::string_view>& names : kNames) {
    if (std::find(names.begin(), names.end(), key) == names.end()) continue;
    return std::any_of(names.begin(), names.end(),
                       [&](std::string_view name) { return values.is_said(prefix + std::string(name)); });
  }
  return values.is_said(prefix + std::string(key));
}

}  // namespace

void offer_type_defaults(KeyValues& values, const std::string& prefix, std::string_view type) {
  static const std::map<std::string_view, Defaults> kByType = read_defaults();
  const auto found = kByType.find(type);
  if (found == kByType.end()) return;
  std::vector<std::string_view> missing;
  for (const std::string_view each : found->second) {
    if (!is_said(values, prefix, each.substr(0, each.find('=')))) missing.push_back(each);
  }
  for (const std::string_view each : missing) {
    const size_t equals = each.find('=');
    values.offer(prefix + std::string(each.substr(0, equals)), std::string(each.substr(equals + 1)));
  }
}

}  // namespace spillway::estimator
