// Describes what the command line understands, as plain data: help, manual pages and shells' completions are
// all made of it.
#pragma once

#include <string>
#include <vector>

namespace spillway {

struct HelpOption {
  std::vector<std::string> names;    // "-h", "--help"; of what has no dashes: its name, "TRACE"
  std::string value;                 // a word for it, "SIZE"; empty: a flag
  std::vector<std::string> choices;  // the values, where there are few
  std::vector<std::string> offered;  // by shells, of values that are too many to tell
  std::string text;                  // one sentence
  std::string group;
  bool is_positional = false;
  bool is_required = false;
  bool is_repeatable = false;
};

struct HelpExample {
  std::string text;
  std::string command;
};

struct HelpCommand {
  std::string name;
  std::string text;
  std::string group;
  std::vector<HelpOption> options;
  std::vector<HelpExample> examples;
  bool runs_a_program = false;  // whose words follow "--"
};

struct HelpPages {
  std::string version;
  std::string text;
  std::vector<HelpOption> options;  // without a command
  std::vector<HelpCommand> commands;
  std::vector<HelpExample> examples;

  // Null where there is none.
  const HelpCommand* find(const std::string& name) const;
};

// Says what a shell may offer as a value.
enum class Completes { kNothing, kFiles, kFolders, kCommands };
Completes completes(const HelpOption& option);
// Its choices, or what else shells offer.
const std::vector<std::string>& words_for(const HelpOption& option);

// "spillway dryrun --gpu-memory SIZE [OPTIONS] -- COMMAND [ARGUMENT...]".
std::string usage(const HelpCommand& command);
// "--gpu NAME,SIZE..."; "-h, --help"; "--by auto|size" where its choices are short.
std::string heading(const HelpOption& option);

// Help as text, of lines of at most `columns`.
std::string help_text(const HelpPages& pages, size_t columns);
std::string help_text(const HelpCommand& command, size_t columns);

// A page for man(1); the whole command's is spillway.1.
std::string man_page(const HelpPages& pages);
std::string man_page(const HelpPages& pages, const HelpCommand& command);

std::string bash_completion(const HelpPages& pages);
std::string zsh_completion(const HelpPages& pages);
std::string fish_completion(const HelpPages& pages);

}  // namespace spillway
