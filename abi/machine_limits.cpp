#include "abi/machine_limits.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include "stats/host_memory.h"

namespace spillway {
namespace {

template <typename Size>
struct Named {
  const char* name;
  Size Config::*member;
};

constexpr Named<MemorySize> kOfTheHost[] = {{"pinned_limit", &Config::pinned_limit},
                                            {"pinned_ahead", &Config::pinned_ahead},
                                            {"overflow_limit", &Config::overflow_limit}};
constexpr Named<LimitSize> kOfADevice[] = {{"limit", &Config::limit}, {"soft_limit", &Config::soft_limit}};

std::string text_of(const Config& config, const char* name) {
  return config.value(name).value();
}

bool is_amount(const MemorySize& size) {
  return size.percent < 0 && size.bytes != LimitSize::kUnlimited;
}

bool is_beyond(const MemorySize& size, uint64_t total_bytes) {
  return is_amount(size) && size.bytes > total_bytes;
}

std::string complaint(const Config& config, const char* name, const std::string& owner,
                      uint64_t total_bytes) {
  constexpr double kGib = 1 << 30;
  return fmt::format("{}: {} is more than {} ({:.2f} GiB)", name, text_of(config, name), owner,
                     static_cast<double>(total_bytes) / kGib);
}

// Sets the option as it was before, unless that is too much now as well.
template <typename Size>
std::string refuse(const Config& before, Config& changed, const Named<Size>& option, const std::string& owner,
                   uint64_t total_bytes) {
  const std::string text = complaint(changed, option.name, owner, total_bytes);
  const Config defaults;
  const Size& old = before.*option.member;
  changed.*option.member = is_beyond(old, total_bytes) ? defaults.*option.member : old;
  return fmt::format("{}; it stays {}", text, text_of(changed, option.name));
}

}  // namespace

uint64_t file_system_bytes(const std::string& directory) {
  struct statvfs space {};
  if (statvfs(directory.c_str(), &space) != 0) return 0;
  return uint64_t{space.f_blocks} * space.f_frsize;
}

std::vector<std::string> refuse_beyond_machine(const Config& before, Config& changed) {
  std::vector<std::string> complaints;
  const auto differs = [&](const char* name) { return text_of(before, name) != text_of(changed, name); };
  for (const Named<MemorySize>& option : kOfTheHost) {
    if (!differs(option.name)) continue;
    const uint64_t total = read_host_memory().total_bytes;
    if (is_beyond(changed.*option.member, total))
      complaints.push_back(refuse(before, changed, option, "the host's memory", total));
  }
  constexpr Named<LimitSize> kOfTheDisk{"spill_limit", &Config::spill_limit};
  const bool is_bounded = !changed.spill_dir.empty() && is_amount(changed.spill_limit);
  if (is_bounded && (differs(kOfTheDisk.name) || differs("spill_dir"))) {
    const uint64_t total = file_system_bytes(changed.spill_dir);
    if (total > 0 && is_beyond(changed.spill_limit, total)) {
      const std::string owner = fmt::format("the file system of {} has", changed.spill_dir);
      complaints.push_back(refuse(before, changed, kOfTheDisk, owner, total));
    }
  }
  return complaints;
}

std::optional<std::string> beyond_devices(const Config& before, const Config& changed,
                                          const std::function<uint64_t()>& most_bytes) {
  for (const Named<LimitSize>& option : kOfADevice) {
    const bool differs = text_of(before, option.name) != text_of(changed, option.name);
    if (!differs || !is_amount(changed.*option.member)) continue;
    const uint64_t most = most_bytes();
    if (is_beyond(changed.*option.member, most))
      return complaint(changed, option.name, "any device has", most);
  }
  return std::nullopt;
}

}  // namespace spillway
