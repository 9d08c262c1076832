// Keeps what is known about calls of entry points: how often each was called, which call is to fail, and how
// long it would have taken on a device. Kept by base name, so that all ABIs of a function share one row.
// Guarded by State's lock.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/cuda/config.h"

namespace spillway::sim {

enum class EntryPoint : uint16_t {
#define SPWSIM_ENTRY(name, version, symbol) k_##name,
#include "sim/cuda/entry_points.inc"
  kCount
};
constexpr size_t kEntryPoints = static_cast<size_t>(EntryPoint::kCount);

const char* entry_point_name(EntryPoint entry);
// kCount when there is none of this name.
EntryPoint find_entry_point(std::string_view name);

class Calls {
 public:
  // Zeroes everything, takes cost table and faults from the configuration; "" or one line that says what is
  // wrong.
  std::string reset(const Config& config);

  // Counts the call; the result it must fail with, or 0.
  int enter(EntryPoint entry) {
    const auto index = static_cast<size_t>(entry);
    ++counts_[index];
    ++total_;
    virtual_ns_ += costs_ns_[index];
    return faults_.empty() && lasting_ == 0 ? 0 : due_fault(entry);
  }
  // A call that changed this many mappings: the per-mapping reading pays for each, and for none where nothing
  // changed; the per-call one for one.
  void charge_mappings(EntryPoint entry, uint64_t mappings) {
    const uint64_t cost_ns = costs_ns_[static_cast<size_t>(entry)];
    if (mappings == 0) spared_ns_ += cost_ns;
    if (mappings > 1) extra_ns_ += cost_ns * (mappings - 1);
  }

  void inject(EntryPoint entry, uint64_t nth_from_now, int result);
  void clear_faults() {
    faults_.clear();
    lasting_ = 0;
  }
  void reset_counters();

  uint64_t count(EntryPoint entry) const { return counts_[static_cast<size_t>(entry)]; }
  uint64_t total() const { return total_; }
  uint64_t virtual_ns() const { return virtual_ns_; }
  uint64_t virtual_ns_per_mapping() const { return virtual_ns_ + extra_ns_ - spared_ns_; }

 private:
  struct Fault {
    EntryPoint entry;
    uint64_t calls_left;
    int result;
  };
  int due_fault(EntryPoint entry);

  std::array<uint64_t, kEntryPoints> counts_{};
  std::array<uint64_t, kEntryPoints> costs_ns_{};
  std::vector<Fault> faults_;
  int lasting_ = 0;  // a fault that came and stays, as errors of kernels do
  uint64_t total_ = 0;
  uint64_t virtual_ns_ = 0;
  uint64_t extra_ns_ = 0;
  uint64_t spared_ns_ = 0;
};

}  // namespace spillway::sim
