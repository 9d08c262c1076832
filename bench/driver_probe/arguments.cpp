#include "bench/driver_probe/arguments.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <charconv>
#include <functional>

namespace spillway::probe {
namespace {

struct NumberOption {
  std::string_view name;
  int low;
  int high;
  int first;  // its value unless told
  const char* help;
  void (*set)(Options&, int);
};

constexpr NumberOption kNumbers[] = {
    {"--device", 0, 1023, 0, "which device", [](Options& o, int value) { o.device = value; }},
    {"--repeats", 1, 100000, 20, "rounds behind each median",
     [](Options& o, int value) { o.repeats = value; }},
    {"--copy-mib", 1, 16384, 256, "size of the pinned copies",
     [](Options& o, int value) { o.copy_bytes = static_cast<size_t>(value) << 20; }},
    {"--trim-mib", 1, 1 << 20, 64 << 10, "how much the section trim gives back at once",
     [](Options& o, int value) { o.trim_bytes = static_cast<size_t>(value) << 20; }},
    {"--mapped-gib", 1, 512, 32, "how much address space the section page_tables maps",
     [](Options& o, int value) { o.mapped_bytes = static_cast<size_t>(value) << 30; }},
    {"--section-seconds", 1, 3600, 150, "after which a section is ended",
     [](Options& o, int value) { o.section_seconds = value; }},
    {"--total-seconds", 1, 86400, 86400, "after which no section is begun, and the one that runs is ended",
     [](Options& o, int value) { o.total_seconds = value; }},
    {"--max-mappings", 0, 10000000, 0,
     "live mappings at which the section mapping_limit stops, 0 leaves it out",
     [](Options& o, int value) { o.max_mappings = value; }},
};

struct TextOption {
  std::string_view name;
  const char* value;
  const char* help;
  void (*set)(Options&, std::string_view);
};

void set_sections(Options& options, std::string_view text) {
  options.sections.clear();
  while (true) {
    const size_t comma = text.find(',');
    options.sections.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return;
    text.remove_prefix(comma + 1);
  }
}

constexpr TextOption kTexts[] = {
    {"--sections", "A,B", "only these; without it all but mapping_limit", set_sections},
    {"--output", "FILE", "written after each section; without it standard output at the end",
     [](Options& o, std::string_view text) { o.output = text; }},
    {"--alone", "NAME", "one section, or SECTION.QUESTION, in this process",
     [](Options& o, std::string_view text) { o.alone = text; }},
};

Status set_number(const NumberOption& option, std::string_view text, Options& options) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < option.low || value > option.high) {
    return Status::invalid_argument(fmt::format("{} '{}': allowed is a number from {} to {}", option.name,
                                                text, option.low, option.high));
  }
  option.set(options, value);
  return {};
}

template <typename Option, size_t count>
const Option* named(const Option (&options)[count], std::string_view name) {
  for (const Option& option : options) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

std::string allowed() {
  std::string names;
  for (const NumberOption& option : kNumbers) names += fmt::format("{}, ", option.name);
  for (const TextOption& option : kTexts) names += fmt::format("{}, ", option.name);
  return names + "--help";
}

}  // namespace

std::string usage() {
  std::string text = "usage: driver_probe [options]\n";
  for (const NumberOption& option : kNumbers) {
    text += fmt::format("  {:<20}{}, {} to {}; {}\n", fmt::format("{} N", option.name), option.help,
                        option.low, option.high, option.first);
  }
  for (const TextOption& option : kTexts) {
    text += fmt::format("  {:<20}{}\n", fmt::format("{} {}", option.name, option.value), option.help);
  }
  return text + fmt::format("  {:<20}this text\n", "--help");
}

Status parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--help") {
      options.help = true;
      return {};
    }
    const NumberOption* number = named(kNumbers, name);
    const TextOption* text = named(kTexts, name);
    if (number == nullptr && text == nullptr) {
      return Status::invalid_argument(fmt::format("unknown argument '{}'; allowed: {}", name, allowed()));
    }
    if (i + 1 == argc) return Status::invalid_argument(fmt::format("{} needs a value", name));
    const std::string_view value = argv[++i];
    if (text != nullptr) {
      text->set(options, value);
    } else if (Status status = set_number(*number, value, options); !status.ok()) {
      return status;
    }
  }
  return {};
}

std::vector<std::string> measuring_arguments(const Options& options) {
  return {"--device",       std::to_string(options.device),
          "--repeats",      std::to_string(options.repeats),
          "--copy-mib",     std::to_string(options.copy_bytes >> 20),
          "--trim-mib",     std::to_string(options.trim_bytes >> 20),
          "--mapped-gib",   std::to_string(options.mapped_bytes >> 30),
          "--max-mappings", std::to_string(options.max_mappings)};
}

}  // namespace spillway::probe
