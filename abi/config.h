// The configuration: a value for each row of options.inc, read from text.
//
// Text is "option:value" entries separated by commas or line ends; in files, "#" begins a comment. Sizes are
// written 1048576, 64KiB, 20MiB, 1.5GiB (KB, MB, GB and K, M, G mean the same), shares 80%, flags on/off,
// true/false, 1/0. Plain values without locks; whoever shares a Config guards it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "driver/status.h"
#include "offload/overflow_memory.h"
#include "offload/spill/codec.h"

namespace spillway {

// Bytes, or a share of a device's memory.
struct MemorySize {
  uint64_t bytes = 0;
  double percent = -1;  // negative: `bytes` counts

  uint64_t of(uint64_t total_bytes) const {
    return percent < 0 ? bytes : static_cast<uint64_t>(static_cast<double>(total_bytes) * percent / 100);
  }
};
// Auto: so much stays free that what is no memory of programs (page tables, modules that are loaded when they
// are first used, workspaces, graphs) finds room; a fixed reserve counts what others hold already.
struct ReserveSize : MemorySize {
  bool is_auto = false;

  uint64_t of(uint64_t total_bytes) const { return is_auto ? 0 : MemorySize::of(total_bytes); }
  uint64_t headroom_of(uint64_t total_bytes) const;
};
struct LimitSize : MemorySize {
  static constexpr uint64_t kUnlimited = UINT64_MAX;
};
struct Share {
  double percent = 0;  // 0 to 100
};
struct SmallSize {
  static constexpr uint64_t kSmallest = 512;
  static constexpr uint64_t kLargest = 16 << 10;
  uint64_t bytes = 0;
};
struct BlockSize {
  static constexpr uint64_t kSmallest = 64 << 10;
  static constexpr uint64_t kLargest = 16 << 20;
  uint64_t bytes = 0;
};
// How much of what drivers were found to do right is relied on: all, less, or nothing of virtual memory.
enum class Profile : uint8_t { kOrdinary, kCareful, kPlain };
enum class Backend : uint8_t { kVmm, kMalloc };
enum class Debug : uint8_t { kOff, kGuard };
enum class Overflow : uint8_t { kOff, kHost };
enum class DumpStacks : uint8_t { kAuto, kOff, kOn };
enum class TraceStacks : uint8_t { kOff, kPython, kCpp, kAll };
enum class PreloadFree : uint8_t { kAsync, kSync };
enum class IpcPolicy : uint8_t { kAuto, kPlain, kRefuse };
enum class IoEngineKind : uint8_t { kAuto, kThreads };
enum class DiskPriority : uint8_t { kNormal, kIdle };
// Says whether the disk's settings are those that were found best for it: never, where they are known, or
// always, and then they are looked for.
enum class Tuning : uint8_t { kOff, kKept, kAuto };
using Path = std::string;
struct Count {
  static constexpr uint32_t kMost = 4096;
  uint32_t value = 0;
};
using Flag = bool;
struct SignalName {
  int number = 0;  // 0: none
  bool operator==(const SignalName&) const = default;
};
struct Interval {
  static constexpr std::chrono::milliseconds kShortest{100};
  static constexpr std::chrono::milliseconds kLongest{std::chrono::hours{24}};
  std::chrono::milliseconds time{0};  // 0: never
};

struct Config {
  Config();  // the defaults

#define SPW_OPTION(name, Type, fallback, allowed, since, run_time, help) Type name{};
#include "abi/options.inc"
#undef SPW_OPTION

  // Applies the entries that are right, and reports the others, each as one line that begins with `source`;
  // of the right ones those that are beyond the machine (machine_limits.h).
  std::vector<std::string> apply(std::string_view text, const std::string& source);

  bool is_careful() const {
    return profile != Profile::kOrdinary;
  }
  // Returns what stays free on a device of that size, see ReserveSize.
  uint64_t headroom_of(uint64_t total_bytes) const {
    return reserve.headroom_of(total_bytes) * (is_careful() ? 2 : 1);
  }

  // Errors: config (no such option).
  Result<std::string> value(std::string_view name) const;
  // Every option and its value, in table order.
  std::vector<std::pair<std::string, std::string>> values() const;

 private:
  // Sets what no text named to what the profile wants.
  void follow_profile();

  std::set<std::string, std::less<>> named_;  // by the texts that were applied
};

// The options that differ and cannot change once memory is in use, by name.
std::vector<std::string> fixed_differences(const Config& before, const Config& after);

// Reads SPILLWAY_CONF_FILE, then SPILLWAY_CONF over it; complaints are added to `complaints`.
Config config_from_environment(std::vector<std::string>& complaints);

// docs/configuration.md.
const std::string& configuration_page();

}  // namespace spillway
