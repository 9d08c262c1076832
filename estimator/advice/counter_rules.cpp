// Rules that need counters alone.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "estimator/advice/rules.h"
#include "estimator/measured.h"

namespace spillway::estimator {
namespace {

// Shares and sizes from which on a rule speaks.
constexpr double kStatesShare = 0.6;             // of what is allocated
constexpr double kSplitShare = 0.1;              // of what is reserved
constexpr double kCachedShare = 0.2;             // of what is reserved
constexpr double kRoundingShare = 0.05;          // of what is allocated
constexpr double kOutside = 2048 * kMiB;         // context and one NCCL group are 1 GiB
constexpr double kGrowthShare = 0.01;            // of what is allocated, from one dump to the next
constexpr size_t kGrowthDumps = 3;               // two may be a first step and a later one
constexpr double kEightBitSaves = 1 - 2.03 / 8;  // blocks of 256 with an fp32 scale, bitsandbytes

double percent(double part, double whole) {
  return whole > 0 ? 100 * part / whole : 0;
}

// Sizes of live blocks whose number grew, the most bytes first.
std::string growing_sizes(const Measurement& first, const Measurement& last) {
  std::map<double, int64_t> more;
  for (const double size : last.blocks) ++more[size];
  for (const double size : first.blocks) --more[size];
  std::vector<std::pair<double, int64_t>> grown;
  for (const auto& [size, count] : more) {
    if (count > 0) grown.emplace_back(size, count);
  }
  std::stable_sort(grown.begin(), grown.end(), [](const auto& a, const auto& b) {
    return a.first * static_cast<double>(a.second) > b.first * static_cast<double>(b.second);
  });
  std::vector<std::string> texts;
  for (size_t i = 0; i < std::min<size_t>(3, grown.size()); ++i)
    texts.push_back(fmt::format("{} more of {:.0f} bytes", grown[i].second, grown[i].first));
  return texts.empty() ? "" : fmt::format("; blocks: {}", fmt::join(texts, ", "));
}

Findings growth_of(std::vector<const Measurement*> dumps) {
  if (dumps.size() < kGrowthDumps) return {};
  std::stable_sort(dumps.begin(), dumps.end(), [](const Measurement* a, const Measurement* b) {
    return a->time_seconds < b->time_seconds;
  });
  for (size_t i = 1; i < dumps.size(); ++i) {
    const double before = dumps[i - 1]->allocated.current;
    if (dumps[i]->allocated.current < (1 + kGrowthShare) * before) return {};
  }
  const Measurement& first = *dumps.front();
  const Measurement& last = *dumps.back();
  const double grown = last.allocated.current - first.allocated.current;
  return {{"growth", last.source,
           fmt::format("{} dumps of process {}, each with more allocated than the one before: {} in all{}",
                       dumps.size(), last.process_id, gib(grown), growing_sizes(first, last)),
           "a leak, or a cache that grows with every step",
           "find who keeps them: memory snapshots name the lines", 0}};
}

}  // namespace

std::string gib(double bytes) {
  return fmt::format("{:.3f} GiB", bytes / (1024 * kMiB));
}

Findings model_states(const Measurement& m) {
  const double states = m.annotation("parameter_bytes") + m.annotation("gradient_bytes") +
                        m.annotation("buffer_bytes") + m.annotation("optimizer_bytes");
  if (states <= kStatesShare * m.allocated.peak) return {};
  const double optimizer = m.annotation("optimizer_bytes");
  return {{"model-states", "",
           fmt::format("model states are {}, {:.0f} % of the peak", gib(states),
                       percent(states, m.allocated.peak)),
           "weights, gradients and optimizer states",
           "shard them (parallel.zero, D ranks: optimizer states / D), or train.optimizer = adamw8bit",
           kEightBitSaves * optimizer}};
}

Findings external_fragmentation(const Measurement& m) {
  const double split = std::max(m.inactive_split.current, m.inactive_split.peak);
  if (split <= kSplitShare * m.reserved.peak || m.retries + m.ooms == 0) return {};
  return {{"external-fragmentation", "",
           fmt::format("up to {} free in segments in use, {:.0f} % of what was reserved, and {} flushes, {} "
                       "out of memory",
                       gib(split), percent(split, m.reserved.peak), m.retries, m.ooms),
           "free memory in pieces that no request fits",
           "spillway run, or PyTorch's expandable_segments: pieces are mapped together", split}};
}

Findings caching(const Measurement& m) {
  if (m.cached_free_bytes <= kCachedShare * m.reserved.current || m.retries + m.ooms > 0) return {};
  return {{"caching", "",
           fmt::format("{} reserved and free, {:.0f} % of what is reserved; nothing was ever flushed",
                       gib(m.cached_free_bytes), percent(m.cached_free_bytes, m.reserved.current)),
           "the allocator's cache: not needed, only kept",
           "none needed; torch.cuda.empty_cache() gives it to other processes", 0}};
}

Findings rounding_loss(const Measurement& m) {
  const double lost = m.allocated.peak - m.requested.peak;
  if (lost <= kRoundingShare * m.allocated.peak) return {};
  return {{"rounding", "",
           fmt::format("{} allocated above what was requested, {:.0f} %", gib(lost),
                       percent(lost, m.allocated.peak)),
           "requests of odd sizes are rounded up", "spillway run: blocks of 512 bytes", lost}};
}

Findings outside_allocator(const Measurement& m) {
  const double outside = m.annotation("outside_bytes");
  if (outside <= kOutside) return {};
  return {{"outside-allocator", "", fmt::format("{} in use on the device and not reserved", gib(outside)),
           "CUDA's context, NCCL's buffers, other libraries or other processes",
           "fewer process groups, a smaller NCCL_BUFFSIZE, CUDA_MODULE_LOADING=LAZY",
           outside - kContextBytes.value - kCommunicatorBytes.value}};
}

Findings growth(const std::vector<Measurement>& measurements) {
  std::map<std::pair<int64_t, int64_t>, std::vector<const Measurement*>> processes;
  for (const Measurement& each : measurements) {
    // Without a time there is no order.
    if (each.time_seconds > 0) processes[{each.process_id, each.device}].push_back(&each);
  }
  Findings out;
  for (const auto& [process, dumps] : processes) {
    for (Finding& finding : growth_of(dumps)) out.push_back(std::move(finding));
  }
  return out;
}

}  // namespace spillway::estimator
