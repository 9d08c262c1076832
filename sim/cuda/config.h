// The configuration of the simulated driver: what sim_control.h lists, parsed from "key:value,key:value".
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace spillway::sim {

constexpr int kMaxDevices = 16;

enum class Completion { kInstant, kLate, kRunAhead };

// Says what comes of memory at a NUMA node of the host; kAsHost: what Config::host_vmm says.
enum class HostNuma { kAsHost, kOff, kOn, kFault };

struct FaultRule {
  std::string name;
  uint64_t nth = 0;
  int result = 0;
};

struct Config {
  uint64_t capacity_bytes = uint64_t{16} << 30;
  int devices = 1;
  std::vector<int> visible = {0};  // by ordinal: which device of the machine that is
  uint64_t granularity_bytes = uint64_t{2} << 20;
  bool backed = true;
  Completion completion = Completion::kInstant;
  uint64_t seed = 1;
  bool access_cost_per_mapping = false;
  std::string costs_file;
  std::string shared_file;
  bool vmm = true;
  bool host_vmm = true;
  HostNuma host_numa = HostNuma::kAsHost;
  bool mig = false;
  bool vmm_in_capture = false;
  bool destroyed_streams_fault = true;
  bool overheads = false;
  int version = 13000;
  bool races = true;
  bool ends_at_exit = false;
  uint64_t max_mappings = 520000;
  std::vector<FaultRule> faults;
};

// Tells whether the driver says that it makes memory at a NUMA node of the host.
inline bool offers_host_numa(const Config& config) {
  if (config.host_numa == HostNuma::kAsHost) return config.host_vmm;
  return config.host_numa != HostNuma::kOff;
}

// Changes *config by what the text names and returns "", or returns one line that names the key, the value
// and what is allowed.
std::string parse_config(const char* text, Config* config);

// The 16 bytes of the UUID of a device of the machine.
std::array<char, 16> uuid_of(int machine_device);
// Lists which of the machine's devices a process sees, in its order, by the text of CUDA_VISIBLE_DEVICES: all
// where that is null; else indices and beginnings of UUIDs, up to the first that is neither or is none's.
// None, where one stands there twice.
std::vector<int> visible_devices(const char* text, int devices);
// The device of the machine that has this ordinal; -1 and below, and what is beyond them all, are what they
// are.
int machine_device(const std::vector<int>& visible, int ordinal);
// Its ordinal, or -1 where the process does not see it.
int ordinal_of(const std::vector<int>& visible, int machine_device);

}  // namespace spillway::sim
