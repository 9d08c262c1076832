// Help as text: in groups, in columns, as wide as the terminal.
#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <string_view>

#include "cli/help/pages.h"

namespace spillway {
namespace {

constexpr size_t kOptionColumns = 26;
constexpr size_t kCommandColumns = 12;

// The text in lines of at most `columns`, all but the first indented.
std::string wrapped(const std::string& text, size_t indent, size_t columns) {
  std::istringstream words(text);
  std::string out;
  size_t used = indent;
  for (std::string word; words >> word;) {
    if (used > indent && used + 1 + word.size() > columns) {
      out += "\n" + std::string(indent, ' ');
      used = indent;
    } else if (used > indent) {
      out += ' ';
      ++used;
    }
    out += word;
    used += word.size();
  }
  return out;
}

// A name that is too long for its column stands on a line of its own.
std::string row(const std::string& name, size_t name_columns, const std::string& text, size_t columns) {
  const size_t begin = name_columns + 4;
  std::string out = "  " + name;
  out +=
      name.size() > name_columns ? "\n" + std::string(begin, ' ') : std::string(begin - 2 - name.size(), ' ');
  return out + wrapped(text, begin, columns) + "\n";
}

// Rows by group, in the order in which groups first come.
template <typename Row>
std::string grouped(const std::vector<Row>& rows, std::string (*text_of)(const Row&, size_t),
                    size_t columns) {
  std::vector<std::string> groups;
  for (const Row& each : rows) {
    if (std::find(groups.begin(), groups.end(), each.group) == groups.end()) groups.push_back(each.group);
  }
  std::string out;
  for (const std::string& group : groups) {
    out += "\n" + group + "\n";
    for (const Row& each : rows) {
      if (each.group == group) out += text_of(each, columns);
    }
  }
  return out;
}

std::string option_row(const HelpOption& option, size_t columns) {
  const bool is_needed = option.is_required && !option.is_positional;
  return row(heading(option), kOptionColumns, option.text + (is_needed ? " (required)" : ""), columns);
}

std::string command_row(const HelpCommand& command, size_t columns) {
  return row(command.name, kCommandColumns, command.text, columns);
}

std::string examples_text(const std::vector<HelpExample>& examples) {
  std::string out = examples.empty() ? "" : "\nExamples\n";
  for (const HelpExample& example : examples)
    out += fmt::format("  {}\n    {}\n", example.text, example.command);
  return out;
}

}  // namespace

std::string help_text(const HelpPages& pages, size_t columns) {
  return fmt::format(
             "spillway {}: {}\n\nusage: spillway COMMAND [OPTIONS]     (of each: spillway COMMAND --help)\n",
             pages.version, wrapped(pages.text, 0, columns)) +
         grouped(pages.commands, command_row, columns) + grouped(pages.options, option_row, columns) +
         examples_text(pages.examples) +
         "\nExit codes: 0 yes or done, 1 an error (one line on stderr), 2 no.\n";
}

std::string help_text(const HelpCommand& command, size_t columns) {
  return fmt::format("{}\n\nusage: {}\n", wrapped(command.text + ".", 0, columns), usage(command)) +
         grouped(command.options, option_row, columns) + examples_text(command.examples);
}

}  // namespace spillway
