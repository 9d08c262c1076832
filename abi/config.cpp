#include "abi/config.h"

#include <fmt/format.h>
#include <signal.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include "abi/machine_limits.h"

namespace spillway {
namespace {

template <typename Type>
struct Word {
  std::string_view text;
  Type value;
};

// The words of each type that is one of a few. What is read, printed and called allowed comes from here.
template <typename Type>
constexpr std::nullptr_t kWords = nullptr;
template <>
constexpr auto kWords<Flag> = std::to_array<Word<Flag>>({{"on", true}, {"off", false}});
template <>
constexpr auto kWords<Profile> = std::to_array<Word<Profile>>({{"ordinary", Profile::kOrdinary},
                                                               {"careful", Profile::kCareful},
                                                               {"plain", Profile::kPlain}});
template <>
constexpr auto kWords<Backend> = std::to_array<Word<Backend>>({{"vmm", Backend::kVmm},
                                                               {"malloc", Backend::kMalloc}});
template <>
constexpr auto kWords<Debug> = std::to_array<Word<Debug>>({{"off", Debug::kOff}, {"guard", Debug::kGuard}});
template <>
constexpr auto kWords<Overflow> = std::to_array<Word<Overflow>>({{"off", Overflow::kOff},
                                                                 {"host", Overflow::kHost}});
template <>
constexpr auto kWords<OverflowMemory> = std::to_array<Word<OverflowMemory>>(
    {{"auto", OverflowMemory::kAuto}, {"vmm", OverflowMemory::kVmm}, {"pinned", OverflowMemory::kPinned}});
template <>
constexpr auto kWords<DumpStacks> = std::to_array<Word<DumpStacks>>({{"auto", DumpStacks::kAuto},
                                                                     {"off", DumpStacks::kOff},
                                                                     {"on", DumpStacks::kOn}});
template <>
constexpr auto kWords<TraceStacks> = std::to_array<Word<TraceStacks>>({{"off", TraceStacks::kOff},
                                                                       {"python", TraceStacks::kPython},
                                                                       {"cpp", TraceStacks::kCpp},
                                                                       {"all", TraceStacks::kAll}});
template <>
constexpr auto kWords<PreloadFree> = std::to_array<Word<PreloadFree>>({{"async", PreloadFree::kAsync},
                                                                       {"sync", PreloadFree::kSync}});
template <>
constexpr auto kWords<IpcPolicy> = std::to_array<Word<IpcPolicy>>({{"auto", IpcPolicy::kAuto},
                                                                   {"plain", IpcPolicy::kPlain},
                                                                   {"refuse", IpcPolicy::kRefuse}});
template <>
constexpr auto kWords<IoEngineKind> =
    std::to_array<Word<IoEngineKind>>({{"auto", IoEngineKind::kAuto}, {"threads", IoEngineKind::kThreads}});
template <>
constexpr auto kWords<DiskPriority> = std::to_array<Word<DiskPriority>>({{"normal", DiskPriority::kNormal},
                                                                         {"idle", DiskPriority::kIdle}});
template <>
constexpr auto kWords<Tuning> =
    std::to_array<Word<Tuning>>({{"off", Tuning::kOff}, {"kept", Tuning::kKept}, {"auto", Tuning::kAuto}});
template <>
constexpr auto kWords<Codec> =
    std::to_array<Word<Codec>>({{"none", Codec::kNone}, {"lz4", Codec::kLz4}, {"zstd", Codec::kZstd}});
template <>
constexpr auto kWords<SignalName> =
    std::to_array<Word<SignalName>>({{"SIGUSR1", {SIGUSR1}}, {"SIGUSR2", {SIGUSR2}}, {"off", {0}}});

template <typename Type>
concept OneOfWords = requires {
  kWords<Type>.size();
};

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

// A decimal number without sign or exponent, and what follows it.
std::optional<double> leading_number(std::string_view text, std::string_view& rest) {
  const size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + end, value);
  if (end == 0 || error != std::errc() || stop != text.data() + end) return std::nullopt;
  rest = trim(text.substr(end));
  return value;
}

std::optional<uint64_t> parse_bytes(std::string_view text) {
  std::string_view unit;
  const std::optional<double> number = leading_number(text, unit);
  if (!number) return std::nullopt;
  double scale = 1;
  if (!unit.empty() && unit != "B") {
    constexpr std::string_view kPrefixes = "KMGT";
    const size_t prefix = kPrefixes.find(unit.front());
    const std::string_view suffix = unit.substr(1);
    if (prefix == std::string_view::npos || (!suffix.empty() && suffix != "iB" && suffix != "B")) {
      return std::nullopt;
    }
    scale = std::pow(1024.0, static_cast<double>(prefix + 1));
  }
  const double bytes = *number * scale;
  if (bytes > std::pow(2.0, 60)) return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

bool parse(std::string_view text, MemorySize& out) {
  std::string_view rest;
  const std::optional<double> number = leading_number(text, rest);
  if (number && rest == "%") {
    if (*number > 100) return false;
    out.percent = *number;
    return true;
  }
  const std::optional<uint64_t> bytes = parse_bytes(text);
  if (!bytes) return false;
  out = MemorySize{*bytes, -1};
  return true;
}

bool parse(std::string_view text, ReserveSize& out) {
  const bool is_auto = text == "auto";
  if (!is_auto && !parse(text, static_cast<MemorySize&>(out))) return false;
  out.is_auto = is_auto;
  return true;
}

bool parse(std::string_view text, Share& out) {
  std::string_view rest;
  const std::optional<double> number = leading_number(text, rest);
  if (!number || rest != "%" || *number > 100) return false;
  out.percent = *number;
  return true;
}

bool parse(std::string_view text, LimitSize& out) {
  if (text != "unlimited") return parse(text, static_cast<MemorySize&>(out));
  out.bytes = LimitSize::kUnlimited;
  out.percent = -1;
  return true;
}

template <typename Size>
bool parse_within(std::string_view text, Size& out) {
  const std::optional<uint64_t> bytes = parse_bytes(text);
  if (!bytes || *bytes < Size::kSmallest || *bytes > Size::kLargest) return false;
  out.bytes = *bytes;
  return true;
}
bool parse(std::string_view text, SmallSize& out) {
  return parse_within(text, out);
}
bool parse(std::string_view text, BlockSize& out) {
  return parse_within(text, out);
}

template <OneOfWords Type>
bool parse(std::string_view text, Type& out) {
  for (const Word<Type>& word : kWords<Type>) {
    if (text != word.text) continue;
    out = word.value;
    return true;
  }
  return false;
}

bool parse(std::string_view text, Flag& out) {
  const bool on = text == "true" || text == "1";
  if (!on && text != "false" && text != "0") return parse<Flag>(text, out);
  out = on;
  return true;
}

bool parse(std::string_view text, Path& out) {
  out = text;
  return true;
}

bool parse(std::string_view text, Count& out) {
  uint32_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || value == 0 || value > Count::kMost)
    return false;
  out.value = value;
  return true;
}

struct TimeUnit {
  std::string_view name;
  std::chrono::milliseconds time;
};
// The largest first: what is printed takes the first that fits.
constexpr TimeUnit kTimeUnits[] = {{"h", std::chrono::hours{1}},
                                   {"min", std::chrono::minutes{1}},
                                   {"s", std::chrono::seconds{1}},
                                   {"ms", std::chrono::milliseconds{1}}};

bool parse(std::string_view text, Interval& out) {
  if (text == "off") {
    out.time = {};
    return true;
  }
  std::string_view unit;
  const std::optional<double> number = leading_number(text, unit);
  for (const TimeUnit& known : kTimeUnits) {
    if (!number || unit != known.name) continue;
    const double ms = *number * static_cast<double>(known.time.count());
    if (ms < static_cast<double>(Interval::kShortest.count()) ||
        ms > static_cast<double>(Interval::kLongest.count()))
      return false;
    out.time = std::chrono::milliseconds(static_cast<int64_t>(ms));
    return true;
  }
  return false;
}

std::string print_bytes(uint64_t bytes) {
  if (bytes == 0) return "0";
  const char* const units[] = {"", "KiB", "MiB", "GiB"};
  size_t unit = 0;
  while (unit + 1 < std::size(units) && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{}{}", bytes, units[unit]);
}

std::string print(const MemorySize& value) {
  return value.percent < 0 ? print_bytes(value.bytes) : fmt::format("{}%", value.percent);
}
std::string print(const LimitSize& value) {
  const bool unlimited = value.percent < 0 && value.bytes == LimitSize::kUnlimited;
  return unlimited ? "unlimited" : print(static_cast<const MemorySize&>(value));
}
std::string print(const ReserveSize& value) {
  return value.is_auto ? "auto" : print(static_cast<const MemorySize&>(value));
}
std::string print(const Share& value) {
  return fmt::format("{}%", value.percent);
}
std::string print(const SmallSize& value) {
  return print_bytes(value.bytes);
}
std::string print(const BlockSize& value) {
  return print_bytes(value.bytes);
}
std::string print(const Path& value) {
  return value;
}
std::string print(const Count& value) {
  return fmt::format("{}", value.value);
}
std::string print(const Interval& value) {
  if (value.time.count() == 0) return "off";
  for (const TimeUnit& unit : kTimeUnits) {
    if (value.time % unit.time == std::chrono::milliseconds{0}) {
      return fmt::format("{}{}", value.time / unit.time, unit.name);
    }
  }
  return "off";
}

template <OneOfWords Type>
std::string print(const Type& value) {
  for (const Word<Type>& word : kWords<Type>) {
    if (value == word.value) return std::string(word.text);
  }
  return "";
}

// Returns what a row of options.inc allows: its own text, or the words of its type.
template <typename Type>
std::string allowed_of(std::string_view text) {
  return std::string(text);
}
template <OneOfWords Type>
std::string allowed_of(std::string_view) {
  std::string out;
  for (const Word<Type>& word : kWords<Type>) {
    const bool is_last = &word == &kWords<Type>.back();
    if (!out.empty()) out += is_last ? " or " : ", ";
    out += word.text;
  }
  return out;
}

#define SPW_OPTION(name, Type, fallback, allowed, since, run_time, help) \
  static_assert(OneOfWords<Type> == std::string_view(allowed).empty(), #name);
#include "abi/options.inc"
#undef SPW_OPTION

std::string names() {
  std::string out;
#define SPW_OPTION(name, Type, fallback, allowed, since, run_time, help) \
  out += out.empty() ? #name : ", " #name;
#include "abi/options.inc"
#undef SPW_OPTION
  return out;
}

// Applies "option:value"; a complaint if that cannot be done.
std::optional<std::string> apply_entry(Config& config, std::string_view entry) {
  const size_t colon = entry.find(':');
  if (colon == std::string_view::npos) {
    return fmt::format("'{}' is not of the form option:value", entry);
  }
  const std::string_view name = trim(entry.substr(0, colon));
  const std::string_view value = trim(entry.substr(colon + 1));
#define SPW_OPTION(option, Type, fallback, allowed, since, run_time, help)               \
  if (name == #option) {                                                                 \
    if (parse(value, config.option)) return std::nullopt;                                \
    return fmt::format("{}: '{}' is not allowed; allowed: {}; it stays {}", name, value, \
                       allowed_of<Type>(allowed), print(config.option));                 \
  }
#include "abi/options.inc"
#undef SPW_OPTION
  return fmt::format("unknown option '{}'; allowed: {}", name, names());
}

}  // namespace

uint64_t ReserveSize::headroom_of(uint64_t total_bytes) const {
  constexpr uint64_t kSmallDevice = uint64_t{16} << 30;
  constexpr uint64_t kShare = 64;
  constexpr uint64_t kMost = uint64_t{512} << 20;
  // Devices are sold by round figures, and have a little less.
  const bool is_large = total_bytes >= kSmallDevice - kSmallDevice / 16;
  return is_auto && is_large ? std::clamp(total_bytes / kShare, kMost / 2, kMost) : 0;
}

Config::Config() {
#define SPW_OPTION(name, Type, fallback, allowed, since, run_time, help) parse(fallback, name);
#include "abi/options.inc"
#undef SPW_OPTION
}

void Config::follow_profile() {
  Config wanted;
  if (profile == Profile::kCareful) wanted.share_edges = false;
  if (profile == Profile::kPlain) wanted.backend = Backend::kMalloc;
#define SPW_OPTION(name, Type, fallback, allowed, since, run_time, help) \
  if (!named_.contains(#name)) name = wanted.name;
#include "abi/options.inc"
#undef SPW_OPTION
}

std::vector<std::string> Config::apply(std::string_view text, const std::string& source) {
  std::vector<std::string> complaints;
  const Config before = *this;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(",\n"), text.size());
    const std::string_view entry = trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (entry.empty()) continue;
    if (auto complaint = apply_entry(*this, entry)) {
      complaints.push_back(source + ": " + *complaint);
    } else {
      named_.emplace(trim(entry.substr(0, entry.find(':'))));
    }
  }
  follow_profile();
  for (const std::string& complaint : refuse_beyond_machine(before, *this))
    complaints.push_back(fmt::format("{}: {}", source, complaint));
  return complaints;
}

Result<std::string> Config::value(std::string_view name) const {
#define SPW_OPTION(option, Type, fallback, allowed, since, run_time, help) \
  if (name == #option) return print(option);
#include "abi/options.inc"
#undef SPW_OPTION
  return Status::config(fmt::format("unknown option '{}'; allowed: {}", name, names()));
}

std::vector<std::pair<std::string, std::string>> Config::values() const {
  std::vector<std::pair<std::string, std::string>> out;
#define SPW_OPTION(name, Type, fallback, allowed, since, run_time, help) out.emplace_back(#name, print(name));
#include "abi/options.inc"
#undef SPW_OPTION
  return out;
}

std::vector<std::string> fixed_differences(const Config& before, const Config& after) {
  std::vector<std::string> out;
#define SPW_OPTION(name, Type, fallback, allowed, since, run_time, help) \
  if (!(run_time) && print(before.name) != print(after.name)) out.emplace_back(#name);
#include "abi/options.inc"
#undef SPW_OPTION
  return out;
}

Config config_from_environment(std::vector<std::string>& complaints) {
  Config config;
  const auto apply = [&](std::string_view text, const std::string& source) {
    for (std::string& complaint : config.apply(text, source)) complaints.push_back(std::move(complaint));
  };
  if (const char* path = std::getenv("SPILLWAY_CONF_FILE"); path != nullptr && *path != '\0') {
    std::ifstream file(path);
    std::string text;
    for (std::string line; std::getline(file, line);) text += line.substr(0, line.find('#')) + "\n";
    if (!file.eof()) {
      complaints.push_back(fmt::format("SPILLWAY_CONF_FILE: '{}' cannot be read; it must name a file", path));
    } else {
      apply(text, path);
    }
  }
  if (const char* text = std::getenv("SPILLWAY_CONF"); text != nullptr) apply(text, "SPILLWAY_CONF");
  return config;
}

const std::string& configuration_page() {
  static const std::string kPage = [] {
    std::string page =
        "# Configuration\n\n"
        "Options are read from the file that `SPILLWAY_CONF_FILE` names, then from `SPILLWAY_CONF`, then set "
        "by `spw_conf_set`; the later\n"
        "wins. They are written `option:value`, separated by commas or, in a file, line ends (`#` begins a "
        "comment):\n\n"
        "    SPILLWAY_CONF=\"limit:90%,reserve:2GiB\"\n\n"
        "Sizes are bytes or take `KiB`, `MiB`, `GiB`, `TiB`; a share of the device's memory is written "
        "`80%`; on may be written `true` or\n"
        "`1`, off `false` or `0`. A mistake costs one line on stderr and leaves the option as it was, unless "
        "`strict:on`. A limit that is\n"
        "larger than the machine is one.\n\n"
        "| option | allowed | default | since | changeable later | what it does |\n"
        "|---|---|---|---|---|---|\n";
#define SPW_OPTION(name, Type, fallback, allowed, since, run_time, help)                                   \
  page += fmt::format("| `{}` | {} | `{}` | {} | {} | {} |\n", #name, allowed_of<Type>(allowed), fallback, \
                      since, (run_time) ? "yes" : "no", help);
#include "abi/options.inc"
#undef SPW_OPTION
    page +=
        "\n*Changeable later*: by `spw_conf_set` at any time. The others can be set until a device is first "
        "used.\n\n"
        "## Environment variables\n\n"
        "| variable | what it does |\n"
        "|---|---|\n"
        "| `SPILLWAY_CONF` | options, as above |\n"
        "| `SPILLWAY_CONF_FILE` | a file of options |\n"
        "| `SPILLWAY_STATS` | where to write dumps, when the program ends and as the options say; `%p` "
        "becomes the process id, `%r` the rank (`RANK`), `%d` the device, `%t` the time in seconds; the "
        "ending "
        "says the format: `.json`, `.prom`, `.pickle`; see [dumps](dumps.md) |\n"
        "| `SPILLWAY_DISABLE` | `1`: `spillway.install()`, `spillway run` and the preload library change "
        "nothing, and programs keep their own allocators |\n"
        "| `SPILLWAY_CACHE` | the folder of what is compiled on first use; unless set, `spillway` in "
        "`XDG_CACHE_HOME` or `~/.cache` |\n"
        "| `SPILLWAY_PYTHON` | the Python whose PyTorch `dryrun` and `trace-model` take where their "
        "command names none; unless set, `python3`. A command that pip installed takes its own |\n"
        "| `SPILLWAY_LIBCUDA` | the driver library to open instead of `libcuda.so.1` |\n"
        "| `SPILLWAY_LIBRARY` | the `libspillway.so` that Python and the preload library open instead of "
        "their own |\n"
        "| `SPILLWAY_COMMAND` | the command that the pytest plugin and the magic for Jupyter start "
        "instead of the installed one |\n"
        "| `SPILLWAY_PACKAGE`, `SPILLWAY_PRELOAD`, `SPILLWAY_SIM_LIBRARIES` | the folders of the Python "
        "package, the preload library and the simulated ones, where the command does not find them |\n"
        "| `SPILLWAY_CUDA_INCLUDE` | the folder of `cuda_runtime_api.h`, for what is compiled on first "
        "use |\n"
        "\n"
        "Others that begin with `SPILLWAY_` are set by the command for the processes that it starts, or "
        "are for the tests.\n";
    return page;
  }();
  return kPage;
}

}  // namespace spillway
