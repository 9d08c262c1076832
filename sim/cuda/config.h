// The configuration of the simulated driver: what sim_control.h lists, parsed from "key:value,key:value".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace spillway::sim {

constexpr int kMaxDevices = 16;

enum class Completion { kInstant, kLate, kRunAhead };

struct FaultRule {
  std::string name;
  uint64_t nth = 0;
  int result = 0;
};

struct Config {
  uint64_t capacity_bytes = uint64_t{16} << 30;
  int devices = 1;
  uint64_t granularity_bytes = uint64_t{2} << 20;
  bool backed = true;
  Completion completion = Completion::kInstant;
  uint64_t seed = 1;
  bool access_cost_per_mapping = false;
  std::string costs_file;
  std::string shared_file;
  bool vmm = true;
  bool host_vmm = true;
  bool mig = false;
  bool vmm_in_capture = false;
  int version = 13000;
  bool races = true;
  bool ends_at_exit = false;
  uint64_t max_mappings = 520000;
  std::vector<FaultRule> faults;
};

// Fills *config and returns "", or returns one line that names the key, the value and what is allowed.
std::string parse_config(const char* text, Config* config);

}  // namespace spillway::sim
