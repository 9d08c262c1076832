// Pages for man(1), in the macros of man(7).
#include <fmt/format.h>

#include <string_view>

#include "cli/help/pages.h"

namespace spillway {
namespace {

// Escapes what roff would take for a command: backslashes, dashes, and a point or quote at the start of a
// line.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char letter : text) {
    const bool begins_line = out.empty() || out.back() == '\n';
    if (letter == '\\') {
      out += "\\e";
    } else if (letter == '-') {
      out += "\\-";
    } else {
      if (begins_line && (letter == '.' || letter == '\'')) out += "\\&";
      out += letter;
    }
  }
  return out;
}

std::string top(const std::string& name, const std::string& version, const std::string& text,
                const std::string& synopsis) {
  return fmt::format(
      ".TH {} 1 \"\" \"Spillway {}\" \"Spillway\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.B {}\n.SH "
      "DESCRIPTION\n{}.\n",
      escaped(name), version, escaped(name), escaped(text), escaped(synopsis), escaped(text));
}

std::string section(std::string_view title) {
  return fmt::format(".SH {}\n", title);
}

std::string rows(const std::vector<HelpOption>& options) {
  std::string out;
  for (const HelpOption& option : options) {
    out += fmt::format(".TP\n.B {}\n{}{}\n", escaped(heading(option)), escaped(option.text),
                       option.is_required && !option.is_positional ? " (required)" : "");
    if (option.value.empty() || option.choices.empty()) continue;
    out += "One of";
    for (const std::string& choice : option.choices)
      out += fmt::format("{} {}", &choice == &option.choices.front() ? "" : ",", escaped(choice));
    out += ".\n";
  }
  return out;
}

std::string examples(const std::vector<HelpExample>& all) {
  std::string out = all.empty() ? "" : section("EXAMPLES");
  for (const HelpExample& example : all)
    out += fmt::format(".TP\n{}\n.nf\n.B {}\n.fi\n", escaped(example.text), escaped(example.command));
  return out;
}

std::string bottom(const std::string& also) {
  return section("EXIT STATUS") +
         ".TP\n.B 0\nYes, or done.\n.TP\n.B 1\nAn error in the input or the environment: one line on "
         "standard "
         "error.\n.TP\n.B 2\nThe answer is no: it does not fit, ran out of memory, or missed a bound.\n" +
         section("SEE ALSO") + ".BR " + also + " (1)\n";
}

}  // namespace

std::string man_page(const HelpPages& pages) {
  std::string out =
      top("spillway", pages.version, pages.text, "spillway COMMAND [OPTIONS]") + section("COMMANDS");
  for (const HelpCommand& command : pages.commands)
    out +=
        fmt::format(".TP\n.B {}\n{}\n", escaped("spillway-" + command.name + "(1)"), escaped(command.text));
  return out + section("OPTIONS") + rows(pages.options) + examples(pages.examples) +
         bottom(escaped("spillway-run"));
}

std::string man_page(const HelpPages& pages, const HelpCommand& command) {
  return top("spillway-" + command.name, pages.version, command.text, usage(command)) + section("OPTIONS") +
         rows(command.options) + examples(command.examples) + bottom("spillway");
}

}  // namespace spillway
