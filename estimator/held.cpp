#include "estimator/held.h"

#include <algorithm>
#include <array>

#include "estimator/buckets/communication.h"
#include "estimator/buckets/formulas.h"
#include "estimator/buckets/loss.h"

namespace spillway::estimator {
namespace {

constexpr const char* kSaved = "tensors autograd saves, see buckets/activations.cpp";

// Past this many they are only summed.
constexpr size_t kMostTensors = 1 << 19;

double sum(const std::vector<SavedTensor>& tensors, size_t start = 0) {
  double bytes = 0;
  for (size_t i = start; i < tensors.size(); ++i) bytes += tensors[i].bytes;
  return bytes;
}

class Collector {
 public:
  explicit Collector(const TrainingRun& run)
      : run_(run),
        recomputes_(run.training.recompute == Recompute::kFull ||
                    run.training.recompute == Recompute::kOperators) {}

  void layers(const Tower& tower, const Chunk& chunk, int64_t source_sequence) {
    kept_.clear();
    for (int64_t i = 0; i < chunk.layers; ++i) {
      const Layer& layer = tower.layers[static_cast<size_t>(chunk.first_layer + i)];
      const size_t start = kept_.size();
      double input = 0;
      if (recomputes_) {
        input = recomputed(tower, layer, i, chunk.in_flight, source_sequence);
      } else {
        append_saved_tensors(run_, tower, layer, source_sequence, kept_);
      }
      layer_bytes_ = std::max(layer_bytes_, input + sum(kept_, start));
      note_moved(start);
    }
    keep_segment();
    move(chunk.in_flight);
    for (const SavedTensor& tensor : kept_) saved_.add(tensor, static_cast<double>(chunk.in_flight));
    for (int64_t i = 0; i < chunk.in_flight; ++i) {
      for (const SavedTensor& tensor : kept_) keep(tensor.bytes, 1);
    }
  }

  void connector(const Tower& tower) {
    std::vector<SavedTensor> kept;
    append_connector_tensors(run_, tower, kept);
    for (const SavedTensor& tensor : kept) {
      saved_.add(tensor);
      keep(tensor.bytes, 1);
    }
  }

  // The last tensors of each part stay, of one microbatch.
  void keep_last() {
    for (const std::vector<SavedTensor>& part : last_moved_) {
      for (const SavedTensor& tensor : part) {
        saved_.add(tensor);
        keep(tensor.bytes, 1);
        moved_bytes_ -= tensor.bytes;
      }
    }
    moved_bytes_ -= last_copied_;
  }

  SavedBytes saved_ = {};
  std::vector<double> tensors_ = {};
  double inputs_ = 0;                 // of layers that are recomputed
  double layer_bytes_ = 0;            // the most that one layer keeps of one microbatch
  std::vector<double> segment_ = {};  // what the largest recomputation brings back
  double segment_bytes_ = 0;
  double moved_bytes_ = 0;
  double returning_bytes_ = 0;  // the most that a layer brings back, once for each operator that saved it
  double moved_scores_ = 0;     // the largest attention's among them

 private:
  // The layer joins the segment that is recomputed together; the input that is kept for it, if any.
  double recomputed(const Tower& tower, const Layer& layer, int64_t index, int64_t in_flight,
                    int64_t source_sequence) {
    const bool operators = run_.training.recompute == Recompute::kOperators;
    const int64_t together = operators ? 1 : std::max<int64_t>(1, run_.training.recompute_layers);
    double input = 0;
    if (index % together == 0) {
      keep_segment();
      input = checkpoint_bytes(run_, tower);
      keep(input, in_flight);
      inputs_ += static_cast<double>(in_flight) * input;
    }
    append_saved_tensors(run_, tower, layer, source_sequence, made_);
    if (operators) append_operator_tensors(run_, tower, layer, kept_);
    return input;
  }

