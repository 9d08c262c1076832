// Tells shells of the command's words.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>

#include "cli/help/pages.h"

namespace spillway {
namespace {

std::vector<std::string> command_names(const HelpPages& pages) {
  std::vector<std::string> out;
  for (const HelpCommand& command : pages.commands) out.push_back(command.name);
  return out;
}

std::vector<std::string> option_names(const std::vector<HelpOption>& options) {
  std::vector<std::string> out;
  for (const HelpOption& option : options) {
    if (!option.is_positional) out.insert(out.end(), option.names.begin(), option.names.end());
  }
  return out;
}

// In single quotes, with the letters escaped by a backslash that the shell's own tables give a meaning.
std::string quoted(std::string_view text, std::string_view special, std::string_view quote) {
  std::string out = "'";
  for (const char letter : text) {
    if (letter == '\'') {
      out += quote;
    } else {
      if (special.find(letter) != std::string_view::npos) out += '\\';
      out += letter;
    }
  }
  return out + "'";
}

// ---- bash

// An answer for what follows `option`: none where files are completed anyway.
std::string bash_values(const HelpCommand& command, const HelpOption& option) {
  if (option.is_positional || option.value.empty()) return "";
  std::string patterns;
  for (const std::string& name : option.names)
    patterns += fmt::format("{}'{} {}'", patterns.empty() ? "" : "|", command.name, name);
  const std::vector<std::string>& known = words_for(option);
  const std::string words = known.empty() ? (completes(option) == Completes::kFolders ? "-d" : "")
                                          : fmt::format("-W '{}'", fmt::join(known, " "));
  const std::string reply =
      words.empty() ? "" : fmt::format(" COMPREPLY=($(compgen {} -- \"$word\"));", words);
  return fmt::format("    {}){} return ;;\n", patterns, reply);
}

}  // namespace

std::string bash_completion(const HelpPages& pages) {
  const auto reply = [](const std::vector<std::string>& words) {
    return fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$word\"))", fmt::join(words, " "));
  };
  std::vector<std::string> first = command_names(pages);
  for (const std::string& name : option_names(pages.options)) first.push_back(name);
  std::string out =
      "# bash completion of spillway; made by `spillway completion bash`\n_spillway() {\n"
      "  local word=\"${COMP_WORDS[COMP_CWORD]}\" before=\"${COMP_WORDS[COMP_CWORD - 1]}\" command= i\n"
      "  if [[ $word == '=' ]]; then word=; elif [[ $before == '=' ]]; then before=\"${COMP_WORDS[COMP_CWORD "
      "- 2]}\"; fi\n"
      "  COMPREPLY=()\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    if [[ ${COMP_WORDS[i]} == -- ]]; then\n"
      "      if declare -F _command_offset >/dev/null; then _command_offset $((i + 1)); fi\n"
      "      return\n"
      "    fi\n"
      "    [[ -z $command && ${COMP_WORDS[i]} != -* ]] && command=${COMP_WORDS[i]}\n"
      "  done\n";
  out += fmt::format("  if [[ -z $command ]]; then {}; return; fi\n  case \"$command $before\" in\n",
                     reply(first));
  for (const HelpCommand& command : pages.commands) {
    for (const HelpOption& option : command.options) out += bash_values(command, option);
  }
  out += "  esac\n  case \"$command\" in\n";
  for (const HelpCommand& command : pages.commands) {
    bool names_commands = false;
    std::vector<std::string> words;
    for (const HelpOption& option : command.options) {
      if (!option.is_positional) continue;
      names_commands = names_commands || completes(option) == Completes::kCommands;
      words.insert(words.end(), option.choices.begin(), option.choices.end());
    }
    if (names_commands) words = command_names(pages);
    out += fmt::format("    {})\n      if [[ $word == -* ]]; then {}", command.name,
                       reply(option_names(command.options)));
    out += words.empty() ? "; fi ;;\n" : fmt::format("; else {}; fi ;;\n", reply(words));
  }
  return out + "  esac\n}\ncomplete -o bashdefault -o default -F _spillway spillway\n";
}

// ---- zsh

