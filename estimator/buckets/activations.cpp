#include "estimator/buckets/activations.h"

#include <initializer_list>

#include "estimator/buckets/experts.h"

// Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", section 4, counts the
// tensors of a GeLU layer with dropout; here each block lists its own, for any width, so that the same sums
// hold for grouped-query attention, gated feed-forwards and mixers. Which tensors a kernel keeps follows
// Transformer Engine's and Megatron-LM's autograd functions.

namespace spillway::estimator {
namespace {

class Lister {
 public:
  Lister(const TrainingRun& run, const Tower& tower, int64_t source_sequence, std::vector<SavedTensor>& out)
      : run_(run),
        training_(run.training),
        tensor_(static_cast<double>(run.parallel.tensor)),
        sequence_shards_(static_cast<double>(tower.divided ? run.parallel.sequence_shards() : 1)),
        element_(activation_element_bytes(run)),
        product_input_(run.training.fp8.on() ? run.training.fp8.input_bytes : element_),
        hidden_(static_cast<double>(tower_width(run.model, tower))),
        tokens_(rank_tokens(run, tower)),
        sequence_(static_cast<double>(tower.sequence)),
        source_sequence_(static_cast<double>(source_sequence == 0 ? tower.sequence : source_sequence)),
        source_tokens_(tokens_ / sequence_ * source_sequence_),
        out_(out) {}

  void operator()(const Attention& block) const {
    attention_norm(block);
    if (block.latent.has_value()) {
      latent_projections(block, *block.latent);
    } else {
      projections(block);
    }
    core(block);
    dropout_mask();
  }

  void operator()(const Mlp& block) const {
    norm(block.norm_parameters > 0);
    if (!training_.modules.mlp) feed_forward(Part::kMlp, block.ffn, block.gated);
    dropout_mask();
  }

  void operator()(const Experts& block) const {
    norm(true, hidden_, MovedPart::kMlpNorm);
    if (!training_.modules.experts) {
      append_routed_tensors(run_, block, tokens_, out_);
      if (block.shared_ffn > 0) feed_forward(Part::kExperts, block.shared_ffn, block.gated);
    }
    dropout_mask();
  }

  // Both inputs, their norms' outputs side by side, the final norm's input and output.
  void operator()(const PredictionInput&) const {
    const double one = tokens_ * element_ * hidden_ / sequence_shards_;
    for (const double times : {1, 1, 2, 1, 1}) add(Part::kNorms, times * one);
  }

  void operator()(const Mixer& block) const {
    norm(block.norm_parameters > 0);
    add(Part::kMixers, tokens_ * element_ * static_cast<double>(block.saved) / tensor_);
    dropout_mask();
  }

  // The fused kernel keeps its packed input, the scan's output before and after the gate, and the norm's
  // result for the output projection (mamba_ssm, ssd_combined.py).
  void operator()(const Mamba& block) const {
    const auto inner = static_cast<double>(block.heads * block.head_dim);
    const auto states = static_cast<double>(2 * block.groups * block.state + block.heads);
    norm(true);
    add(Part::kMixers, tokens_ * element_ * (2 * inner + states) / tensor_);
    for (int i = 0; i < 3; ++i) add(Part::kMixers, tokens_ * element_ * inner / tensor_);
    add(Part::kMixers, tokens_ * 4 * static_cast<double>(block.groups) / tensor_);
    dropout_mask();
  }

 private:
  void add(Part part, double bytes) const { out_.push_back({part, bytes}); }
  void add(Part part, double element, double elements, MovedPart moved) const {
    out_.push_back({part, element * elements, moves(moved, elements) ? moved : MovedPart::kNone});
  }

  // What is recomputed is saved by nothing that could move it.
  bool moves(MovedPart part, double elements) const {
    const bool recomputed = part == MovedPart::kAttentionCore && training_.modules.attention_core;
    return !recomputed && training_.moved.moves(part, elements);
  }

  // Transformer Engine makes a norm and the projections behind it one module, but for latent attention.
  void attention_norm(const Attention& block) const {
    const auto width = static_cast<double>(input_width(block, static_cast<int64_t>(hidden_)));
    const bool separate = block.latent.has_value();
    norm(block.norm_parameters > 0, width, separate ? MovedPart::kAttentionNorm : MovedPart::kQueryKeyValue,
         MovedPart::kQueryKeyValue);
  }

  // A block's input and, where it has a norm of its own, the norm's output.
  void norm(bool has_norm) const { norm(has_norm, hidden_); }
  void norm(bool has_norm, double width, MovedPart input = MovedPart::kNone,
            MovedPart output = MovedPart::kNone) const {
    const double one = tokens_ * width / sequence_shards_;
    add(Part::kNorms, element_, one, input);
    if (!has_norm) return;
    if (!training_.modules.layer_norm) add(Part::kNorms, product_input_, one, output);
    // An RMSNorm in fp32 keeps the cast input beside its 16-bit product with the weight.
    if (training_.norm_in_fp32 && element_ < 4) {
      add(Part::kNorms, 4 * one);
      add(Part::kNorms, element_ * one);
    }
  }

