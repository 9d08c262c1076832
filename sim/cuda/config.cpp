#include "sim/cuda/config.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <sstream>
#include <string_view>

namespace spillway::sim {
namespace {

struct Parsed {
  Config* config;
  std::string_view value;
};

bool parse_number(std::string_view text, uint64_t low, uint64_t high, uint64_t* out) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return false;
  if (value < low || value > high) return false;
  *out = value;
  return true;
}

bool parse_size(std::string_view text, uint64_t* out) {
  size_t digits = 0;
  while (digits < text.size() && std::isdigit(static_cast<unsigned char>(text[digits]))) ++digits;
  const std::string_view unit = text.substr(digits);
  int shift = -1;
  if (unit.empty() || unit == "B") shift = 0;
  if (unit == "KiB") shift = 10;
  if (unit == "MiB") shift = 20;
  if (unit == "GiB") shift = 30;
  if (unit == "TiB") shift = 40;
  constexpr uint64_t kMost = uint64_t{16} << 40;
  uint64_t count = 0;
  if (shift < 0 || !parse_number(text.substr(0, digits), 1, kMost >> shift, &count)) return false;
  *out = count << shift;
  return true;
}

// One of the words in "a|b|c"; its index, or -1.
int parse_choice(std::string_view text, std::string_view allowed) {
  for (int index = 0;; ++index) {
    const size_t bar = allowed.find('|');
    if (allowed.substr(0, bar) == text) return index;
    if (bar == std::string_view::npos) return -1;
    allowed.remove_prefix(bar + 1);
  }
}

bool set_capacity(Parsed in) {
  return parse_size(in.value, &in.config->capacity_bytes);
}
bool set_granularity(Parsed in) {
  uint64_t bytes = 0;
  if (!parse_size(in.value, &bytes)) return false;
  if ((bytes & (bytes - 1)) != 0 || bytes < (64 << 10) || bytes > (uint64_t{1} << 30)) return false;
  in.config->granularity_bytes = bytes;
  return true;
}
bool set_devices(Parsed in) {
  uint64_t count = 0;
  if (!parse_number(in.value, 1, kMaxDevices, &count)) return false;
  in.config->devices = static_cast<int>(count);
  return true;
}
bool set_backing(Parsed in) {
  const int choice = parse_choice(in.value, "none|memfd");
  in.config->backed = choice == 1;
  return choice >= 0;
}
bool set_completion(Parsed in) {
  const int choice = parse_choice(in.value, "instant|late|run-ahead");
  in.config->completion = static_cast<Completion>(choice < 0 ? 0 : choice);
  return choice >= 0;
}
bool set_seed(Parsed in) {
  return parse_number(in.value, 0, UINT64_MAX, &in.config->seed);
}
bool set_access_cost(Parsed in) {
  const int choice = parse_choice(in.value, "per-call|per-mapping");
  in.config->access_cost_per_mapping = choice == 1;
  return choice >= 0;
}
bool set_costs(Parsed in) {
  in.config->costs_file = std::string(in.value);
  if (in.value == "h100") in.config->access_cost_per_mapping = true;  // as it does there
  return !in.value.empty();
}
bool set_shared(Parsed in) {
  in.config->shared_file = std::string(in.value);
  return !in.value.empty();
}
bool set_vmm(Parsed in) {
  const int choice = parse_choice(in.value, "off|on");
  in.config->vmm = choice == 1;
  return choice >= 0;
}
bool set_host_vmm(Parsed in) {
  const int choice = parse_choice(in.value, "off|on");
  in.config->host_vmm = choice == 1;
  return choice >= 0;
}
bool set_host_numa(Parsed in) {
  const int choice = parse_choice(in.value, "off|on|fault");
  in.config->host_numa = choice == 0 ? HostNuma::kOff : choice == 1 ? HostNuma::kOn : HostNuma::kFault;
  return choice >= 0;
}
bool set_mig(Parsed in) {
  uint64_t on = 0;
  if (!parse_number(in.value, 0, 1, &on)) return false;
  in.config->mig = on == 1;
  return true;
}
bool set_vmm_in_capture(Parsed in) {
  const int choice = parse_choice(in.value, "refuse|allow");
  in.config->vmm_in_capture = choice == 1;
  return choice >= 0;
}
bool set_destroyed_streams(Parsed in) {
  const int choice = parse_choice(in.value, "report|fault");
  in.config->destroyed_streams_fault = choice == 1;
  return choice >= 0;
}
bool set_overheads(Parsed in) {
  const int choice = parse_choice(in.value, "off|on");
  in.config->overheads = choice == 1;
  return choice >= 0;
}
bool set_races(Parsed in) {
  const int choice = parse_choice(in.value, "off|on");
  in.config->races = choice == 1;
  return choice >= 0;
}
bool set_at_exit(Parsed in) {
  const int choice = parse_choice(in.value, "stay|end");
  in.config->ends_at_exit = choice == 1;
  return choice >= 0;
}
bool set_version(Parsed in) {
  uint64_t version = 0;
  if (!parse_number(in.value, 2000, 99999, &version)) return false;
  in.config->version = static_cast<int>(version);
  return true;
}
bool set_mappings(Parsed in) {
  return parse_number(in.value, 1, UINT64_MAX, &in.config->max_mappings);
}
bool set_fault(Parsed in) {
  FaultRule rule;
  const size_t at = in.value.find('@');
  if (at == std::string_view::npos || at == 0) return false;
  rule.name = std::string(in.value.substr(0, at));
  std::string_view rest = in.value.substr(at + 1);
  const size_t equals = rest.find('=');
  uint64_t result = 2;
  if (equals != std::string_view::npos && !parse_number(rest.substr(equals + 1), 1, 999, &result))
    return false;
  if (!parse_number(rest.substr(0, equals), 1, UINT64_MAX, &rule.nth)) return false;
  rule.result = static_cast<int>(result);
  in.config->faults.push_back(rule);
  return true;
}

struct Key {
  std::string_view name;
  const char* allowed;
  bool (*set)(Parsed);
};

constexpr Key kKeys[] = {
    {"capacity", "a size such as 16GiB, at most 16TiB", set_capacity},
    {"devices", "1 to 16", set_devices},
    {"granularity", "a power of two from 64KiB to 1GiB", set_granularity},
    {"backing", "memfd or none", set_backing},
    {"completion", "instant, late or run-ahead", set_completion},
    {"seed", "a number", set_seed},
    {"set_access_cost", "per-call or per-mapping", set_access_cost},
    {"costs", "cheap, dear, h100 or the name of a JSON file", set_costs},
    {"shared", "the name of a file", set_shared},
    {"vmm", "on or off", set_vmm},
    {"host_vmm", "on or off", set_host_vmm},
    {"host_numa", "on, off or fault", set_host_numa},
    {"mig", "0 or 1", set_mig},
    {"vmm_in_capture", "refuse or allow", set_vmm_in_capture},
    {"destroyed_streams", "report or fault", set_destroyed_streams},
    {"overheads", "on or off", set_overheads},
    {"version", "1000*major + 10*minor, 2000 to 99999", set_version},
    {"races", "on or off", set_races},
    {"at_exit", "stay or end", set_at_exit},
    {"mappings", "a number from 1", set_mappings},
    {"fault", "ENTRY_POINT@N or ENTRY_POINT@N=CUresult, N from 1, CUresult 1 to 999", set_fault},
};

std::string apply(std::string_view item, Config* config) {
  const size_t colon = item.find(':');
  const std::string_view name = item.substr(0, colon);
  for (const Key& key : kKeys) {
    if (key.name != name) continue;
    const std::string_view value = colon == std::string_view::npos ? "" : item.substr(colon + 1);
    if (key.set({config, value})) return "";
    return "key '" + std::string(name) + "', value '" + std::string(value) + "'; allowed: " + key.allowed;
  }
  std::string names;
  for (const Key& key : kKeys) names += (names.empty() ? "" : ", ") + std::string(key.name);
  return "unknown key '" + std::string(name) + "'; allowed: " + names;
}

}  // namespace

