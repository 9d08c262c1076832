// Layers as transformers writes them, on a tape. Each function follows the Python function of its name, line
// by line, in models/<type>/modeling_<type>.py of 4.57 and 5.17.
#pragma once

#include <array>
#include <map>

#include "estimator/run.h"
#include "estimator/tape/attention_kernels.h"
#include "estimator/tape/operators.h"

namespace spillway::estimator {

// How attention is computed.
enum class AttentionPath {
  kFlash,      // 16 bits, no mask
  kEfficient,  // fp32 or a mask, as many key as query heads
  kMath,       // what no kernel takes: fp32 with grouped heads
  kEager,      // the model's own
};

// Null where a layer has one hidden state.
const AltUp* altup_of(const Layer& layer);

class Layers {
 public:
  Layers(const TrainingRun& run, const Tower& tower, const ModelCode& code, const Operators& operators);

  // `index`: of the layer, which says whether attention has a window.
  Tensor layer(const Layer& layer, size_t index, const Tensor& x);
  Tensor norm(const Tensor& x, double width);
  // Gemma 3n's versions of the hidden state, one after the other in a tensor: made of embeddings, and put
  // together behind the layers.
  Tensor altup_inputs(const AltUp& altup, const Tensor& embedded);
  Tensor altup_output(const AltUp& altup, const Tensor& all);
  Tensor dropped(const Tensor& x, double share) const;
  Tensor activated(const Tensor& x) const;
  Tensor xielu(const Tensor& x) const;
  Matrix matrix(double in, double out, bool bias) const;
  // A product with a matrix that adapters may name.
  Tensor projected(const Tensor& x, const char* name, double in, double out, bool bias) const;
  // Cross attention reads this.
  void set_source(Tensor source, double sequence) {
    source_ = std::move(source);
    source_sequence_ = sequence;
  }
  void set_rotary_tables(Tensor cosine, Tensor sine) {
    cosine_ = std::move(cosine);
    sine_ = std::move(sine);
  }
  // The embedded tokens once more, which blocks with shared weights read beside their input, and a mask of
  // numbers for all of them.
  void set_embedded(Tensor copy, Tensor mask) {
    embedded_ = std::move(copy);
    mask_ = std::move(mask);
  }
  // Caches of all layers' states, made before the first one.
  void make_states();
  // What layers are given beside their input, all of them in one tensor.
  void set_layer_inputs(Tensor all) { layer_inputs_ = std::move(all); }
  // These are added to scores: of self attention, and of cross attention.
  void set_biases(Tensor own, Tensor cross) {
    position_bias_ = std::move(own);
    cross_bias_ = std::move(cross);
  }
  // What caches hold is kept there as well; null: it is not.
  void keep_caches_in(std::vector<Tape::Kept>* by) { returned_ = by; }
  // Whether the layers that follow are trained, where those of the tower are at all.
  void train(bool in_turn) { trained_ = trainable_ && in_turn; }
  double tokens() const { return tokens_; }
  // Ends the forward pass: recomputed layers need shared keys and values once more.
  void forget_cache() {
    cache_.clear();
    if (run_.training.recompute == Recompute::kNone) forget_shared();
  }
  // Once the first layer's backward pass is done nothing refers to shared keys any more.
  void forget_shared() {
    shared_ = {};
    graphs_.clear();
    layer_inputs_.reset();
  }
  // Tells whether two layers keep the same.
  bool same(const std::vector<Layer>& layers, size_t first, size_t second) const;
  // Tells whether the attention of a layer gets a mask: one with a window that the sequence is longer than.
  bool is_masked(size_t index) const;
  // Tells whether the attention of a layer looks no further back than a window.
  bool is_windowed(size_t index) const;

 private:
  struct Heads {
    Tensor query, key, value;
    Tensor gate = {};             // of the result
    bool query_by_heads = false;  // its heads are apart in memory, as torch.cat leaves them
  };

