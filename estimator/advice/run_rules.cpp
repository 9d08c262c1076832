// Rules that need the run: they look for its tensors among the live blocks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "estimator/advice/rules.h"
#include "estimator/buckets/states.h"
#include "estimator/measured.h"
#include "estimator/verdict.h"

namespace spillway::estimator {
namespace {

constexpr double kActivationShare = 0.5;  // of the peak
constexpr double kLossShare = 0.1;        // of the peak
constexpr double kUnitShare = 0.1;        // of the peak
constexpr double kImbalance = 1.25;       // busiest rank's transient bytes over the mean
constexpr double kSameSize = 0.02;        // what a block may be larger than its tensor
constexpr size_t kUnits = 2;              // of the sharded model are gathered at once where one is prefetched

struct Found {
  size_t count = 0;
  double bytes = 0;
};

// Live blocks of about one of these sizes.
Found blocks_of(const Measurement& measurement, std::initializer_list<double> sizes) {
  Found out;
  for (const double block : measurement.blocks) {
    const bool wanted = std::any_of(sizes.begin(), sizes.end(), [&](double size) {
      return size > 0 && block >= size && block <= (1 + kSameSize) * size;
    });
    if (!wanted) continue;
    ++out.count;
    out.bytes += block;
  }
  return out;
}

// Scores of one layer and microbatch, elements: b a s^2 / t.
double score_elements(const TrainingRun& run) {
  const Tower& tower = run.model.towers.back();
  for (const Layer& layer : tower.layers) {
    for (const Block& block : layer) {
      if (const auto* attention = std::get_if<Attention>(&block)) {
        const auto sequence = static_cast<double>(tower.sequence);
        return static_cast<double>(run.training.micro_batch * attention->heads) * sequence * sequence /
               static_cast<double>(run.parallel.tensor * run.parallel.context);
      }
    }
  }
  return 0;
}

// Logits of one microbatch, elements: T V/t.
double logit_elements(const TrainingRun& run) {
  return static_cast<double>(run.training.micro_batch * run.model.towers.back().sequence) *
         static_cast<double>(vocabulary_shard(run)) / static_cast<double>(run.parallel.context);
}

// Layers on one rank.
size_t rank_layers(const TrainingRun& run) {
  return std::max<size_t>(1,
                          run.model.towers.back().layers.size() / static_cast<size_t>(run.parallel.pipeline));
}

double saving_of(const MeasuredRun& run, std::string_view change) {
  for (const Mitigation& each : mitigations(run.run)) {
    if (each.change == change) return each.saved_bytes;
  }
  return 0;
}

bool has_experts(const TrainingRun& run) {
  for (const Layer& layer : run.model.towers.back().layers) {
    for (const Block& block : layer) {
      if (std::holds_alternative<Experts>(block)) return true;
    }
  }
  return false;
}

double transient_bytes(const Measurement& measurement, const MeasuredRun& run) {
  return measurement.allocated.peak - run.estimate.peak().steady_bytes;
}

}  // namespace

Findings materialised_attention(const Measurement& m, const MeasuredRun& run) {
  const double scores = score_elements(run.run);
  const Found found = blocks_of(m, {scores, 2 * scores, 4 * scores});
  // One or two are a layer at work; kept scores are there for each layer.
  if (found.count < std::max<size_t>(3, rank_layers(run.run))) return {};
  return {{"materialised-attention", "",
           fmt::format("{} live blocks of the size of attention scores (b a s^2/t), {}", found.count,
                       gib(found.bytes)),
           "attention keeps its scores for the backward pass: memory grows with the square of the sequence",
           "a flash attention kernel (scaled_dot_product_attention without a dense mask)", found.bytes}};
}

Findings activations_dominate(const Measurement& m, const MeasuredRun& run) {
  const double transient = transient_bytes(m, run);
  if (transient <= kActivationShare * m.allocated.peak || run.run.training.recompute == Recompute::kFull)
    return {};
  const double predicted = run.estimate.peak().peak_bytes - run.estimate.peak().steady_bytes;
  const double saved = saving_of(run, "train.recompute = full") * transient / std::max(1.0, predicted);
  return {{"activations", "",
           fmt::format("{} above model states and workspaces, {:.0f} % of the peak", gib(transient),
                       100 * transient / m.allocated.peak),
           "tensors saved for the backward pass grow with the tokens of a microbatch",
           "train.recompute = full, or half the micro-batch with twice the accumulation",
           std::min(saved, transient)}};
}

Findings loss_window(const Measurement& m, const MeasuredRun& run) {
  const double logits = logit_elements(run.run);
  const Found found = blocks_of(m, {2 * logits, 4 * logits});
  if (found.bytes <= kLossShare * m.allocated.peak) return {};
  return {{"loss", "",
           fmt::format("{} live blocks of the size of the logits (T V/t), {}", found.count, gib(found.bytes)),
           "logits and their gradients are held whole when the loss is computed",
           "train.loss = fused-linear, or the loss in chunks of tokens", found.bytes}};
}

Findings sharding_units(const Measurement& m, const MeasuredRun& run) {
  if (run.run.parallel.sharding != DataSharding::kParameters) return {};
  const double layer = gathered_layer_bytes(run.run), root = gathered_root_bytes(run.run);
  const Found found = blocks_of(m, {layer, root});
  if (found.count <= kUnits || found.bytes <= kUnitShare * m.allocated.peak) return {};
  return {{"sharding-units", "",
           fmt::format("{} gathered units live at once, {}", found.count, gib(found.bytes)),
           "units of the sharded model are gathered early or stay gathered",
           "reshard_after_forward, less prefetching, or smaller units",
           found.bytes - static_cast<double>(kUnits) * layer}};
}

Findings expert_imbalance(const std::vector<Measurement>& measurements, const MeasuredRun& run) {
  if (!has_experts(run.run) || run.run.parallel.expert < 2) return {};
  const Measurement* busiest = nullptr;
  double total = 0, most = 0;
  size_t ranks = 0;
  for (const Measurement& each : measurements) {
    if (!each.rank) continue;
    const double transient = std::max(0.0, transient_bytes(each, run));
    ++ranks;
    total += transient;
    if (transient > most) {
      most = transient;
      busiest = &each;
    }
  }
  if (busiest == nullptr || ranks < 2) return {};
  const double mean = total / static_cast<double>(ranks);
  if (most <= kImbalance * mean) return {};
  return {{"expert-imbalance", busiest->source,
           fmt::format("rank {} has {} above its model states, the mean of {} ranks is {}", *busiest->rank,
                       gib(most), ranks, gib(mean)),
           "routing sends the experts of one rank more tokens than others",
           "a capacity factor, a stronger balancing loss, or train.expert_imbalance to plan for it",
           most - mean}};
}

}  // namespace spillway::estimator
