// Says what is trained: towers of layers of blocks. Sizes are whole-model sizes, before any sharding; lengths
// are in tokens and elements, never bytes. Plain data: a reader in inputs/ fills it, the rest of the library
// reads it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace spillway::estimator {

// Multi-head latent attention (DeepSeek): queries and keys/values go through narrow projections.
struct LatentAttention {
  int64_t query_rank = 0;  // 0: queries are projected directly
  int64_t key_value_rank = 0;
  int64_t head_dim = 0;  // of queries and keys, without the rotary part
  int64_t rotary_dim = 0;
  int64_t value_dim = 0;
  bool operator==(const LatentAttention& other) const = default;
};

enum class AttentionMask {
  kCausal,
  kPadding,  // one for each sample
  kNone,
};

// Weights of a block that several layers have together, beside matrices of each layer's own (Zamba2).
struct SharedWeights {
  int64_t set = 0;    // which of the model's shared weights
  bool first = true;  // no layer before has them
  int64_t rank = 0;   // of the two narrow matrices beside each product into the block; 0: there are none
  bool operator==(const SharedWeights& other) const = default;
};

struct Attention {
  int64_t heads = 0;
  int64_t key_value_heads = 0;
  int64_t head_dim = 0;
  bool query_key_value_bias = false;
  bool output_bias = false;
  int64_t norm_parameters = 0;       // of the norms around the block
  int64_t head_norm_parameters = 0;  // of the norms over query and key heads
  int64_t extra_parameters = 0;      // sinks, relative position tables
  bool cross = false;                // keys and values come from the tower before
  bool shares_keys = false;      // and values, with the last layer that makes its own and sees as many tokens
  bool makes_keys = false;       // all the same, where no cache holds the others' (transformers 4)
  bool sees_all = true;          // all tokens; false: those in a window
  bool keys_are_values = false;  // one matrix makes both
  bool gated = false;            // the queries' matrix makes a factor for each element of the result too
  AttentionMask mask = AttentionMask::kCausal;
  std::optional<LatentAttention> latent = {};
  int64_t input = 0;  // width of what queries, keys and values are made of; 0: the layer's
  std::optional<SharedWeights> shared = {};
  bool operator==(const Attention& other) const = default;
};

inline int64_t input_width(const Attention& block, int64_t hidden) {
  return block.input > 0 ? block.input : hidden;
}

// As many as the queries' matrix makes.
inline int64_t query_heads(const Attention& block) {
  return block.gated ? 2 * block.heads : block.heads;
}

// Tells whether a layer takes the keys and values that another one has made.
inline bool reuses_keys(const Attention& block) {
  return block.shares_keys && !block.makes_keys;
}

// Matrices that make keys and values: none, one or two.
inline int64_t key_value_matrices(const Attention& block) {
  return reuses_keys(block) ? 0 : block.keys_are_values ? 1 : 2;
}

struct Mlp {
  int64_t ffn = 0;
  bool gated = false;  // two projections in, one out
  bool bias = false;
  int64_t norm_parameters = 0;
  std::optional<SharedWeights> shared = {};
  bool operator==(const Mlp& other) const = default;
};

// Tells whether another layer's block has the same weights and comes before.
template <typename Kind>
bool has_earlier_weights(const Kind& block) {
  return block.shared.has_value() && !block.shared->first;
}

struct Experts {
  int64_t count = 0;
  int64_t top_k = 0;
  int64_t ffn = 0;
  int64_t shared_ffn = 0;  // of the experts that every token passes, together
  bool gated = false;
  bool bias = false;
  bool router_bias = false;
  bool shared_gate = false;
  int64_t norm_parameters = 0;
  bool operator==(const Experts& other) const = default;
};

// A Mamba-2 mixer.
struct Mamba {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t state = 0;
  int64_t groups = 0;
  int64_t convolution = 4;
  int64_t norm_parameters = 0;
  bool operator==(const Mamba& other) const = default;
};

// The gated delta rule (Qwen 3.5): keys and queries of fewer heads than values.
struct DeltaNet {
  int64_t key_heads = 0;
  int64_t value_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  int64_t convolution = 4;
  bool joined = false;  // two matrices make all, and not four (Qwen3-Next)
  bool operator==(const DeltaNet& other) const = default;
};

