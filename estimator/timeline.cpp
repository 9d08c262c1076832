#include "estimator/timeline.h"

#include <algorithm>

#include "estimator/buckets/activations.h"
#include "estimator/buckets/loss.h"
#include "estimator/buckets/overhead.h"
#include "estimator/buckets/states.h"
#include "estimator/measured.h"
#include "estimator/rounding.h"

namespace spillway::estimator {
namespace {

constexpr const char* kCount = "counted from the model's widths";
constexpr const char* kSaved = "tensors autograd saves, see buckets/activations.cpp";

// What is held at the end of the forward pass.
struct Activations {
  SavedBytes saved;                  // by part, of all microbatches in flight
  std::vector<double> tensors = {};  // the same, one by one in the order they are made
  double inputs = 0;                 // of layers that are recomputed
  std::vector<double> segment = {};  // what the largest recomputation brings back
  double segment_bytes = 0;
};

// Past this many they are only summed.
constexpr size_t kMostTensors = 1 << 19;

class Collector {
 public:
  explicit Collector(const TrainingRun& run) : run_(run), full_(run.training.recompute == Recompute::kFull) {}

  void layers(const Tower& tower, const Chunk& chunk, int64_t source_sequence) {
    made_.clear();
    const int64_t segment_layers = std::max<int64_t>(1, run_.training.recompute_layers);
    size_t segment_start = 0;
    for (int64_t i = 0; i < chunk.layers; ++i) {
      if (full_ && i % segment_layers == 0) {
        keep_segment(segment_start);
        segment_start = made_.size();
        keep(layer_input_bytes(run_, tower), chunk.in_flight);
        out_.inputs += static_cast<double>(chunk.in_flight) * layer_input_bytes(run_, tower);
      }
      append_saved_tensors(run_, tower, tower.layers[static_cast<size_t>(chunk.first_layer + i)],
                           source_sequence, made_);
    }
    if (full_) return keep_segment(segment_start);
    for (const SavedTensor& tensor : made_) out_.saved.add(tensor, static_cast<double>(chunk.in_flight));
    for (int64_t i = 0; i < chunk.in_flight && out_.tensors.size() < kMostTensors; ++i) {
      for (const SavedTensor& tensor : made_) out_.tensors.push_back(tensor.bytes);
    }
  }

  Activations take() { return std::move(out_); }

 private:
  void keep(double bytes, int64_t times) {
    const size_t more = std::min(static_cast<size_t>(times), kMostTensors);
    if (out_.tensors.size() < kMostTensors) out_.tensors.insert(out_.tensors.end(), more, bytes);
  }

  void keep_segment(size_t start) {
    double bytes = 0;
    for (size_t i = start; i < made_.size(); ++i) bytes += made_[i].bytes;
    if (bytes <= out_.segment_bytes) return;
    out_.segment_bytes = bytes;
    out_.segment.clear();
    for (size_t i = start; i < made_.size(); ++i) out_.segment.push_back(made_[i].bytes);
  }