std::string parse_config(const char* text, Config* config) {
  Config parsed = *config;
  std::string_view rest = text == nullptr ? "" : text;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    std::string problem = apply(rest.substr(0, comma), &parsed);
    if (!problem.empty()) return problem;
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (parsed.capacity_bytes % parsed.granularity_bytes != 0) {
    parsed.capacity_bytes -= parsed.capacity_bytes % parsed.granularity_bytes;
  }
  if (parsed.capacity_bytes == 0) return "key 'capacity' is less than the granularity";
  *config = std::move(parsed);
  return "";
}

std::array<char, 16> uuid_of(int machine_device) {
  std::array<char, 16> bytes{};
  std::memcpy(bytes.data(), "spillway-sim-00", bytes.size());
  bytes.back() = static_cast<char>(machine_device);
  return bytes;
}

namespace {

// Returns what follows "GPU" or "MIG".
std::string uuid_text(int machine_device) {
  std::string text = "-";
  int at = 0;
  for (const char byte : uuid_of(machine_device)) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[byte & 15];
    ++at;
    if (at == 4 || at == 6 || at == 8 || at == 10) text += '-';
  }
  return text;
}

// -1: none, or more than one.
int device_named(const std::string& name, int devices) {
  int index = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
  if (error == std::errc() && end == name.data() + name.size()) return index < devices ? index : -1;
  if (!name.starts_with("GPU-") && !name.starts_with("MIG-")) return -1;
  int found = -1;
  for (int device = 0; device < devices; ++device) {
    if (!uuid_text(device).starts_with(name.substr(3))) continue;
    if (found >= 0) return -1;
    found = device;
  }
  return found;
}

}  // namespace

std::vector<int> visible_devices(const char* text, int devices) {
  std::vector<int> out;
  if (text == nullptr) {
    for (int device = 0; device < devices; ++device) out.push_back(device);
    return out;
  }
  std::istringstream list(text);
  std::string name;
  while (std::getline(list, name, ',')) {
    const int device = device_named(name, devices);
    if (device < 0) break;
    if (std::find(out.begin(), out.end(), device) != out.end()) return {};
    out.push_back(device);
  }
  return out;
}

int machine_device(const std::vector<int>& visible, int ordinal) {
  const auto index = static_cast<size_t>(ordinal);
  return ordinal >= 0 && index < visible.size() ? visible[index] : ordinal;
}

int ordinal_of(const std::vector<int>& visible, int machine_device) {
  const auto found = std::find(visible.begin(), visible.end(), machine_device);
  return found == visible.end() ? -1 : static_cast<int>(found - visible.begin());
}

}  // namespace spillway::sim