  void note_moved(size_t start) {
    std::array<std::vector<SavedTensor>, kMovedParts> moved;
    double copied = 0, returning = 0;
    for (size_t i = start; i < kept_.size(); ++i) {
      const SavedTensor& tensor = kept_[i];
      copied += tensor.copied;
      if (tensor.moved == MovedPart::kNone) continue;
      moved[static_cast<size_t>(tensor.moved)].push_back(tensor);
      returning += tensor.bytes + tensor.copied;
      if (tensor.part == Part::kScores) moved_scores_ = std::max(moved_scores_, tensor.bytes);
    }
    returning_bytes_ = std::max(returning_bytes_, returning);
    if (copied > 0) last_copied_ = copied;
    for (size_t part = 0; part < kMovedParts; ++part) {
      if (!moved[part].empty()) last_moved_[part] = std::move(moved[part]);
    }
  }

  // Takes what is moved out of what the chunk keeps.
  void move(int64_t in_flight) {
    for (const SavedTensor& tensor : kept_) {
      const double own = tensor.moved == MovedPart::kNone ? 0 : tensor.bytes;
      moved_bytes_ += static_cast<double>(in_flight) * (own + tensor.copied);
    }
    kept_.erase(std::remove_if(kept_.begin(), kept_.end(),
                               [](const SavedTensor& tensor) { return tensor.moved != MovedPart::kNone; }),
                kept_.end());
  }

  void keep(double bytes, int64_t times) {
    const size_t more = std::min(static_cast<size_t>(times), kMostTensors);
    if (tensors_.size() < kMostTensors) tensors_.insert(tensors_.end(), more, bytes);
  }

  void keep_segment() {
    if (const double bytes = sum(made_); bytes > segment_bytes_) {
      segment_bytes_ = bytes;
      segment_.clear();
      for (const SavedTensor& tensor : made_) segment_.push_back(tensor.bytes);
    }
    made_.clear();
  }