  void dropout_mask() const {
    if (training_.hidden_dropout) add(Part::kNorms, tokens_ * hidden_ / sequence_shards_);
  }

  // The input of the activation, one or two wide, and that of the second projection. An eager gated unit
  // keeps the activated gate as well.
  void feed_forward(Part part, int64_t ffn, bool gated) const {
    const double one = tokens_ * static_cast<double>(ffn) / tensor_;
    add(part, element_ * (gated ? 2 * one : one));
    if (gated && run_.framework == Framework::kPytorch) add(part, element_ * one);
    add(part, product_input_ * one);
  }

  // Each is moved or not by its own size; where nothing is they count as one.
  void attention_tensors(std::initializer_list<double> elements, MovedPart moved) const {
    double all = 0;
    for (const double one : elements) {
      if (training_.moved.on()) add(Part::kAttention, element_, one, moved);
      all += one;
    }
    if (!training_.moved.on()) add(Part::kAttention, element_ * all);
  }

  void projections(const Attention& block) const {
    const double query = static_cast<double>(block.heads * block.head_dim) * tokens_ / tensor_;
    const double key = reuses_keys(block) ? 0
                                          : static_cast<double>(block.key_value_heads * block.head_dim) *
                                                source_tokens_ / tensor_;
    attention_tensors({query, key, key}, MovedPart::kAttentionCore);
    // A gate, and what it is multiplied with.
    if (block.gated) add(Part::kAttention, 2 * element_ * query);
    // Norms over heads keep their inputs beside their outputs.
    if (block.head_norm_parameters > 0) attention_tensors({query, key}, MovedPart::kQueryKeyValue);
    output(query);
  }

  // Narrow projections and their norms' outputs, then queries, keys and values at full width, and the
  // key-value projection that values are a slice of.
  void latent_projections(const Attention& block, const LatentAttention& latent) const {
    const double rows = tokens_ / sequence_shards_;
    const auto narrow = [&](double element, double width) {
      add(Part::kAttention, element, rows * width, MovedPart::kQueryKeyValue);
    };
    // In 8 bits each projection keeps its own copy of the layer's normalised input.
    if (training_.fp8.on()) add(Part::kNorms, product_input_, rows * hidden_, MovedPart::kQueryKeyValue);
    narrow(element_, static_cast<double>(latent.query_rank));
    narrow(product_input_, static_cast<double>(latent.query_rank));
    narrow(element_, static_cast<double>(latent.key_value_rank + latent.rotary_dim));
    narrow(product_input_, static_cast<double>(latent.key_value_rank));
    const double wide = tokens_ * static_cast<double>(block.heads) / tensor_;
    const auto key = static_cast<double>(latent.head_dim + latent.rotary_dim);
    const auto value = static_cast<double>(latent.value_dim);
    if (!training_.modules.latent_projection) {
      for (const double width : {static_cast<double>(latent.head_dim) + value, key, key, value})
        add(Part::kAttention, element_, wide * width, MovedPart::kAttentionCore);
    }
    output(wide * value);
  }

  // Kept for the projection after it, and in 16 bits for a flash kernel's backward pass: in 16 bits that is
  // the same tensor, which goes to host memory once for each of them.
  void output(double elements) const {
    const bool flash = training_.attention == AttentionKernel::kFlash;
    add(Part::kAttention, product_input_, elements, MovedPart::kAttentionOutput);
    if (training_.fp8.on() && flash) {
      add(Part::kAttention, element_, elements, MovedPart::kAttentionCore);
    } else if (flash && moves(MovedPart::kAttentionCore, elements)) {
      out_.back().copied = element_ * elements;
    }
  }

  void core(const Attention& block) const {
    const double heads = static_cast<double>(block.heads) / tensor_;
    if (training_.attention == AttentionKernel::kFlash) {
      add(Part::kAttention, 4, heads * tokens_, MovedPart::kAttentionCore);  // a sum for each row of scores
      if (run_.behaviour.flash_saves_output_twice)
        add(Part::kAttention, element_, heads * static_cast<double>(block.head_dim) * tokens_,
            MovedPart::kAttentionCore);
      return;
    }
    if (training_.modules.attention_core) return;
    const double scores = heads * tokens_ * source_sequence_;
    const auto core_one = [&](double element) {
      add(Part::kScores, element, scores, MovedPart::kAttentionCore);
    };
    if (training_.score_copy_bytes > 0) core_one(training_.score_copy_bytes);
    core_one(element_);
    // Softmax saves its result, and so does the product with the values.
    if (moves(MovedPart::kAttentionCore, scores)) out_.back().copied = element_ * scores;
    score_mask(block, scores);
    if (!training_.attention_dropout) return;
    core_one(1);
    core_one(element_);
  }

  // Transformer Engine, attention.py: padding is filled with zeros once more after softmax, which keeps the
  // mask and, without dropout, the product; softmax.py: a softmax of several kernels keeps the causal mask.
  void score_mask(const Attention& block, double scores) const {
    if (!run_.behaviour.keeps_score_masks || training_.attention != AttentionKernel::kMaterialised) return;
    if (block.mask == AttentionMask::kPadding) {
      add(Part::kScores, tokens_ * source_sequence_);
      if (!training_.attention_dropout) add(Part::kScores, element_, scores, MovedPart::kAttentionCore);
    } else if (block.mask == AttentionMask::kCausal && training_.score_copy_bytes > 0) {
      add(Part::kScores, sequence_ * source_sequence_);
    }
  }

