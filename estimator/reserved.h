// Predicts what an allocator takes of the device for a run, of which the estimate's peak is what tensors hold
// of it. Free memory between tensors depends on the order of requests, which the estimate does not play: it
// is a share of the peak, as measured on recorded runs of the same kind.
//
// Reserved is, of PyTorch's allocators, what they hold at most where nothing limits them: with less they give
// segments back and wait for the device. Of Spillway it is the least with which it never waits, as it maps
// its free pages anew.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "estimator/run.h"

namespace spillway::estimator {

// Says what orders the requests of a run.
enum class ReservedKind {
  kPlain,          // one stream, nothing recomputed
  kRecomputed,     // layers are recomputed
  kRoutedExperts,  // sizes follow the routing of tokens
  kSharded,        // weights are gathered on streams of their own
};

// Shares of the peak that tensors hold: the least, the median and the most of the recorded runs.
struct ReservedShare {
  AllocatorModel allocator;
  ReservedKind kind;
  int rows;  // how many runs were recorded
  double lowest, expected, highest;
};

// bench/estimator/reserved.py measured the rows, bench/estimator/reserved.jsonl holds them.
extern const std::array<ReservedShare, 12> kReservedShares;

ReservedKind reserved_kind(const TrainingRun& run);

// The words of allocator.model: spillway, pytorch, expandable.
const char* allocator_name(AllocatorModel allocator);
std::optional<AllocatorModel> find_allocator(std::string_view name);
constexpr std::array<AllocatorModel, 3> kAllocators = {AllocatorModel::kSpillway, AllocatorModel::kExpandable,
                                                       AllocatorModel::kPytorch};

struct ReservedBytes {
  double lowest = 0;
  double expected = 0;
  double highest = 0;
};

// For `peak_bytes` of tensors on the run's own allocator, or on another.
ReservedBytes reserved_bytes(const TrainingRun& run, double peak_bytes);
ReservedBytes reserved_bytes(const TrainingRun& run, double peak_bytes, AllocatorModel allocator);

}  // namespace spillway::estimator
