// driver_probe: measures on a real device what the allocator's design rests on, and prints it as JSON. The
// simulated device loads its "costs_ns" (SPILLWAY_SIM=costs:FILE). Every field and the claim it decides:
// docs/hardware-proof.md.
#include <fmt/core.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "bench/driver_probe/sections.h"

namespace spillway::probe {
namespace {

constexpr const char* kUsage =
    "usage: driver_probe [options]\n"
    "  --device N         which device; 0\n"
    "  --repeats N        rounds behind each median, 1 to 100000; 20\n"
    "  --copy-mib N       size of the pinned copies, 1 to 16384; 256\n"
    "  --max-mappings N   live mappings at which the search for the limit stops, 0 leaves it out; 600000\n"
    "  --output FILE      write there instead of to standard output\n"
    "  --help             this text\n";
constexpr const char* kAllowed = "--device, --repeats, --copy-mib, --max-mappings, --output, --help";

struct NumberOption {
  std::string_view name;
  int low;
  int high;
};
constexpr NumberOption kNumbers[] = {{"--device", 0, 1023},
                                     {"--repeats", 1, 100000},
                                     {"--copy-mib", 1, 16384},
                                     {"--max-mappings", 0, 10000000}};

Status set_number(const NumberOption& option, std::string_view text, Options& options) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < option.low || value > option.high) {
    return Status::invalid_argument(fmt::format("{} '{}': allowed is a number from {} to {}", option.name,
                                                text, option.low, option.high));
  }
  if (option.name == "--device") options.device = value;
  if (option.name == "--repeats") options.repeats = value;
  if (option.name == "--copy-mib") options.copy_bytes = static_cast<size_t>(value) << 20;
  if (option.name == "--max-mappings") options.max_mappings = value;
  return {};
}

// Fills options; what is left to do after it is nothing where help was asked for.
Status parse(int argc, char** argv, Options& options, bool& help) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--help") {
      help = true;
      return {};
    }
    const NumberOption* number = nullptr;
    for (const NumberOption& candidate : kNumbers) {
      if (candidate.name == name) number = &candidate;
    }
    if (number == nullptr && name != "--output") {
      return Status::invalid_argument(fmt::format("unknown argument '{}'; allowed: {}", name, kAllowed));
    }
    if (i + 1 == argc) return Status::invalid_argument(fmt::format("{} needs a value", name));
    const std::string_view value = argv[++i];
    if (number == nullptr) {
      options.output = value;
    } else if (Status status = set_number(*number, value, options); !status.ok()) {
      return status;
    }
  }
  return {};
}

template <typename Section>
Json attempt(Section&& section) {
  try {
    return section();
  } catch (const Failure& failure) {
    return Json{{"error", failure.what()}};
  }
}

Json measure(const Options& options) {
  Session session(options);
  Json report;
  report["schema_version"] = 1;
  report.update(describe(session));
  report["costs_ns"] = measure_costs(session);
  report["behind_work"] = attempt([&] { return measure_behind_work(session); });
  report["ranges"] = attempt([&] { return measure_ranges(session); });
  report["aliasing"] = attempt([&] { return check_aliasing(session); });
  report["answers"] = attempt([&] { return check_answers(session); });
  report["copies"] = attempt([&] { return measure_copies(session); });
  if (options.max_mappings > 0) {
    report["mapping_limit"] = attempt([&] { return find_mapping_limit(session); });
  }
  // Last: the one section that a driver may answer with a fault that ends the context.
  report["remap_to_host"] = attempt([&] { return check_remap(session); });
  return report;
}

int run(int argc, char** argv) {
  Options options;
  bool help = false;
  if (const Status status = parse(argc, argv, options, help); !status.ok()) {
    fmt::print(stderr, "error: {}\n", status.text());
    return 1;
  }
  if (help) {
    fmt::print("{}", kUsage);
    return 0;
  }
  // Opened first: a measurement of minutes must not end at a folder that does not exist.
  std::optional<std::ofstream> file;
  if (!options.output.empty()) {
    file.emplace(options.output);
    if (!*file) {
      fmt::print(stderr, "error: --output {}: {}\n", options.output, std::strerror(errno));
      return 1;
    }
  }
  const std::string text = measure(options).dump(2) + "\n";
  if (!file) return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() ? 0 : 1;
  *file << text << std::flush;
  if (*file) return 0;
  fmt::print(stderr, "error: --output {}: it could not be written\n", options.output);
  return 1;
}

}  // namespace
}  // namespace spillway::probe

int main(int argc, char** argv) {
  try {
    return spillway::probe::run(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "error: %s\n", failure.what());
    return 1;
  }
}
