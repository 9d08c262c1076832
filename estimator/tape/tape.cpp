#include "estimator/tape/tape.h"

#include <algorithm>
#include <cmath>

namespace spillway::estimator {
namespace {

constexpr double kLine = 512;
// As many layers of a run of equal ones are played: the second one stands for all that are not.
constexpr int64_t kPlayed = 4;

}  // namespace

Share::Share(const Share& other) : tape_(other.tape_), index_(other.index_), is_view_(other.is_view_) {
  if (tape_ != nullptr) ++tape_->storages_[index_].shares;
}

Share::~Share() {
  if (tape_ != nullptr) tape_->release(index_);
}

Share Backward::make(double bytes) {
  return tape_.make_share(bytes);
}

void Tape::add(Purpose purpose, double bytes) {
  of_[static_cast<size_t>(purpose)] += bytes;
  live_ += bytes;
  if (live_ <= peak_) return;
  peak_ = live_;
  at_peak_ = of_;
}

void Tape::add_times(const PurposeBytes& before, double times) {
  const PurposeBytes now = of_;
  // What became less comes first, so that nothing is counted twice.
  for (const bool less : {true, false}) {
    for (size_t i = 0; i < kPurposes; ++i) {
      const double change = times * (now[i] - before[i]);
      if (change != 0 && (change < 0) == less) add(static_cast<Purpose>(i), change);
    }
  }
}

void Tape::restart_peak() {
  peak_ = live_;
  at_peak_ = of_;
}

Share Tape::make_share(double bytes) {
  size_t index = storages_.size();
  if (unused_.empty()) {
    storages_.emplace_back();
  } else {
    index = unused_.back();
    unused_.pop_back();
  }
  const Purpose purpose = recomputing_ != nullptr || in_second_run_ ? Purpose::kRecomputed
                          : in_backward_                            ? Purpose::kPassing
                                                                    : purpose_;
  storages_[index] = {stopped_ ? 0 : std::ceil(bytes / kLine) * kLine, 1, purpose};
  add(purpose, storages_[index].bytes);
  return {this, index};
}

Tensor Tape::make(double elements, double element) {
  return {make_share(elements * element), elements, element, {}};
}

Tensor Tape::weight(double elements, double element, bool trained) {
  if (!trained) return {{}, elements, element, {}};
  if (shared_weights_ != nullptr && next_shared_ < shared_weights_->size())
    return (*shared_weights_)[next_shared_++];
  // A second run makes them anew.
  if (!in_backward_ && !in_second_run_ && recomputing_ == nullptr && !is_beside_) {
    trained_elements_ += weight_times_ * elements;
    trained_bytes_ += weight_times_ * elements * element;
  }
  Tensor out = leaf(elements, element);
  if (shared_weights_ != nullptr) {
    shared_weights_->push_back(out);
    ++next_shared_;
  }
  return out;
}

Tensor Tape::leaf(double elements, double element) {
  Tensor out{{}, elements, element, {}};
  weights_.push_back({elements * element});
  out.edge.node = -2 - static_cast<int64_t>(weights_.size() - 1);
  return out;
}

void Tape::release(size_t index) {
  Storage& storage = storages_[index];
  if (--storage.shares > 0) return;
  add(storage.purpose, -storage.bytes);
  unused_.push_back(index);
}

Tape::Recorder::Recorder(Tape& tape, std::vector<Edge> inputs)
    : tape_(tape),
      inputs_(std::move(inputs)),
      on_(tape.gradients_on_ &&
          std::any_of(inputs_.begin(), inputs_.end(), [](const Edge& edge) { return edge.any(); })) {}

void Tape::Recorder::save(const Share& share) {
  if (!on_ || !share) return;
  if (tape_.recomputing_ != nullptr) {
    Region& region = *tape_.recomputing_;
    if (tape_.also_held_ != nullptr && !tape_.stopped_) tape_.also_held_->push_back(share);
    if (region.saved.size() < region.saves) region.saved.push_back(share);
    if (region.saved.size() == region.saves) tape_.stopped_ = true;
    return;
  }
  saved_.push_back(share);
}

Edge Tape::Recorder::finish(Formula formula, size_t slots) {
  if (!on_) return {};
  // In a recomputation only what is saved counts.
  if (tape_.recomputing_ != nullptr) return {0, 0};
  for (const Edge& edge : inputs_) {
    if (edge.node < Edge::kNone) ++tape_.weights_[static_cast<size_t>(-2 - edge.node)].uses;
  }
  Node node;
  node.inputs = std::move(inputs_);
  node.gradients.resize(slots);
  node.formula = std::move(formula);
  node.region = tape_.region_;
  if (node.region >= 0) {
    Region& region = tape_.regions_[static_cast<size_t>(node.region)];
    node.first_saved = region.saves;
    node.saves = saved_.size();
    region.saves += node.saves;
    saved_.clear();
  } else {
    node.saved = std::move(saved_);
  }
  tape_.nodes_.push_back(std::move(node));
  return {static_cast<int64_t>(tape_.nodes_.size() - 1), 0};
}

Tensor Tape::repeat(int64_t count, Tensor input, const Body& body) {
  const int64_t played = std::min(count, kPlayed);
  for (int64_t i = 0; i < played; ++i) {
    const bool stands_for_more = i == 1 && count > played;
    const PurposeBytes before = of_;
    const size_t first = nodes_.size();
    weight_times_ = stands_for_more ? 1 + static_cast<double>(count - played) : 1;
    input = body(input);
    weight_times_ = 1;
    if (!stands_for_more) continue;
    const auto more = static_cast<double>(count - played);
    // Layers that are frozen, with nothing trained before them, have no nodes.
    if (nodes_.size() > first) repeated_.push_back({first, nodes_.size(), more, {}});
    for (size_t purpose = 0; purpose < kPurposes; ++purpose)
      repeated_ones_[purpose] += more * (of_[purpose] - before[purpose]);
    add_times(before, more);
  }
  return input;
}

void Tape::end_forward(bool copies_are_saved) {
  casts_.clear();
  add(Purpose::kCache, -std::exchange(repeated_ones_[static_cast<size_t>(Purpose::kCache)], 0));
  const double copies = std::exchange(repeated_ones_[static_cast<size_t>(Purpose::kCopies)], 0);
  if (!copies_are_saved) add(Purpose::kCopies, -copies);
}

void Tape::let_go(std::vector<Kept>& kept) {
  for (const Kept& each : kept) {
    if (!each.share || storages_[each.share.index_].shares > 1) continue;
    const Storage& storage = storages_[each.share.index_];
    add(storage.purpose, -(each.times - 1) * storage.bytes);
  }
  kept.clear();
}

Tensor Tape::checkpoint(const Tensor& input, const Body& body, bool reentrant) {
  if (!gradients_on_) return body(input);
  if (!reentrant) {
    regions_.push_back({body, input.detached(), 0, false, {}});
    // A layer whose input needs no gradient has nodes of its own all the same.
    regions_.back().input.edge = input.edge.any() ? Edge{0, 0} : Edge{};
    region_ = static_cast<int64_t>(regions_.size() - 1);
    Tensor out = body(input);
    region_ = -1;
    // Where nothing is saved nothing runs again.
    if (Region& region = regions_.back(); region.saves == 0) {
      region.input.reset();
      region.body = {};
    }
    return out;
  }
  Recorder recorder(*this, {input.edge});
  recorder.save(input.data);
  gradients_on_ = false;
  std::vector<Tensor> before = std::exchange(beside_, {});
  Tensor out = body(input.detached());
  before.clear();
  gradients_on_ = true;
  const Tensor kept = input.detached();
  std::vector<double> beside;
  for (const Tensor& each : beside_) beside.push_back(each.bytes());
  out.edge = recorder.finish([this, kept, body, beside](Backward& run) {
    std::vector<Share> zeros;
    for (const double bytes : beside) zeros.push_back(run.make(bytes));
    // A leaf of the inner graph, whose gradient is the input's.
    const size_t base = nodes_.size();
    nodes_.emplace_back();
    nodes_.back().gradients.resize(1);
    Tensor again = kept;
    again.edge = {static_cast<int64_t>(base), 0};
    in_backward_ = false;
    in_second_run_ = true;
    // The output lives until the inner backward pass is through (CheckpointFunction.backward).
    beside_.clear();
    const Tensor result = body(again);
    const std::vector<Tensor> others = std::exchange(beside_, {});
    casts_.clear();
    in_second_run_ = false;
    in_backward_ = true;
    deliver(result.edge, run.gradient());
    for (size_t i = 0; i < zeros.size(); ++i) deliver(others[i].edge, zeros[i]);
    run_down_to(base + 1, false);
    Share for_input = std::move(nodes_.back().gradients[0]);
    nodes_.pop_back();
    run.give(0, std::move(for_input));
  });
  return out;
}

Share Tape::accumulated(Share old, const Share& more) {
  if (is_sole(old)) return old;
  return make_share(std::max(storages_[old.index_].bytes, storages_[more.index_].bytes));
}

void Tape::deliver_to_weight(Weight& weight, Share gradient) {
  weight.under_way =
      weight.under_way ? accumulated(std::move(weight.under_way), gradient) : std::move(gradient);
  if (--weight.uses > 0) return;
  Share whole = std::move(weight.under_way);
  weight.under_way.reset();
  if (weight.gradient || !keeps_gradients) return;
  if (storages_[whole.index_].shares > 1) whole = make_share(storages_[whole.index_].bytes);
  Storage& storage = storages_[whole.index_];
  add(storage.purpose, -storage.bytes);
  storage.purpose = Purpose::kGradients;
  add(storage.purpose, storage.bytes);
  weight.gradient = std::move(whole);
}

void Tape::deliver(const Edge& edge, Share gradient) {
  if (!edge.any()) return;
  if (edge.node < Edge::kNone) {
    deliver_to_weight(weights_[static_cast<size_t>(-2 - edge.node)], std::move(gradient));
    return;
  }
  Share& slot = nodes_[static_cast<size_t>(edge.node)].gradients[static_cast<size_t>(edge.slot)];
  slot = slot ? accumulated(std::move(slot), gradient) : std::move(gradient);
}

void Tape::recompute(Region& region) {
  recomputing_ = &region;
  casts_.clear();
  region.body(region.input);
  casts_.clear();
  recomputing_ = nullptr;
  stopped_ = false;
  region.recomputed = true;
  region.input.reset();
  region.body = {};
}

void Tape::run(Node node) {
  if (std::none_of(node.gradients.begin(), node.gradients.end(),
                   [](const Share& share) { return bool(share); }))
    return;
  if (node.saves > 0) {
    Region& region = regions_[static_cast<size_t>(node.region)];
    if (!region.recomputed) recompute(region);
    for (size_t i = 0; i < node.saves; ++i)
      node.saved.push_back(std::move(region.saved[node.first_saved + i]));
  }
  std::vector<Share> results(node.inputs.size());
  Backward backward(*this, node.gradients, results, node.saves > 0 ? &node.saved : nullptr);
  node.formula(backward);
  node.gradients.clear();
  node.saved.clear();
  node.formula = {};
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i]) deliver(node.inputs[i], std::move(results[i]));
  }
}

void Tape::run_down_to(size_t base, bool outermost) {
  while (nodes_.size() > base) {
    if (outermost && !repeated_.empty() && repeated_.back().end == nodes_.size())
      repeated_.back().before = of_;
    Node node = std::move(nodes_.back());
    nodes_.pop_back();
    run(std::move(node));
    if (outermost && !repeated_.empty() && repeated_.back().first == nodes_.size()) {
      add_times(repeated_.back().before, repeated_.back().more);
      repeated_.pop_back();
    }
  }
}

void Tape::backward(const Tensor& loss) {
  if (!loss.needs_gradient()) return;
  in_backward_ = true;
  deliver(loss.edge, make_share(loss.bytes()));
  run_down_to(0, true);
  in_backward_ = false;
}

}  // namespace spillway::estimator
