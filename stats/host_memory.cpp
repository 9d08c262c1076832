#include "stats/host_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

namespace spillway {
namespace {

std::optional<uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (!(file >> number)) return std::nullopt;  // "max" is no limit
  return number;
}

// Reads the value of a line "name value" or "name: value kB".
uint64_t value_in(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    uint64_t value = 0;
    if (words >> word >> value && word == name) return value;
  }
  return 0;
}

// A control group's files of limit and use, and its name in memory.stat for pages that can be dropped.
struct GroupFiles {
  const char* limit;
  const char* used;
  const char* droppable;
};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", "inactive_file"};
constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};

// The group and those around it: the tightest counts.
void apply_groups(HostMemory& memory, const std::string& mount, std::string group, const GroupFiles& files) {
  for (;;) {
    const std::string folder = mount + group + "/";
    if (const std::optional<uint64_t> limit = number_in(folder + files.limit); limit.has_value()) {
      const uint64_t used = number_in(folder + files.used).value_or(0);
      const uint64_t held = used - std::min(used, value_in(folder + "memory.stat", files.droppable));
      memory.total_bytes = std::min(memory.total_bytes, *limit);
      memory.available_bytes = std::min(memory.available_bytes, *limit - std::min(*limit, held));
    }
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos) return;
    group.resize(slash);
  }
}

}  // namespace

HostMemory read_host_memory(const std::string& root) {
  constexpr uint64_t kKilobyte = 1024;
  const std::string meminfo = root + "/proc/meminfo";
  HostMemory memory;
  if (const uint64_t kilobytes = value_in(meminfo, "MemTotal:"); kilobytes > 0) {
    memory.total_bytes = kilobytes * kKilobyte;
    memory.available_bytes = value_in(meminfo, "MemAvailable:") * kKilobyte;
  }
  const std::string mount = root + "/sys/fs/cgroup";
  std::ifstream groups(root + "/proc/self/cgroup");
  // Lines are "0::/path" for version 2, "5:memory,cpu:/path" for version 1.
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string group = line.substr(second + 1);
    if (group == "/") group.clear();
    if (controllers == ",,") apply_groups(memory, mount, group, kVersion2);
    if (controllers.find(",memory,") != std::string::npos) {
      apply_groups(memory, mount + "/memory", group, kVersion1);
    }
  }
  return memory;
}

}  // namespace spillway
