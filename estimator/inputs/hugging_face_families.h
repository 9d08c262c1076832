// Says what sets the types of Hugging Face's models apart from Llama, and apart from what their `config.json`
// says. Sources: transformers 4.57, models/<type>/modeling_<type>.py and configuration_<type>.py.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace spillway::estimator {

enum class HeadNorms {
  kNone,        // none, or without weights
  kOfOneHead,   // one weight for all query heads, one for all key heads
  kWholeWidth,  // a weight for each element of queries and keys
};

// Names the key which says that attention and feed-forward read one norm's output.
enum class SharedNorms {
  kNever,
  kParallelResidual,   // `use_parallel_residual`
  kParallelAttention,  // `parallel_attn`, or by `new_decoder_architecture` their count
};

// Holds what a type has where its file does not say; 0 where the file must. A composite model's file leaves
// out of its parts whatever is as the type has it, so these count only there.
struct Widths {
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t ffn = 0;
  int64_t vocabulary = 0;
};

struct Family {
  const char* type;
  int norm_vectors = 1;  // a norm's weights: 1 for RMSNorm and LayerNorm without bias, 2 for LayerNorm
  int norms_per_layer = 2;
  HeadNorms head_norms = HeadNorms::kNone;
  const char* head_norms_key = nullptr;  // where they are there only if this key says so
  bool gated = true;
  bool tied = false;  // where the file does not say
  // Biases where the file does not say, and the keys that do; null: none does.
  bool query_key_value_bias = false;
  bool attention_output_bias = false;
  bool feed_forward_bias = false;
  bool output_bias = false;
  const char* query_key_value_bias_key = "attention_bias";
  const char* attention_output_bias_key = "attention_bias";
  const char* feed_forward_bias_key = "mlp_bias";
  bool learned_positions = false;
  int64_t positions = 2048;  // where the file does not say
  int64_t more_positions = 0;
  bool input_norm = false;      // over the embedding
  bool may_share_keys = false;  // `multi_query`: one key and value head
  SharedNorms shared_norms = SharedNorms::kNever;
  bool sinks = false;  // a learned score for each head
  bool shared_expert_gate = false;
  bool shares_expert = false;  // every token passes one more expert
  bool only_encoder = false;   // BERT
  bool has_encoder = false;    // T5
  Widths nested = {};
};

// Null where the type is not known.
const Family* find_family(std::string_view type);

std::vector<std::string_view> family_types();

}  // namespace spillway::estimator
