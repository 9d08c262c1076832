// Says of each type of transformers' models what its code does where the file does not say otherwise.
// Sources: transformers 4.57 and 5.17, models/<type>/modeling_<type>.py and configuration_<type>.py.
#pragma once

#include <cstdint>
#include <string_view>

#include "estimator/inputs/transformers_release.h"
#include "estimator/model_code.h"

namespace spillway::estimator {

// Says whether a type's layers can be recomputed. GPTBigCodeBlock of transformers 4 is no
// GradientCheckpointingLayer, nor does its model call checkpoint(); MPNet and ALBERT raise an error.
enum class Checkpoints { kHas, kIgnoredBeforeFive, kRefused };

struct CodeRow {
  std::string_view type;
  Releases sdpa = {};  // whose class has _supports_sdpa; without it the type's own code keeps all scores
  Checkpoints checkpoints = Checkpoints::kHas;
  bool scores_in_fp32 = false;       // as in ModelCode
  bool first_has_no_window = false;  // with a pattern of windows: the first layer, and each n-th after it
  NormCode norm = NormCode::kLlama;
  ProjectionCode projection = ProjectionCode::kSeparate;
  std::string_view activation = "silu";
  ResidualCode residual = ResidualCode::kBefore;
  double rotary = 1;
  double dropout = 0;             // hidden and of the embedding
  double attention_dropout = -1;  // negative: the same
  bool encoder = false;
  int64_t window = 0;
  int64_t window_pattern = 0;  // each n-th layer has none
  bool caches_in_training = true;
  bool joins_gate_and_up = false;  // they are one matrix
  bool copies_rotated = false;     // as in ModelCode
  bool repeats_keys = false;       // the same, before transformers 5
  bool conv1d = false;             // matrices are kept transposed
  bool scales_embedding = false;
  RotationCode rotation = RotationCode::kHalves;
  bool since_five = false;      // the type is in no older transformers
  bool only_five = false;       // the code of transformers 4 is not written down
  bool scales_query = false;    // as in ModelCode
  bool router_in_fp32 = false;  // as in ModelCode
  bool weighs_in_fp32 = false;  // experts' results are weighted and added up in fp32
  bool caps = false;            // scores and logits are capped
  bool only_windowed = false;   // layers without a window do not rotate
  bool unmasked = false;        // transformers 4 makes no mask in case sequences are packed: positions have
                                // three dimensions, or masks are the type's own
  bool caches_by_name = false;  // as in ModelCode, before transformers 5
  bool never_caches = false;    // not in training
  bool multiplied = false;      // embeddings, blocks' results and logits are multiplied with numbers
  bool embedding_norm = false;
  bool masked_language_head = false;
  bool softmax_as_is = false;           // eager attention's, not in fp32
  bool returns_scores = false;          // as in ModelCode, before transformers 5
  bool encoder_returns_scores = false;  // the same
  bool layer_scale = false;
  bool norms_inside = false;  // as in ModelCode
  bool two_stacks = false;    // BART and its like: no cache beside labels, and a loss of logits as they are
  ModuleNames names = {};
};

// Null where the type's code is not written down.
const CodeRow* find_code_row(std::string_view type);

// These know types whose code is not written down too.
Releases sdpa_of(std::string_view type);
Checkpoints checkpoints_of(std::string_view type);

}  // namespace spillway::estimator
