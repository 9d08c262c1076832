#include "sim/cuda/calls.h"

#include <cuda.h>

#include <algorithm>
#include <iterator>

#include "sim/cuda/costs.h"

namespace spillway::sim {
namespace {

constexpr const char* kNames[] = {
#define SPWSIM_ENTRY(name, version, symbol) #name,
#include "sim/cuda/entry_points.inc"
};

// cuda.h: "any further CUDA work will return the same error", or the context's memory is invalid.
constexpr CUresult kLasting[] = {CUDA_ERROR_ECC_UNCORRECTABLE,    CUDA_ERROR_ILLEGAL_ADDRESS,
                                 CUDA_ERROR_LAUNCH_TIMEOUT,       CUDA_ERROR_ASSERT,
                                 CUDA_ERROR_HARDWARE_STACK_ERROR, CUDA_ERROR_ILLEGAL_INSTRUCTION,
                                 CUDA_ERROR_MISALIGNED_ADDRESS,   CUDA_ERROR_INVALID_ADDRESS_SPACE,
                                 CUDA_ERROR_INVALID_PC,           CUDA_ERROR_LAUNCH_FAILED};

// Calls that ask and choose: they answer whatever has become of a context.
constexpr std::string_view kWithoutWork[] = {"cuInit",   "cuDriver",  "cuDevice", "cuGet",   "cuCtxGet",
                                             "cuCtxSet", "cuCtxPush", "cuCtxPop", "cuThread"};

bool is_work(std::string_view name) {
  return std::none_of(std::begin(kWithoutWork), std::end(kWithoutWork),
                      [&](std::string_view prefix) { return name.substr(0, prefix.size()) == prefix; });
}

}  // namespace

const char* entry_point_name(EntryPoint entry) {
  return kNames[static_cast<size_t>(entry)];
}

EntryPoint find_entry_point(std::string_view name) {
  const auto* found = std::find(std::begin(kNames), std::end(kNames), name);
  return static_cast<EntryPoint>(found - std::begin(kNames));
}

std::string Calls::reset(const Config& config) {
  Calls fresh;
  std::string problem = load_costs(config.costs_file, &fresh.costs_ns_);
  if (!problem.empty()) return problem;
  for (const FaultRule& rule : config.faults) {
    const EntryPoint entry = find_entry_point(rule.name);
    if (entry == EntryPoint::kCount) {
      return "key 'fault', value '" + rule.name +
             "'; allowed: the base name of an entry point such as cuMemMap";
    }
    fresh.inject(entry, rule.nth, rule.result);
  }
  *this = std::move(fresh);
  return "";
}

void Calls::inject(EntryPoint entry, uint64_t nth_from_now, int result) {
  faults_.push_back({entry, nth_from_now, result});
}

void Calls::reset_counters() {
  counts_.fill(0);
  total_ = 0;
  virtual_ns_ = 0;
  extra_ns_ = 0;
  spared_ns_ = 0;
}

int Calls::due_fault(EntryPoint entry) {
  int result = 0;
  for (Fault& fault : faults_) {
    if (fault.entry != entry) continue;
    if (--fault.calls_left == 0 && result == 0) result = fault.result;
  }
  if (std::count(std::begin(kLasting), std::end(kLasting), result) > 0) lasting_ = result;
  std::erase_if(faults_, [](const Fault& fault) { return fault.calls_left == 0; });
  return result == 0 && lasting_ != 0 && is_work(entry_point_name(entry)) ? lasting_ : result;
}

}  // namespace spillway::sim