  const TrainingRun& run_;
  bool recomputes_;
  std::vector<SavedTensor> made_;  // of the segment under way
  std::vector<SavedTensor> kept_;  // of the chunk
  std::array<std::vector<SavedTensor>, kMovedParts> last_moved_ = {};
  double last_copied_ = 0;
};

void add_nonzero(Buckets& buckets, Bucket bucket) {
  if (bucket.bytes != 0) buckets.push_back(bucket);
}

Buckets activation_buckets(const TrainingRun& run, const SavedBytes& saved, double inputs) {
  Buckets out;
  add_nonzero(out, {"norms and residuals", saved[Part::kNorms], norms_formula(run), kSaved});
  add_nonzero(out, {"attention", saved[Part::kAttention], attention_formula(run), kSaved});
  add_nonzero(out, {"attention scores", saved[Part::kScores], scores_formula(run),
                    "Korthikanti et al., section 4.1"});
  add_nonzero(out, {"feed-forward", saved[Part::kMlp], feed_forward_formula(run), kSaved});
  add_nonzero(out, {"experts", saved[Part::kExperts], experts_formula(run),
                    "Megatron-LM, experts.py and token_dispatcher.py"});
  add_nonzero(out, {"mixers", saved[Part::kMixers], mixers_formula(run), "mamba_ssm, ssd_combined.py"});
  add_nonzero(out, {"recomputed layers' inputs", inputs, "e h T/t_sp for each layer",
                    "Korthikanti et al., section 5"});
  return out;
}

// Returns those of the last layer, whose backward pass comes first.
double score_gradients(const TrainingRun& run, const Stage& stage) {
  const Chunk& chunk = stage.chunks.back();
  const Tower& tower = run.model.towers.back();
  if (chunk.layers == 0) return 0;
  return score_gradient_bytes(run, tower,
                              tower.layers[static_cast<size_t>(chunk.first_layer + chunk.layers - 1)]);
}

// One of the things that may stand beside all activations.
struct Turn {
  Buckets buckets = {};
  std::vector<double> tensors = {};
};

Turn loss_turn(const TrainingRun& run, const Stage& stage) {
  if (!stage.last) return {};
  const LossBytes loss = loss_bytes(run);
  const double head = head_bytes(run);
  Turn out;
  add_nonzero(out.buckets, {"logits and loss", loss.total(), loss_formula(run),
                            "Megatron-LM, cross_entropy.py; PyTorch, F.cross_entropy"});
  add_nonzero(out.buckets, {"head", head, head_formula(run), "final norm"});
  out.tensors = {head / 2, head / 2, loss.kept, loss.logits, loss.working};
  return out;
}

Turn one_bucket(Bucket bucket, std::vector<double> tensors) {
  Turn out;
  add_nonzero(out.buckets, bucket);
  out.tensors = std::move(tensors);
  return out;
}

// The largest: what the loss needs, one recomputed segment, the first gradients of attention scores, or those
// of the first layer before they are sharded.
Turn turning_point(const TrainingRun& run, const Stage& stage, const Collector& held) {
  const double scores = score_gradients(run, stage);
  const double reduction = layer_reduction_bytes(run);
  Turn loss = loss_turn(run, stage);
  const std::vector<Turn> turns = {
      loss,
      one_bucket({"recomputed segment", held.segment_bytes_, "one segment's activations",
                  "Korthikanti et al., section 5"},
                 held.segment_),
      one_bucket({"attention score gradients", scores, "10 a s^2 b/t less what the layer has freed",
                  "PyTorch, SoftMax.cu, softmax_backward"},
                 {scores}),
      one_bucket({"a layer's gradients", reduction, "16-bit ones and the input of their reduction",
                  "PyTorch FSDP, reduce-scatter"},
                 {reduction}),
      // The next layer's tensors come back while one's own are used (on_group_start_backward).
      one_bucket({"moved activations on their way back", held.returning_bytes_ + held.moved_scores_,
                  "a layer's, once for each operator that saved them, and its scores' gradients",
                  "Megatron-LM, fine_grained_activation_offload.py"},
                 {held.returning_bytes_, held.moved_scores_})};
  return *std::max_element(turns.begin(), turns.end(), [](const Turn& a, const Turn& b) {
    return total_bytes(a.buckets) < total_bytes(b.buckets);
  });
}

}  // namespace

HeldActivations held_activations(const TrainingRun& run, const Stage& stage) {
  Collector collector(run);
  const std::vector<Tower>& towers = run.model.towers;
  for (const Tower& tower : towers) {
    if (&tower == &towers.back()) break;
    // A frozen tower keeps nothing: neither its weights nor what comes in ask for a gradient.
    if (!tower.frozen) collector.layers(tower, {0, static_cast<int64_t>(tower.layers.size()), 1}, 0);
    if (tower.connector) collector.connector(tower);
  }
  for (const Chunk& chunk : stage.chunks) collector.layers(towers.back(), chunk, towers.front().sequence);

  collector.keep_last();

  HeldActivations out;
  out.moved_bytes = collector.moved_bytes_;
  out.buckets = activation_buckets(run, collector.saved_, collector.inputs_);
  out.expert_bytes = collector.saved_[Part::kExperts];
  out.bytes = {total_bytes(out.buckets), collector.layer_bytes_};
  out.segment_bytes = collector.segment_bytes_;
  if (run.offload.activations != Tier::kDevice) {
    out.buckets.clear();
    add_nonzero(out.buckets, {"activations on their way", std::min(out.bytes.all, 2 * out.bytes.layer),
                              "the largest layer's, twice", "one is used while another is moved"});
    out.expert_bytes = 0;
  }
  const Turn turn = turning_point(run, stage, collector);
  out.tensors = std::move(collector.tensors_);
  out.tensors.insert(out.tensors.end(), turn.tensors.begin(), turn.tensors.end());
  out.buckets.insert(out.buckets.end(), turn.buckets.begin(), turn.buckets.end());
  if (stage.last)
    add_nonzero(out.buckets, {"deferred logit gradients", deferred_gradient_bytes(run), "n (2 T V/t + 2 T h)",
                              "Megatron-LM, defer-embedding-wgrad-compute"});
  return out;
}

}  // namespace spillway::estimator
