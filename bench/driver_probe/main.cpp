// driver_probe: measures on a real device what the allocator's design rests on, and prints it as JSON. The
// simulated device loads its "costs_ns" (SPILLWAY_SIM=costs:FILE). Every field and the claim it decides:
// docs/hardware-proof.md.
//
// Each section is measured in a process of its own and written before the next one begins, so that neither a
// crash nor a driver that never answers costs more than its section.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "bench/driver_probe/child.h"
#include "bench/driver_probe/sections.h"
#include "stats/whole_file.h"

namespace spillway::probe {
namespace {

constexpr int kMostMappings = 600000;
constexpr std::string_view kMappingLimit = "mapping_limit";

bool is_chosen(const Options& options, std::string_view name) {
  const auto& names = options.sections;
  if (names.empty()) return name != kMappingLimit || options.max_mappings > 0;
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Errors: invalid argument, with the names that are allowed.
Status check_names(const Options& options) {
  std::vector<std::string_view> known;
  for (const Section& section : all_sections()) known.push_back(section.name);
  for (const std::string& name : options.sections) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return Status::invalid_argument(
          fmt::format("unknown section '{}'; allowed: {}", name, fmt::join(known, ", ")));
    }
  }
  return {};
}

using Clock = std::chrono::steady_clock;

// The same, with no more seconds for a section than are left of all.
Options within(Options options, Clock::time_point end) {
  const auto left = std::chrono::duration_cast<std::chrono::seconds>(end - Clock::now()).count();
  options.section_seconds = static_cast<int>(std::clamp<int64_t>(left, 0, options.section_seconds));
  return options;
}

Json measure(const Options& asked, Clock::time_point end, const Section& section) {
  const auto measure_alone = [&](const std::string& name) {
    return probe::measure_alone(within(asked, end), name);
  };
  if (section.measure != nullptr) return measure_alone(std::string(section.name));
  Json answers;
  for (const std::string_view question : section.questions) {
    answers[std::string(question)] = measure_alone(fmt::format("{}.{}", section.name, question));
  }
  return answers;
}

Status write(const Options& options, const Json& report) {
  if (options.output.empty()) return {};
  return write_whole_file(options.output, report.dump(2) + "\n");
}

Status measure_all(const Options& options) {
  const auto end = Clock::now() + std::chrono::seconds(options.total_seconds);
  Json report;
  report["schema_version"] = 1;
  report["complete"] = false;
  // Before anything is measured: minutes must not end at a folder that does not exist.
  if (Status status = write(options, report); !status.ok()) return status;
  report.update(describe(Session(options)));
  for (const Section& section : all_sections()) {
    if (!is_chosen(options, section.name)) continue;
    report[std::string(section.name)] = measure(options, end, section);
    if (Status status = write(options, report); !status.ok()) return status;
  }
  report["complete"] = true;
  if (options.output.empty()) fmt::print("{}\n", report.dump(2));
  return write(options, report);
}

int fail(const std::string& text, int code) {
  fmt::print(stderr, "error: {}\n", text);
  return code;
}

int run(int argc, char** argv) {
  Options options;
  if (const Status status = parse(argc, argv, options); !status.ok()) return fail(status.text(), 1);
  if (options.help) {
    fmt::print("{}", usage());
    return 0;
  }
  if (const Status status = check_names(options); !status.ok()) return fail(status.text(), 2);
  // A kernel that is loaded when it is first launched waits for those that run, which may wait for it.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  if (!options.sections.empty() && is_chosen(options, kMappingLimit) && options.max_mappings == 0) {
    options.max_mappings = kMostMappings;
  }
  if (!options.alone.empty()) {
    fmt::print("{}\n", measure_here(options, options.alone).dump());
    return 0;
  }
  const Status status = measure_all(options);
  return status.ok() ? 0 : fail(status.text(), 1);
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
