#include "estimator/buckets/activations.h"

#include "estimator/buckets/experts.h"

// Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", section 4, counts the
// tensors of a GeLU layer with dropout; here each block counts its own, for any width, so that the same sums
// hold for grouped-query attention, gated feed-forwards and mixers. Which tensors a kernel keeps follows
// Transformer Engine's and Megatron-LM's autograd functions.

namespace spillway::estimator {
namespace {

class BlockBytes {
 public:
  BlockBytes(const Run& run, const Tower& tower, int64_t source_sequence)
      : run_(run),
        training_(run.training),
        tensor_(static_cast<double>(run.parallel.tensor)),
        element_(activation_element_bytes(run)),
        hidden_(static_cast<double>(run.model.hidden)),
        sequence_(static_cast<double>(tower.sequence)),
        tokens_(rank_tokens(run, tower)),
        source_tokens_(source_sequence == 0 ? tokens_
                                            : tokens_ / sequence_ * static_cast<double>(source_sequence)),
        source_sequence_(source_sequence == 0 ? sequence_ : static_cast<double>(source_sequence)) {}

  SavedBytes operator()(const Attention& block) const {
    SavedBytes out;
    out.norms = norm_bytes(block.norm_parameters > 0, training_.modules.layer_norm);
    out.attention = block.latent.has_value() ? latent_bytes(block) : projection_bytes(block);
    core_bytes(block, out);
    return out;
  }

  SavedBytes operator()(const Mlp& block) const {
    SavedBytes out;
    out.norms = norm_bytes(block.norm_parameters > 0, training_.modules.layer_norm);
    if (!training_.modules.mlp) out.mlp = tokens_ * feed_forward(block.ffn, block.gated) / tensor_;
    return out;
  }

  SavedBytes operator()(const Experts& block) const {
    SavedBytes out;
    out.norms = norm_bytes(true, training_.modules.layer_norm);
    if (training_.modules.experts) return out;
    out.experts = routed_expert_bytes(run_, block, tokens_, hidden_, element_) +
                  tokens_ * feed_forward(block.shared_ffn, block.gated) / tensor_;
    return out;
  }

  // The fused kernel keeps its packed input, and the scan's output for the gated norm, whose result the
  // output projection keeps (mamba_ssm, ssd_combined.py).
  SavedBytes operator()(const Mamba& block) const {
    const auto inner = static_cast<double>(block.heads * block.head_dim);
    const auto packed = 2 * inner + static_cast<double>(2 * block.groups * block.state + block.heads);
    SavedBytes out;
    out.norms = norm_bytes(true, training_.modules.layer_norm);
    out.mamba = tokens_ * (element_ * (packed + 2 * inner) + 4 * static_cast<double>(block.groups)) / tensor_;
    return out;
  }

 private:
  // A block's input and, where it has a norm of its own, the norm's output; one byte an element of dropout
  // mask.
  double norm_bytes(bool has_norm, bool recomputed) const {
    double bytes = element_ * hidden_;
    if (has_norm && !recomputed) bytes += element_ * hidden_;
    if (training_.hidden_dropout) bytes += hidden_;
    // An RMSNorm in fp32 keeps the cast input, its normalised copy, and the weighted 16-bit product.
    if (training_.norm_in_fp32 && has_norm && element_ < 4) bytes += 6 * hidden_;
    return tokens_ * bytes / static_cast<double>(run_.parallel.sequence_shards());
  }

  // Inputs of the activation and of the second projection; an eager gated unit keeps the activated gate as
  // well.
  double feed_forward(int64_t ffn, bool gated) const {
    const double gated_tensors = run_.framework == Framework::kPytorch ? 4 : 3;
    return element_ * static_cast<double>(ffn) * (gated ? gated_tensors : 2);
  }

  double projection_bytes(const Attention& block) const {
    const auto query = static_cast<double>(block.heads * block.head_dim);
    const auto keys = static_cast<double>(2 * block.key_value_heads * block.head_dim);
    return element_ * (2 * query * tokens_ + keys * source_tokens_) / tensor_;
  }

  // Narrow projections and their norms' outputs, then queries, keys and values at full width, and the
  // key-value projection that values are a slice of.
  double latent_bytes(const Attention& block) const {
    const LatentAttention& latent = *block.latent;
    const auto narrow =
        static_cast<double>(2 * latent.query_rank + 2 * latent.key_value_rank + latent.rotary_dim);
    const auto key = static_cast<double>(latent.head_dim + latent.rotary_dim);
    const auto value = static_cast<double>(latent.value_dim);
    const auto heads = static_cast<double>(block.heads);
    double wide = heads * value;  // the output
    if (!training_.modules.latent_projection)
      wide += heads * (2 * key + value + static_cast<double>(latent.head_dim) + value);
    return element_ * tokens_ *
           (narrow / static_cast<double>(run_.parallel.sequence_shards()) + wide / tensor_);
  }

  void core_bytes(const Attention& block, SavedBytes& out) const {
    const double heads = static_cast<double>(block.heads) / tensor_;
    if (training_.attention == AttentionKernel::kFlash) {
      out.attention += 4 * heads * tokens_;  // one fp32 sum for each row of scores
      if (run_.behaviour.flash_saves_output_twice)
        out.attention += element_ * heads * static_cast<double>(block.head_dim) * tokens_;
      return;
    }
    if (training_.modules.attention_core) return;
    const double scores = heads * tokens_ * source_sequence_;
    double bytes = element_ + (training_.attention_dropout ? 1 + element_ : 0);
    if (training_.attention == AttentionKernel::kPlain) bytes += 4;
    out.attention_scores = bytes * scores;
  }

  const Run& run_;
  const Training& training_;
  double tensor_, element_, hidden_, sequence_, tokens_, source_tokens_, source_sequence_;
};

}  // namespace

void SavedBytes::add(const SavedBytes& more, double times) {
  norms += times * more.norms;
  attention += times * more.attention;
  attention_scores += times * more.attention_scores;
  mlp += times * more.mlp;
  experts += times * more.experts;
  mamba += times * more.mamba;
}

double activation_element_bytes(const Run& run) {
  return run.training.precision == Precision::kFp32 ? 4 : 2;
}

double rank_tokens(const Run& run, const Tower& tower) {
  return static_cast<double>(run.training.micro_batch) * static_cast<double>(tower.sequence) /
         static_cast<double>(run.parallel.context);
}

SavedBytes saved_bytes(const Run& run, const Tower& tower, const Layer& layer, int64_t source_sequence) {
  SavedBytes out;
  for (const Block& block : layer) {
    const auto* attention = std::get_if<Attention>(&block);
    const bool cross = attention != nullptr && attention->cross;
    out.add(std::visit(BlockBytes(run, tower, cross ? source_sequence : 0), block), 1);
  }
  return out;
}

double layer_input_bytes(const Run& run, const Tower& tower) {
  return activation_element_bytes(run) * static_cast<double>(run.model.hidden) * rank_tokens(run, tower) /
         static_cast<double>(run.parallel.sequence_shards());
}

}  // namespace spillway::estimator