// A convolution over the last few tokens between two gates (LFM2).
struct ShortConvolution {
  int64_t kernel = 3;
  bool bias = false;  // of the convolution and of the products around it
  bool operator==(const ShortConvolution& other) const = default;
};

// Mamba-2 as transformers writes it, which computes chunks of tokens at once.
struct StateSpace {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t state = 0;
  int64_t groups = 0;
  int64_t convolution = 4;
  int64_t chunk = 256;
  bool bias = false;  // of its first product
  bool output_bias = false;
  bool convolution_bias = true;
  bool normed = true;  // a norm is part of the gate
  bool operator==(const StateSpace& other) const = default;
};

// The first Mamba as transformers writes it, which goes from token to token.
struct SelectiveScan {
  enum class Norms { kNone, kWithoutWeights, kWithWeights };

  int64_t inner = 0;
  int64_t state = 0;
  int64_t rank = 0;  // of what the steps are made of
  int64_t convolution = 4;
  bool bias = false;  // of the first and the last product
  bool convolution_bias = true;
  Norms norms = Norms::kNone;  // of what steps and states are made of
  bool operator==(const SelectiveScan& other) const = default;
};

// Linear attention over blocks of tokens with fixed decays (MiniMax).
struct LightningAttention {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t block = 256;
  bool operator==(const LightningAttention& other) const = default;
};

// What each layer is given beside its input, of that width (Gemma 4).
struct LayerInput {
  int64_t width = 0;
  bool operator==(const LayerInput& other) const = default;
};

// Several versions of the hidden state pass through a layer beside each other (Gemma 3n).
struct AltUp {
  int64_t versions = 0;
  int64_t rank = 0;  // of the product beside attention
  bool operator==(const AltUp& other) const = default;
};

// A product of the layer's own behind blocks whose weights are shared (Zamba2).
struct OwnProjection {
  bool operator==(const OwnProjection& other) const = default;
};

// Says which of them a mixer is, where more than its sizes is known.
using MixerKind = std::variant<std::monostate, LayerInput, AltUp, DeltaNet, ShortConvolution, StateSpace,
                               SelectiveScan, LightningAttention, OwnProjection>;

// A block that mixes tokens by other means than attention: state spaces, linear attention, convolutions. What
// its kernels keep for the backward pass is a number of elements for each token; what generating text keeps,
// a number for each sequence.
struct Mixer {
  int64_t matrix_parameters = 0;  // of products
  int64_t other_parameters = 0;   // convolutions, decays, biases, norms inside
  int64_t norm_parameters = 0;    // of the norm before it
  int64_t saved = 0;
  int64_t convolution_state = 0;
  int64_t recurrent_state = 0;
  MixerKind kind = {};
  bool operator==(const Mixer& other) const = default;
};

// Holds what stands before a multi-token prediction layer (DeepSeek-V3, section 2.2): norms of the hidden
// state and of the next token's embedding, and the projection of both to one width.
struct PredictionInput {
  int64_t norm_parameters = 0;  // of these two and of the layer's final norm
  bool operator==(const PredictionInput& other) const = default;
};

using Block = std::variant<Attention, Mlp, Experts, Mamba, Mixer, PredictionInput>;
using Layer = std::vector<Block>;

// What stands between a tower and the next one where their widths differ: tokens are put together, then
// projected once, or twice with an activation between.
struct Connector {
  int64_t merged = 1;  // tokens that become one
  int64_t in = 0;
  int64_t inner = 0;  // 0: there is one projection
  int64_t out = 0;
  bool halves = false;  // the activation's result is half as wide: a gate is multiplied with the rest
  bool bias = false;
  int64_t count = 1;             // each of another layer's output
  int64_t other_parameters = 0;  // norms, marks between lines of an image
};