  const TrainingRun& run_;
  bool full_;
  std::vector<SavedTensor> made_;
  Activations out_;
};

Activations activations(const TrainingRun& run, const Stage& stage) {
  Collector collector(run);
  const std::vector<Tower>& towers = run.model.towers;
  for (const Tower& tower : towers) {
    if (&tower == &towers.back()) break;
    collector.layers(tower, {0, static_cast<int64_t>(tower.layers.size()), 1}, 0);
  }
  for (const Chunk& chunk : stage.chunks) collector.layers(towers.back(), chunk, towers.front().sequence);
  return collector.take();
}

void add_nonzero(Buckets& buckets, Bucket bucket) {
  if (bucket.bytes != 0) buckets.push_back(bucket);
}

Buckets activation_buckets(const Activations& held) {
  Buckets out;
  add_nonzero(out,
              {"norms and residuals", held.saved[Part::kNorms], "(8 + 2 m) h T/t_sp for each layer", kSaved});
  add_nonzero(out, {"attention", held.saved[Part::kAttention], "(4 a + 4 k) d T/t for each layer", kSaved});
  add_nonzero(out, {"attention scores", held.saved[Part::kScores], "(2 + 3 m) a s^2 b/t for each layer",
                    "Korthikanti et al., section 4.1"});
  add_nonzero(out,
              {"feed-forward", held.saved[Part::kMlp], "4 f T/t, gated 6 f T/t, for each layer", kSaved});
  add_nonzero(out,
              {"experts", held.saved[Part::kExperts], "R (2 h + 6 f/etp), R = T K etp/t_sp, for each layer",
               "Megatron-LM, experts.py and token_dispatcher.py"});
  add_nonzero(out, {"mixers", held.saved[Part::kMixers], "2 (4 d_i + 2 g N + n) T/t for each layer",
                    "mamba_ssm, ssd_combined.py"});
  add_nonzero(out, {"recomputed layers' inputs", held.inputs, "2 h T/t_sp for each layer",
                    "Korthikanti et al., section 5"});
  return out;
}

// Of the last layer, whose backward pass comes first.
double score_gradients(const TrainingRun& run, const Stage& stage) {
  const Chunk& chunk = stage.chunks.back();
  const Tower& tower = run.model.towers.back();
  if (chunk.layers == 0) return 0;
  return score_gradient_bytes(run, tower,
                              tower.layers[static_cast<size_t>(chunk.first_layer + chunk.layers - 1)]);
}

// At the end of the forward pass: what the loss needs, one recomputed segment, or the first gradients of
// attention scores, whichever is more. The tensors join those that are held.
void add_turning_point(const TrainingRun& run, const Stage& stage, Activations& held, Buckets& out) {
  const LossBytes loss = stage.last ? loss_bytes(run) : LossBytes{};
  const double head = stage.last ? head_bytes(run) : 0;
  const double scores = score_gradients(run, stage);
  if (scores > std::max(loss.total() + head, held.segment_bytes)) {
    out.push_back({"attention score gradients", scores, "10 a s^2 b/t less what the layer has freed",
                   "PyTorch, SoftMax.cu, softmax_backward"});
    held.tensors.push_back(scores);
    return;
  }
  if (held.segment_bytes > loss.total() + head) {
    out.push_back({"recomputed segment", held.segment_bytes, "one segment's activations",
                   "Korthikanti et al., section 5"});
    held.tensors.insert(held.tensors.end(), held.segment.begin(), held.segment.end());
    return;
  }
  if (!stage.last) return;
  add_nonzero(out, {"logits and loss", loss.total(), "6 T V/t, fused 10 T V/t, eager 12 T V",
                    "Megatron-LM, cross_entropy.py; PyTorch, F.cross_entropy"});
  add_nonzero(out, {"head", head, "4 h T/t_sp", "final norm"});
  add_nonzero(out, {"deferred logit gradients", deferred_gradient_bytes(run), "n (2 T V/t + 2 T h)",
                    "Megatron-LM, defer-embedding-wgrad-compute"});
  held.tensors.insert(held.tensors.end(), {head / 2, head / 2, loss.kept, loss.logits, loss.working});
}

Buckets state_buckets(const StateBytes& states, bool gradients_stay) {
  Buckets out;
  add_nonzero(out, {"weights", states.weights, "bytes of the training dtype for each element", kCount});
  if (gradients_stay)
    add_nonzero(out, {"gradients", states.gradients, "bytes of the gradient dtype for each element", kCount});
  add_nonzero(out, {"master weights", states.master, "4 for each element of the optimizer shard",
                    "mixed precision, Micikevicius et al."});
  add_nonzero(out, {"optimizer states", states.moments, "8 for Adam, for each element of the shard",
                    "Rajbhandari et al., ZeRO, section 3"});
  add_nonzero(out, {"fp32 gradient copies", states.master_gradients, "4 for each element of the shard",
                    "Megatron-LM, optimizer.py, fp16"});
  add_nonzero(out, {"fp8 weights", states.fp8_copies, "1 for each element of a matrix and direction",
                    "Transformer Engine, module/base.py, get_weight_workspace"});
  return out;
}

void set_interval(const SavedBytes& saved, RankClass& out) {
  const double transient = std::max(0.0, out.peak_bytes - out.steady_bytes - saved[Part::kExperts]);
  const double spread = kStateSpread.value * out.steady_bytes + kActivationSpread.value * transient +
                        kExpertSpread.value * saved[Part::kExperts];
  out.lowest_bytes = out.peak_bytes - spread;
  out.highest_bytes = out.peak_bytes + spread;
}

}  // namespace

RankClass rank_class(const TrainingRun& run, const Stage& stage) {
  const std::vector<RankWeight> weights = rank_weights(run, stage);
  const RankParameters parameters = rank_parameters(weights);
  const StateBytes states = state_bytes(run, parameters);
  // PyTorch frees gradients after a step; Megatron-LM's buffers stay. With accumulation they outlive a
  // microbatch.
  const bool gradients_stay = run.framework == Framework::kMegatron;
  const bool gradients_wait = gradients_stay || run.training.microbatches > 1;

  RankClass out;
  out.stage = stage.rank;
  out.parameters = parameters.dense + parameters.expert;
  out.steady = state_buckets(states, gradients_stay);
  for (const Bucket& bucket : persistent_overhead(run, stage)) out.steady.push_back(bucket);
  Activations held = activations(run, stage);
  out.peak = activation_buckets(held);
  add_turning_point(run, stage, held, out.peak);
  if (run.allocator == AllocatorModel::kPytorch) {
    const RoundingBytes rounding = allocator_rounding(run, weights, held.tensors);
    out.steady.push_back({"allocator rounding", rounding.steady, "blocks above requests, allocations played",
                          "PyTorch, CUDACachingAllocator.cpp"});
    out.peak.push_back({"allocator rounding", rounding.peak - rounding.steady,
                        "blocks above requests, allocations played", "PyTorch, CUDACachingAllocator.cpp"});
  }
  out.steady_bytes = total_bytes(out.steady);
  for (const Bucket& bucket : transient_overhead(run, stage)) out.peak.push_back(bucket);
  add_nonzero(out.peak, {"fp32 gradient copies", -states.master_gradients, "freed by zero_grad",
                         "Megatron-LM, optimizer.py, fp16"});
  if (run.framework == Framework::kMegatron && run.parallel.virtual_stages > 1) {
    out.peak.push_back(
        {"stage inputs held as pipeline buffers",
         -static_cast<double>(run.parallel.virtual_stages) * layer_input_bytes(run, run.model.towers.back()),
         "v (2 h T/t_sp), counted above", "Megatron-LM, schedules.py"});
  }

  const double turning_point = total_bytes(out.peak);
  const double waiting_gradients = gradients_stay || !gradients_wait ? 0 : states.gradients;
  const double loaded = states.weights + states.master + (gradients_stay ? states.gradients : 0);
  const double forward = out.steady_bytes + turning_point + waiting_gradients;
  const double gradients_after = gradients_stay ? 0 : states.gradients;
  const double step = out.steady_bytes + gradients_after;
  out.phases = {{"after load", loaded},
                {"end of forward", forward},
                {"end of backward", out.steady_bytes + gradients_after + held.segment_bytes},
                {"optimizer step", step},
                {"between steps", out.steady_bytes}};
  if (waiting_gradients != 0)
    out.peak.push_back({"gradients", waiting_gradients, "accumulated over microbatches", kCount});
  out.peak_bytes = 0;
  for (const Phase& phase : out.phases) out.peak_bytes = std::max(out.peak_bytes, phase.bytes);
  if (out.peak_bytes > forward) {
    out.peak = {{"gradients", out.peak_bytes - out.steady_bytes,
                 "at the end of the backward pass or in the optimizer step", kCount}};
  }
  // Before the first optimizer step there are no moments.
  out.peak_step1_bytes = std::max(forward - states.moments, step);
  set_interval(held.saved, out);
  return out;
}

}  // namespace spillway::estimator
