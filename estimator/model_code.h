// Says what transformers' code of a model does where it decides which tensors are kept. Sizes are in model.h.
// Plain data: inputs/hugging_face_code.cpp fills it from the model's type and keys.
#pragma once

#include <cstdint>
#include <vector>

namespace spillway::estimator {

enum class NormCode {
  kLayerNorm,  // nn.LayerNorm, one kernel
  kNemotron,   // the same, which autocast runs in 16 bits
  kLlama,      // cast to fp32, normalised, cast back, times the weight
  kGemma,      // the same with the weight in fp32 before the cast
  kGemma3n,    // as kGemma, divided by the root
  kGemma4,     // as kGemma, the inverse root as a power
  kT5,         // the statistic in fp32 alone
  kCohere,     // LayerNorm written out in fp32, without a bias
  kOlmo,       // LayerNorm of an fp32 copy, without weights
};

enum class ProjectionCode {
  kSeparate,  // queries, keys and values by a matrix each
  kSplit,     // one matrix, torch.split (GPT-2, GPT-NeoX, Falcon, ...)
  kSliced,    // one matrix, three slices (Phi-3)
};

enum class ActivationCode {
  kOfInput,    // one kernel that keeps its input: silu, gelu, gelu_pytorch_tanh
  kOfResult,   // one kernel that keeps its result: relu, tanh
  kGeluNew,    // written out: 0.5 x (1 + tanh(c (x + 0.044715 x^3)))
  kGeluQuick,  // x sigmoid(1.702 x)
  kSquaredRelu,
  kXielu,  // written out, with two trained numbers (Apertus)
};

enum class ResidualCode {
  kBefore,    // norms before blocks
  kBehind,    // norms behind the residual sum (BERT)
  kBoth,      // norms before and behind blocks (Gemma 2)
  kAfter,     // norms behind blocks, before the residual sum (OLMo 2)
  kNormed,    // what norms before blocks make is what blocks' results are added to (MiniMax)
  kParallel,  // both blocks read the same input
};

// How the elements of a head that are rotated stand in it.
enum class RotationCode {
  kHalves,       // rotate_half
  kPairs,        // elements next to each other are a pair
  kPairsCopied,  // the same, put into halves first (transformers 4)
  kComplex,      // pairs are complex numbers (DeepSeek-V2)
};

enum class BiasCode {
  kAdded,      // to scores, by the model's own code
  kMath,       // by PyTorch's math kernel
  kEfficient,  // by the efficient kernel, as a mask that a gradient is asked for
};

enum class ExpertsCode {
  kLoop,      // transformers 4: a loop over experts that have tokens
  kEvery,     // Llama 4: every expert has all tokens, times how far it was chosen
  kParallel,  // Granite of transformers 4: the same, and all results put together after each product
  kSorted,    // DeepSeek-V2 of transformers 4: tokens sorted by experts, a product for each
  kGrouped,   // transformers 5: tokens sorted by experts, grouped products
};

// As the modules of matrices are called, which adapters name.
struct ModuleNames {
  const char* query = "q_proj";
  const char* key = "k_proj";
  const char* value = "v_proj";
  const char* joined = "qkv_proj";  // of the three
  const char* output = "o_proj";
  const char* gate = "gate_proj";  // of gate and up, where they are one
  const char* up = "up_proj";
  const char* down = "down_proj";
};

struct ModelCode {
  ModuleNames names = {};
  bool known = false;                // false: there is no such code, or it is not written down
  bool own_attention = false;        // no SDPA: the type's own code keeps all scores
  bool refuses_checkpoints = false;  // recomputation is an error
  bool ignores_checkpoints = false;  // recomputation is asked for in vain
  NormCode norm = NormCode::kLlama;
  ProjectionCode projection = ProjectionCode::kSeparate;
  ActivationCode activation = ActivationCode::kOfInput;
  ResidualCode residual = ResidualCode::kBefore;
  ExpertsCode experts = ExpertsCode::kGrouped;
  double rotary = 1;            // the share of a head that is rotated; 0: none is
  bool copies_rotated = false;  // the rotated part is put together with the rest, even where there is none
  bool rotates_in_fp32 = false;
  bool rotates_halves = false;       // each half by itself
  bool rotates_by_tokens = false;    // before heads are put in front of tokens (Gemma 4)
  bool rotates_windowed = false;     // only layers whose attention has a window, where there is one
  bool joined_feed_forward = false;  // gate and up are one matrix
  bool transposed_matrices = false;  // Conv1D
  bool views_matrices = false;       // products read views of layers' matrices (FalconLinear)
  bool softmax_in_fp32 = true;       // of eager attention
  BiasCode bias = BiasCode::kAdded;  // how positions' biases get into attention (T5)
  bool eager_attention = false;      // the type has no other (T5)
  bool biases_in_layers = false;     // each makes its own biases by position (UMT5)
  bool scores_in_fp32 = false;       // queries and keys are cast before their product (GPT-J)
  bool repeats_first = false;        // keys and values, for each query head, before they are rotated (Falcon)
  bool repeats_keys = false;         // the same once they are rotated, whichever kernel follows
  bool repeats_wide = false;         // the same of heads that no kernel takes in groups (transformers 5)
  bool broadcasts_heads = false;     // of one key head, which no kernel but PyTorch's own takes
  bool scales_query = false;         // by a number for each token, once it is rotated (Ministral 3)
  bool puts_heads_first = false;     // in memory, of queries, keys and values (Whisper)
  bool copies_heads = false;         // heads become samples before products of scores (DeBERTa)
  int64_t relative_terms = 0;        // kinds of scores by relative position, beside those of contents
  int64_t relative_span = 0;         // positions that such a score tells apart to each side
  bool sinks = false;                // a score beside those of keys
  bool always_masked = false;        // a mask is made whatever the samples are
  bool masks_numbers = false;        // that mask is one of numbers, for all layers (Zamba2 of transformers 4)
  bool clamps_gates = false;         // experts' (gpt-oss)
  RotationCode rotation = RotationCode::kHalves;
  bool caches_latent = false;    // latent attention's narrow rows are cached, not keys and values
  bool router_in_fp32 = false;   // a copy of what goes into the product with the router
  bool experts_beside = false;   // a dense block, and experts that read what it reads, are added up (Gemma 4)
  bool experts_in_fp32 = false;  // experts' results are weighted and added up in fp32 (GLM 4.5)
  bool bidirectional = false;
  bool scales_embedding = false;
  bool embedding_norm = false;
  bool keeps_last_keys = false;   // and values, of the last layer of each kind that makes its own
  std::vector<bool> sparse = {};  // layers whose feed-forward block keeps the largest activations alone
  bool norms_rotated = false;     // a norm without weights over each head that was rotated (Llama 4)
  bool bounds_scores = false;     // no score is less than the least number (XGLM)
  bool shares_layers = false;     // all layers are one (ALBERT)
  bool norms_values = false;      // a norm over each head's values, without weights (Gemma 4)
  bool norms_inside = false;      // norms before a block's last matrix (BitNet)
  bool layer_scale = false;       // a block's output times a vector of weights
  bool layer_scalar = false;      // a layer's output times a number, in place
  bool unrolled_mixers =
      false;  // as transformers 4 writes them: row by row, products with names of their own
  bool contracts_states = false;     // chunks' products are contracted, and no product of pairs is whole
  bool multiplies = false;           // inputs and results of products with numbers (Falcon-H1)
  bool gates_behind = false;         // a state space's norm stands before its gate
  bool norms_groups = false;         // that norm is one of each group
  bool mixes_beside = false;         // a state space and attention read the same input (Falcon-H1)
  bool scales_blocks = false;        // a block's output times a number
  bool needs_kernels = false;        // PyTorch's own operators are an error (Jamba of transformers 4)
  bool wide_residual = false;        // residual sums are fp32, and cast for norms (Mamba-2)
  bool makes_states_first = false;   // caches of states are made before the first layer, of the weights' type
  bool caches_values_apart = false;  // a cache's values have a type of their own, not that of its keys
  bool caches_by_name = false;       // keys and values are put into the cache as they are
  bool caps_logits = false;          // c tanh(logits / c)
  bool caps_scores = false;          // the same of eager attention's scores
  bool scales_logits = false;        // with a number
  bool adds_to_logits = false;       // a buffer as wide as weights are (final_logits_bias)
  int64_t sound_channels = 0;        // of what two convolutions make an encoder's tokens of; 0: it has tokens
  bool masked_language_head = false;  // a dense layer, its activation and a norm before the output projection
  bool loss_in_fp32 = true;           // logits are cast before the loss
  bool uses_cache = true;             // keys and values are copied into a cache
  bool expands_masks = false;         // samples share a mask of truth values
  bool masks_without_cache = false;   // without one a causal mask is made, in case sequences are packed
  bool reentrant = false;             // checkpointing is
  bool returns_scores = false;        // layers return eager attention's, whether or not they are asked for
  bool encoder_returns_scores = false;  // those of the first of two towers alone
  bool shares_tensors = false;          // layers with shared weights have modules of their own
  bool nests_checkpoints = false;       // a recomputed layer has another in it (Zamba2 of transformers 5)
  double hidden_dropout = 0;
  double inner_dropout = 0;  // between the matrices of a feed-forward block
  double attention_dropout = 0;
  double embedding_dropout = 0;
  int64_t window = 0;  // of attention; 0: none
  // Says whether a layer's attention has it, by layers; empty: all have.
  std::vector<bool> windowed = {};
  double sample_elements = 0;  // of an image, where samples are that
  double buffers_bytes = 0;    // that the model keeps beside its weights
  double buffer_elements = 0;  // the same, of the weights' type
};

}  // namespace spillway::estimator