  const TrainingRun& run_;
  const Training& training_;
  double tensor_, sequence_shards_, element_, product_input_, hidden_, tokens_, sequence_, source_sequence_,
      source_tokens_;
  std::vector<SavedTensor>& out_;
};

}  // namespace

double activation_element_bytes(const TrainingRun& run) {
  return run.training.precision == Precision::kFp32 ? 4 : 2;
}

double rank_tokens(const TrainingRun& run, const Tower& tower) {
  return static_cast<double>(run.training.micro_batch) * static_cast<double>(tower.sequences) *
         static_cast<double>(tower.sequence) / static_cast<double>(tower.divided ? run.parallel.context : 1);
}

void append_saved_tensors(const TrainingRun& run, const Tower& tower, const Layer& layer,
                          int64_t source_sequence, std::vector<SavedTensor>& out) {
  for (const Block& block : layer) {
    const auto* attention = std::get_if<Attention>(&block);
    const bool cross = attention != nullptr && attention->cross;
    std::visit(Lister(run, tower, cross ? source_sequence : 0, out), block);
  }
}

void append_connector_tensors(const TrainingRun& run, const Tower& tower, std::vector<SavedTensor>& out) {
  const Connector& connector = *tower.connector;
  const double rows = activation_element_bytes(run) * rank_tokens(run, tower) /
                      static_cast<double>(connector.merged) * static_cast<double>(connector.count);
  out.push_back({Part::kMlp, rows * static_cast<double>(connector.in)});
  if (connector.inner == 0) return;
  const auto inner = static_cast<double>(connector.inner);
  out.push_back({Part::kMlp, rows * inner});
  out.push_back({Part::kMlp, rows * (connector.halves ? inner / 2 : inner)});
}

double layer_input_bytes(const TrainingRun& run, const Tower& tower) {
  return activation_element_bytes(run) * static_cast<double>(tower_width(run.model, tower)) *
         rank_tokens(run, tower) / static_cast<double>(tower.divided ? run.parallel.sequence_shards() : 1);
}

double checkpoint_bytes(const TrainingRun& run, const Tower& tower) {
  const bool divided = run.training.partition_checkpoints && !run.parallel.sequence;
  return layer_input_bytes(run, tower) / static_cast<double>(divided ? run.parallel.tensor : 1);
}

void append_operator_tensors(const TrainingRun& run, const Tower& tower, const Layer& layer,
                             std::vector<SavedTensor>& out) {
  const double element = activation_element_bytes(run) * rank_tokens(run, tower);
  const double shard = element / static_cast<double>(run.parallel.tensor);
  const double input = layer_input_bytes(run, tower);
  int64_t products = 0;
  const auto product = [&](Part part, double bytes) {
    if (++products % 2 == 1) out.push_back({part, bytes});
  };
  for (const Block& block : layer) {
    if (const auto* attention = std::get_if<Attention>(&block)) {
      const double query = shard * static_cast<double>(attention->heads * attention->head_dim);
      const double key = shard * static_cast<double>(attention->key_value_heads * attention->head_dim);
      product(Part::kAttention, attention->gated ? 2 * query : query);
      for (int64_t i = 0; i < key_value_matrices(*attention); ++i) product(Part::kAttention, key);
      out.push_back({Part::kAttention, query});
      out.push_back({Part::kAttention, 4 * rank_tokens(run, tower) * static_cast<double>(attention->heads) /
                                           static_cast<double>(run.parallel.tensor)});
      product(Part::kAttention, input);
    } else if (const auto* mlp = std::get_if<Mlp>(&block)) {
      for (int64_t i = 0; i < (mlp->gated ? 2 : 1); ++i)
        product(Part::kMlp, shard * static_cast<double>(mlp->ffn));
      product(Part::kMlp, input);
    }
  }
}

double score_gradient_bytes(const TrainingRun& run, const Tower& tower, const Layer& layer) {
  const double copy = run.training.score_copy_bytes;
  const auto* attention = std::get_if<Attention>(&layer.front());
  if (run.training.attention != AttentionKernel::kMaterialised || copy < 4 || attention == nullptr) return 0;
  const double scores = static_cast<double>(attention->heads) / static_cast<double>(run.parallel.tensor) *
                        rank_tokens(run, tower) * static_cast<double>(tower.sequence);
  std::vector<SavedTensor> after;
  append_saved_tensors(run, tower, Layer(layer.begin() + 1, layer.end()), 0, after);
  double freed = 0;
  for (const SavedTensor& tensor : after) freed += tensor.bytes;
  // Beside them the gradients of the residual stream and of the block's output.
  return (3 * copy - activation_element_bytes(run)) * scores - freed + 2 * layer_input_bytes(run, tower);
}

}  // namespace spillway::estimator
