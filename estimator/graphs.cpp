#include "estimator/graphs.h"

#include <algorithm>

#include "estimator/buckets/activations.h"

namespace spillway::estimator {
namespace {

constexpr const char* kSource = "Megatron-LM, cuda_graphs.py; Transformer Engine, graph.py";

struct GraphBytes {
  double inputs = 0;    // of all graphs: a layer's input and the attention mask
  double captured = 0;  // what their forward passes keep for their backward passes, inputs included
  double made = 0;      // the same without the layers' inputs
  double working = 0;   // the most that one needs beside it
};

double saved_bytes(const TrainingRun& run, const Tower& tower, const Block& block) {
  std::vector<SavedTensor> tensors;
  append_saved_tensors(run, tower, {block}, 0, tensors);
  double out = 0;
  for (const SavedTensor& tensor : tensors) out += tensor.bytes;
  return out;
}

// Returns what the captured part of a block keeps, and nothing for a block that is not captured.
class CapturedBytes {
 public:
  CapturedBytes(const TrainingRun& run, const Tower& tower)
      : run_(run), tower_(tower), captured_(run.training.captured) {}

  double operator()(const Attention& block) const { return of(captured_.attention, block); }
  double operator()(const Mlp& block) const { return of(captured_.mlp, block); }
  double operator()(const Mamba& block) const { return of(captured_.mixers, block); }
  double operator()(const Mixer& block) const { return of(captured_.mixers, block); }
  double operator()(const PredictionInput&) const { return 0; }

  // Tokens are routed by the host unless the experts are captured as well.
  double operator()(const Experts& block) const {
    if (captured_.experts || !captured_.router) return of(captured_.experts, block);
    Experts routed = block;
    routed.shared_ffn = 0;
    std::vector<SavedTensor> tensors;
    append_saved_tensors(run_, tower_, {routed}, 0, tensors);
    double out = saved_bytes(run_, tower_, block);
    for (const SavedTensor& tensor : tensors) out -= tensor.part == Part::kExperts ? tensor.bytes : 0;
    return out;
  }

 private:
  double of(bool captured, const Block& block) const {
    return captured ? saved_bytes(run_, tower_, block) : 0;
  }

  const TrainingRun& run_;
  const Tower& tower_;
  const CapturedParts& captured_;
};

// Softmax of several kernels has its input beside its result.
double working_bytes(const TrainingRun& run, const Tower& tower, const Block& block) {
  const auto* attention = std::get_if<Attention>(&block);
  if (attention == nullptr || run.training.attention != AttentionKernel::kMaterialised) return 0;
  return activation_element_bytes(run) * static_cast<double>(attention->heads) /
         static_cast<double>(run.parallel.tensor) * rank_tokens(run, tower) *
         static_cast<double>(tower.sequence);
}

// Transformer Engine, graph.py: inputs of a microbatch whose backward pass is over serve the next one;
// results and gradients are let go of when the next graph has been captured.
GraphBytes graph_bytes(const TrainingRun& run, const Stage& stage) {
  const Tower& tower = run.model.towers.back();
  const CapturedBytes captured_bytes(run, tower);
  // A byte for each pair of a sample's tokens.
  const double mask = rank_tokens(run, tower) * static_cast<double>(tower.sequence);
  GraphBytes out;
  for (const Chunk& chunk : stage.chunks) {
    for (int64_t i = 0; i < chunk.layers; ++i) {
      const auto in_flight = static_cast<double>(chunk.in_flight);
      double captured = 0;
      for (const Block& block : tower.layers[static_cast<size_t>(chunk.first_layer + i)]) {
        const double bytes = std::visit(captured_bytes, block);
        if (bytes == 0) continue;
        captured += bytes;
        out.working = std::max(out.working, working_bytes(run, tower, block));
        if (std::holds_alternative<Attention>(block)) out.inputs += in_flight * mask;
      }
      if (captured == 0) continue;
      const double input = layer_input_bytes(run, tower);
      out.inputs += in_flight * input;
      out.captured += in_flight * captured;
      out.made += in_flight * (captured - input);
    }
  }
  return out;
}

void add(Buckets& buckets, const char* name, double bytes, const char* formula) {
  if (bytes != 0) buckets.push_back({name, bytes, formula, kSource});
}

}  // namespace

void add_graphs(const TrainingRun& run, const Stage& stage, double moments, RankClass& rank) {
  const CapturedParts& captured = run.training.captured;
  const double kept = rank.peak_bytes - rank.steady_bytes;
  const GraphBytes graphs = captured.iteration ? GraphBytes{0, kept, kept, 0} : graph_bytes(run, stage);
  // States of the optimizer come with the first step.
  const double not_yet = captured.eager_steps == 1 ? moments : 0;
  const double eager = captured.eager_steps == 0 ? 0 : rank.peak_bytes - not_yet;
  const double not_at_capture = captured.eager_steps == 0 ? moments : 0;
  add(rank.steady, "inputs of captured graphs", graphs.inputs,
      "2 h T/t_sp + b s^2 / c for each layer and microbatch in flight");
  rank.steady_bytes += graphs.inputs;
  const double capture = rank.steady_bytes - not_at_capture + graphs.made + graphs.working;
  const double replay = rank.steady_bytes + std::max(0.0, kept - graphs.captured);

  for (Phase& phase : rank.phases) {
    const std::string_view name = phase.name;
    if (name == "end of forward") phase.bytes = replay;
    if (name == "end of backward" && captured.iteration) phase.bytes = rank.steady_bytes;
    if (name != "end of forward" && name != "after load") phase.bytes += graphs.inputs;
    if (name == "optimizer step" && captured.eager_steps == 0)
      rank.peak_step1_bytes = std::max({capture, replay - moments, phase.bytes});
  }
  rank.phases.insert(rank.phases.begin() + 1, {"capture of graphs", capture});
  if (captured.eager_steps > 0) rank.phases.insert(rank.phases.begin() + 1, {"steps before graphs", eager});
  rank.peak_bytes = std::max({eager, capture, replay});
  rank.pool_bytes = std::max(0.0, replay + graphs.made + graphs.working - rank.peak_bytes);

  if (rank.peak_bytes == eager) {
    add(rank.peak, "inputs of captured graphs", -graphs.inputs, "not there before graphs are captured");
    add(rank.peak, "optimizer states", -not_yet, "come with the first step");
  } else if (rank.peak_bytes == capture) {
    if (!captured.iteration) {
      rank.peak.clear();
      add(rank.peak, "captured activations", graphs.made, "of all graphs, while they are captured");
      add(rank.peak, "softmax of scores", graphs.working, "2 a s^2 b/t beside its result");
    }
    add(rank.peak, "optimizer states", -not_at_capture, "come with the first step");
  } else {
    add(rank.peak, "captured activations", replay - rank.steady_bytes - kept, "free in the graphs' pool");
  }
}

}  // namespace spillway::estimator
