#include "cli/help/pages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace spillway {

const HelpCommand* HelpPages::find(const std::string& name) const {
  const auto found = std::find_if(commands.begin(), commands.end(),
                                  [&](const HelpCommand& command) { return command.name == name; });
  return found == commands.end() ? nullptr : &*found;
}

Completes completes(const HelpOption& option) {
  constexpr std::array<std::string_view, 8> kFiles = {"FILE", "TRACE",  "DUMP",  "IN",
                                                      "OUT",  "BEFORE", "AFTER", "PYTHON"};
  if (std::find(kFiles.begin(), kFiles.end(), option.value) != kFiles.end()) return Completes::kFiles;
  if (option.value == "FOLDER") return Completes::kFolders;
  return option.value == "COMMAND" ? Completes::kCommands : Completes::kNothing;
}

const std::vector<std::string>& words_for(const HelpOption& option) {
  return option.choices.empty() ? option.offered : option.choices;
}

std::string usage(const HelpCommand& command) {
  std::string out = "spillway " + command.name;
  bool has_options = false;
  for (const HelpOption& option : command.options) {
    if (option.is_positional) continue;
    if (option.is_required) {
      out += fmt::format(" {} {}", option.names.back(), option.value);
    } else {
      has_options = true;
    }
  }
  if (has_options) out += " [OPTIONS]";
  for (const HelpOption& option : command.options) {
    if (!option.is_positional) continue;
    const std::string name = option.names.front() + (option.is_repeatable ? "..." : "");
    out += option.is_required ? " " + name : " [" + name + "]";
  }
  return command.runs_a_program ? out + " -- COMMAND [ARGUMENT...]" : out;
}

std::string heading(const HelpOption& option) {
  constexpr size_t kMostChoices = 36;  // in letters
  std::string names = fmt::format("{}", fmt::join(option.names, ", "));
  if (option.is_positional) return option.is_repeatable ? names + "..." : names;
  if (option.value.empty()) return names;
  const std::string choices = fmt::format("{}", fmt::join(option.choices, "|"));
  return names + " " + (choices.empty() || choices.size() > kMostChoices ? option.value : choices);
}

}  // namespace spillway