  Tensor block(const Block& block, const Tensor& x);
  Tensor hybrid_layer(const Layer& layer, const Tensor& x);
  Tensor beside_shared(const std::optional<SharedWeights>& shared, const Tensor& x, Tensor made, double in,
                       double out);
  Tensor altup_layer(const AltUp& altup, const Layer& layer, const Tensor& all);
  Tensor altup_prediction(const AltUp& altup, const Tensor& all);
  Tensor altup_correction(const AltUp& altup, const Tensor& predictions, const Tensor& activated);
  Tensor altup_routing(const AltUp& altup, const Tensor& x);
  Tensor with_magnitude(const Tensor& x, const Tensor& magnitude) const;
  bool is_sparse(size_t index) const { return index < code_.sparse.size() && code_.sparse[index]; }
  Tensor largest(const Tensor& x) const;
  Tensor mixed_beside(const Layer& layer, const Tensor& x);
  Tensor rms_normalised(const Tensor& x, double rows, bool as_it_came) const;
  // Of types whose norms divide by the root mean square.
  Tensor norm_without_weights(const Tensor& x, double width) const;
  Tensor centred_norm(const Tensor& x, const Tensor& weight, double rows);
  Tensor attention(const Attention& block, const Tensor& x);
  Tensor cached(const Tensor& x, double element);
  // Mixes values, and projects the result.
  Tensor attend(const Attention& block, Heads heads);
  Heads turned_heads(const Attention& block, const Tensor& x);
  // Tells whether a layer's keys and values are kept for layers that share them, or might.
  bool is_kept(size_t index) const;
  std::vector<Share>* graph_holder() { return is_kept(index_) ? &graphs_ : nullptr; }
  Heads heads_of(const Attention& block, const Tensor& x);
  Heads latent_heads(const Attention& block, const Tensor& x);
  std::vector<Tensor> latent_query(const Attention& block, const Tensor& x);
  std::vector<Tensor> widened(const Attention& block, const Tensor& rows);
  Heads heads_of_cached_rows(const Attention& block, const std::vector<Tensor>& query,
                             const std::vector<Tensor>& low);
  Heads heads_before_cache(const Attention& block, const std::vector<Tensor>& query,
                           const std::vector<Tensor>& low);
  // Tells whether keys and values, or what they are made of, are cached.
  bool caches() const { return code_.uses_cache && run_.training.recompute == Recompute::kNone; }
  Tensor rotated_pairs(const Tensor& x);
  Tensor rotated(const Tensor& x);
  Tensor head_norm(const Tensor& x, const Attention& block, double heads);
  AttentionPath path(const Attention& block) const;
  // Tells whether transformers repeats keys and values before PyTorch's function (use_gqa_in_sdpa).
  bool repeats_for_kernel(const Attention& block) const;
  Tensor scaled_dot_product(const Attention& block, Heads heads, AttentionPath path);
  AttentionCall call(const Attention& block) const;
  Tensor efficient(const Attention& block, const Heads& heads);
  Tensor bias_mask(const Attention& block);
  Tensor materialised(const Attention& block, Heads heads, AttentionPath path);
  Tensor bounded(const Tensor& x) const;
  Tensor by_relative_position(const Heads& heads, double scores);
  Tensor repeated(const Tensor& x, const Attention& block);
  Tensor feed_forward(const Mlp& block, const Tensor& x);
  Tensor clamped_gate(const Tensor& both);
  Tensor beside_dense(const Experts& block, const Tensor& dense, const Tensor& x);
  Tensor with_layer_input(double width, const Tensor& x);
  Tensor delta_net(const DeltaNet& net, const Tensor& x);
  // What goes into the convolution, the gate, what makes beta and the decay, and all of it where that is one.
  struct DeltaInputs {
    Tensor mixed, gate, beta, decay, whole;
  };
  DeltaInputs delta_projections(const DeltaNet& net, const Tensor& x);
  // What chunks of tokens are computed of, all heads and samples together.
  struct DeltaChunks {
    Tensor query, key, value, v_beta, k_beta, cum_decay;
    double rows = 0;         // tokens of all heads
    double heads = 0;        // of all samples
    bool by_tokens = false;  // as they lie in memory, so that products copy them
  };
  Tensor delta_chunks(DeltaChunks of);
  Tensor delta_chunks_by_rows(DeltaChunks of);
  Tensor delta_product(const Tensor& one, const Tensor& other, double elements) const;
  Tensor without_past(const Tensor& x) const;
  Tensor convolved(const Tensor& given, double kernel, bool bias);
  Tensor short_convolution(const ShortConvolution& block, const Tensor& x);
  Tensor state_space(const StateSpace& space, const Tensor& given);
  Tensor contracted_scan(const StateSpace& space, const Tensor& x, const Tensor& in, const Tensor& from,
                         const Tensor& decay);
  Tensor chunk_scan(const StateSpace& space, const std::vector<Tensor>& parts, const Tensor& step,
                    std::vector<Tensor>& named);
  Tensor lightning_attention(const LightningAttention& lightning, const Tensor& x);
  Tensor selective_scan(const SelectiveScan& scan, const Tensor& given);
  std::vector<Tensor> normed_inputs(const SelectiveScan& scan, std::vector<Tensor> made);
  Tensor scanned(const SelectiveScan& scan, const Tensor& x, const Tensor& step,
                 const std::vector<Tensor>& made);
  Tensor gated_state(const StateSpace& space, const Tensor& x, const Tensor& gate);
  Tensor delta_rule(const DeltaNet& net, const Heads& heads, const Tensor& beta, const Tensor& decay);
  Tensor gated_head_norm(const Tensor& x, const Tensor& gate, double width);
  Tensor routed(const Experts& block, const Tensor& x);
  Tensor routing_weights(const Experts& block, const Tensor& x);
  Tensor looped_experts(const Experts& block, const Tensor& x, const Tensor& weights);
  Tensor sorted_experts(const Experts& block, const Tensor& x, const Tensor& weights);
  Tensor every_expert(const Experts& block, const Tensor& x);
  Tensor parallel_experts(const Experts& block, const Tensor& x, const Tensor& weights);
  Tensor grouped_experts(const Experts& block, const Tensor& x, const Tensor& weights);

  const TrainingRun& run_;
  const Tower& tower_;
  const ModelCode& code_;
  const Operators& op_;
  Tape& tape_;
  double batch_, sequence_, tokens_, hidden_;
  double weight_element_;
  bool trainable_;
  bool trained_ = trainable_;
  size_t index_ = 0;
  std::vector<Share> cache_ = {};
  std::vector<Tape::Kept>* returned_ = nullptr;
  Tensor source_ = {}, cosine_ = {}, sine_ = {}, position_bias_ = {}, cross_bias_ = {};
  Tensor embedded_ = {}, mask_ = {};
  std::map<int64_t, std::vector<Tensor>> shared_sets_ = {};
  double source_sequence_ = 0;
  Tensor layer_inputs_ = {};
  std::array<Heads, 2> shared_ = {};  // of layers with a window, and of those that see all
  // What the graphs of recomputed ones hold: they refer to these until the first layer is done.
  std::vector<Share> graphs_ = {};
};

}  // namespace spillway::estimator