namespace {

std::string zsh_quoted(std::string_view text) {
  return quoted(text, "[]:\\", "'\\''");
}

// "SIZE:_files", what _arguments takes behind an option.
std::string zsh_value(const HelpPages& pages, const HelpOption& option) {
  const std::string value = option.value.empty() ? option.names.front() : option.value;
  if (!words_for(option).empty()) return fmt::format("{}:({})", value, fmt::join(words_for(option), " "));
  switch (completes(option)) {
    case Completes::kFiles:
      return value + ":_files";
    case Completes::kFolders:
      return value + ":_files -/";
    case Completes::kCommands:
      return fmt::format("{}:({})", value, fmt::join(command_names(pages), " "));
    case Completes::kNothing:
      break;
  }
  return value + ": ";
}

std::string zsh_options(const HelpPages& pages, const std::vector<HelpOption>& options) {
  std::string out;
  for (const HelpOption& option : options) {
    if (option.is_positional) {
      out += fmt::format(" \\\n        '{}:{}'", option.is_repeatable ? "*" : "", zsh_value(pages, option));
      continue;
    }
    const std::string text = zsh_quoted(option.text);
    for (const std::string& name : option.names) {
      const bool is_long = name.starts_with("--") && !option.value.empty();
      out += fmt::format(" \\\n        '{}{}{}[{}]{}'", option.is_repeatable ? "*" : "", name,
                         is_long ? "=" : "", text.substr(1, text.size() - 2),
                         option.value.empty() ? "" : ":" + zsh_value(pages, option));
    }
  }
  return out;
}

}  // namespace

std::string zsh_completion(const HelpPages& pages) {
  std::string out =
      "#compdef spillway\n# made by `spillway completion zsh`\n_spillway() {\n"
      "  local curcontext=\"$curcontext\" state line\n  typeset -A opt_args\n"
      "  local -a commands\n  commands=(\n";
  for (const HelpCommand& command : pages.commands) {
    const std::string text = zsh_quoted(command.text);
    out += fmt::format("    '{}:{}'\n", command.name, text.substr(1, text.size() - 2));
  }
  out += "  )\n  _arguments -C";
  out += zsh_options(pages, pages.options);
  out +=
      " \\\n        '1:command:->command' '*::argument:->argument'\n  case $state in\n"
      "    command) _describe command commands ;;\n    argument)\n      case $words[1] in\n";
  for (const HelpCommand& command : pages.commands) {
    out += fmt::format("      {}) _arguments -s{}{} ;;\n", command.name, zsh_options(pages, command.options),
                       command.runs_a_program ? " \\\n        '*::program:_normal'" : "");
  }
  return out +
         "      esac ;;\n  esac\n}\nif [[ $funcstack[1] == _spillway ]]; then _spillway \"$@\"; else compdef "
         "_spillway spillway; fi\n";
}

// ---- fish

namespace {

std::string fish_option(const std::string& when, const HelpPages& pages, const HelpOption& option) {
  std::string out = fmt::format("complete -c spillway -n {}", when);
  for (const std::string& name : option.names) {
    out += name.starts_with("--") ? fmt::format(" -l {}", name.substr(2))
                                  : fmt::format(" -s {}", name.substr(1));
  }
  if (!words_for(option).empty()) {
    out += fmt::format(" -x -a '{}'", fmt::join(words_for(option), " "));
  } else if (!option.value.empty()) {
    const Completes kind = completes(option);
    out += kind == Completes::kFiles      ? " -r"
           : kind == Completes::kFolders  ? " -x -a '(__fish_complete_directories)'"
           : kind == Completes::kCommands ? fmt::format(" -x -a '{}'", fmt::join(command_names(pages), " "))
                                          : " -x";
  }
  return out + " -d " + quoted(option.text, "\\", "\\'") + "\n";
}

}  // namespace

std::string fish_completion(const HelpPages& pages) {
  std::string out = "# fish completion of spillway; made by `spillway completion fish`\n";
  for (const HelpOption& option : pages.options) out += fish_option("__fish_use_subcommand", pages, option);
  for (const HelpCommand& command : pages.commands) {
    out += fmt::format("complete -c spillway -n __fish_use_subcommand -f -a {} -d {}\n", command.name,
                       quoted(command.text, "\\", "\\'"));
  }
  for (const HelpCommand& command : pages.commands) {
    const std::string when = fmt::format("'__fish_seen_subcommand_from {}'", command.name);
    for (const HelpOption& option : command.options) {
      if (!option.is_positional) {
        out += fish_option(when, pages, option);
      } else if (!option.choices.empty() || completes(option) == Completes::kCommands) {
        out += fmt::format("complete -c spillway -n {} -f -a '{}'\n", when,
                           fmt::join(option.choices.empty() ? command_names(pages) : option.choices, " "));
      }
    }
    if (command.runs_a_program)
      out += fmt::format("complete -c spillway -n {} -a '(__fish_complete_subcommand --fcs-skip=2)'\n", when);
  }
  return out;
}

}  // namespace spillway