// Layers over one sequence. A model has one tower, or more where sequences differ (encoder and decoder,
// vision and language); the last one carries the loss.
struct Tower {
  std::string name = "decoder";
  int64_t sequence = 0;  // tokens of one sequence
  bool divided = true;   // over context- and sequence-parallel ranks
  bool fixed = false;    // of that many tokens, whatever the other towers' samples have
  std::vector<Layer> layers = {};
  int64_t final_norm_parameters = 0;
  int64_t input_parameters =
      0;  // of what stands before the first layer and is not the shared vocabulary table
  int64_t sharded_input_parameters = 0;  // of the same, divided over tensor-parallel ranks
  // Of images.
  std::string type = {};     // of transformers, where it is not the model's
  int64_t hidden = 0;        // width; 0: the model's
  int64_t sequences = 1;     // of one sample: its images
  int64_t patch_pixels = 0;  // of a token, where images have any size
  std::optional<Connector> connector = {};
  bool frozen = false;  // the tower is not trained; its connector is
};

struct Pipeline;

struct Model {
  std::string type = "gpt";
  int64_t hidden = 0;
  int64_t vocabulary = 0;
  int64_t embedding = 0;            // width of the vocabulary's table; 0: as the layers
  int64_t vocabulary_multiple = 1;  // times the tensor-parallel size, what the table is padded to
  bool tied = true;                 // the output projection is the embedding table
  int64_t positions = 0;            // rows of a learned position table
  int64_t token_types = 0;          // rows of a learned segment table
  int64_t head_parameters = 0;  // of what stands between the last layer and the output projection, replicated
  int64_t prediction_layers = 0;    // at the end of the last tower, each with a loss of its own
  bool shares_predictions = false;  // they are one layer, which is run as many times
  bool output_bias = false;         // one element for each row of the vocabulary
  bool vocabulary_head = true;      // false: a class without logits over the vocabulary
  std::vector<Tower> towers = {};
  // Of a model that makes images (diffusion/pipeline.h): all there is of it, beside one tower without layers.
  std::shared_ptr<const Pipeline> pipeline = {};
};

inline int64_t table_width(const Model& model) {
  return model.embedding > 0 ? model.embedding : model.hidden;
}

inline int64_t tower_width(const Model& model, const Tower& tower) {
  return tower.hidden > 0 ? tower.hidden : model.hidden;
}

int64_t connector_parameters(const Connector& connector);

// Tells whether `visit` says yes to any block.
template <typename Visit>
bool any_block(const Model& model, Visit&& visit) {
  for (const Tower& tower : model.towers) {
    for (const Layer& layer : tower.layers) {
      for (const Block& block : layer) {
        if (visit(block)) return true;
      }
    }
  }
  return false;
}

// Tells whether a layer mixes tokens by linear attention, a state space or a convolution.
bool has_mixer(const Model& model);

// Tells whether layers have the weights of a block together (Zamba2).
bool shares_weights(const Model& model);

// Width of what each layer of a tower is given beside its input; 0: none is.
int64_t layer_input_width(const Tower& tower);

// Tells whether a layer of the last tower has weights of its own, or runs once more with those before it.
bool has_own_weights(const Model& model, size_t layer);

enum class Placement { kTensorSharded, kReplicated, kExpert };

// Equal weights of a block, in whole-model elements.
struct WeightTensors {
  Placement placement = Placement::kReplicated;
  int64_t elements = 0;  // of one
  int64_t count = 1;
  bool product = false;  // multiplied with activations by the layer's own kernels: a matrix, not a bias
};

struct MatrixShape {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t count = 1;
};

// Which matrices are one in the modules of a model's code.
struct JoinedMatrices {
  bool query_key_value = false;
  bool gate_up = false;
  bool experts = false;  // all of a layer, as a tensor of three dimensions: no matrices, and left out
};

// The matrices that a block's kernels multiply activations with, appended to `out`. Those of a Mixer are
// taken to be of one that is as wide as the layer.
void append_matrices(const Block& block, int64_t hidden, const JoinedMatrices& joined,
                     std::vector<MatrixShape>& out);

// The weights of a block in the order they are made, appended to `out`.
void append_weights(const Block& block, int64_t hidden, std::vector<WeightTensors>& out);

// Elements of the whole model as it is published: no padding of the vocabulary, no sharding.
int64_t total_parameters(const Model& model);

// The same of a model with one score for each token in the place of logits: a value model, or a reward model.
int64_t scorer_parameters(const Model& model);

}  // namespace spillway::estimator
