#include "cli/help/described.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "estimator/gpus.h"
#include "estimator/inputs/nearest.h"

namespace spillway {
namespace {

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

bool is_flag(const CLI::Option& option) {
  return option.get_items_expected_max() == 0;
}

std::vector<std::string> dashed_names(const CLI::Option& option) {
  std::vector<std::string> out;
  for (const std::string& name : option.get_snames()) out.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) out.push_back("--" + name);
  return out;
}

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> out;
  std::istringstream all(list);
  for (std::string word; std::getline(all, word, ',');)
    out.push_back(word.substr(word.find_first_not_of(' ')));
  return out;
}

// Behind the name of the value's kind: what its validators say.
void add_validators(const std::string& described, HelpOption& out) {
  std::istringstream all(described);
  std::string words;
  std::getline(all, words, ':');
  for (; std::getline(all, words, ':');) {
    if (words.starts_with(kOneOf)) {
      out.choices = words_of(words.substr(kOneOf.size()));
    } else if (words == kNamesGpus) {
      out.offered = estimator::gpu_names();
    } else if (!words.empty()) {
      out.text += ", " + words;
    }
  }
}

HelpOption describe(const CLI::Option& option) {
  HelpOption out;
  out.is_positional = option.get_positional();
  out.names =
      out.is_positional ? std::vector<std::string>{option.get_name(true, false)} : dashed_names(option);
  out.text = option.get_description();
  out.group = out.is_positional ? "Given by its place" : option.get_group();
  out.is_required = option.get_required();
  if (is_flag(option)) return out;
  out.is_repeatable = option.get_items_expected_max() > 1;
  const std::string kind = option.get_type_name();
  out.value = out.is_positional ? out.names.front() : kind.substr(0, kind.find(':'));
  add_validators(kind, out);
  if (const std::string otherwise = option.get_default_str(); !otherwise.empty())
    out.text += fmt::format(" (else {})", otherwise);
  return out;
}

std::vector<HelpOption> options_of(const CLI::App& app) {
  std::vector<HelpOption> positional;
  std::vector<HelpOption> dashed;
  for (const CLI::Option* option : app.get_options()) {
    HelpOption described = describe(*option);
    const bool is_general = option == app.get_help_ptr();
    if (is_general) {
      described.text = "Show this";
      described.group = "Help";
    }
    (described.is_positional ? positional : dashed).push_back(std::move(described));
  }
  // The general ones stand last.
  std::stable_partition(dashed.begin(), dashed.end(),
                        [](const HelpOption& option) { return option.group != "Help"; });
  positional.insert(positional.end(), dashed.begin(), dashed.end());
  return positional;
}

std::vector<HelpExample> examples_of(const CLI::App& app) {
  std::vector<HelpExample> out;
  std::istringstream lines(app.get_footer());
  for (HelpExample example; std::getline(lines, example.text) && std::getline(lines, example.command);)
    out.push_back(example);
  return out;
}

HelpCommand command_of(const CLI::App& app) {
  return {app.get_name(),  app.get_description(), app.get_group(),
          options_of(app), examples_of(app),      app.get_prefix_command()};
}

// ---- Complaints

// The command that was chosen, or all.
const CLI::App& chosen(const CLI::App& app) {
  const std::vector<CLI::App*> found = app.get_subcommands();
  return found.empty() ? app : *found.front();
}

std::string title(const CLI::App& command) {
  return command.get_parent() == nullptr ? "spillway" : "spillway " + command.get_name();
}

std::vector<std::string> names_of_options(const CLI::App& command) {
  std::vector<std::string> out;
  for (const CLI::Option* option : command.get_options()) {
    const std::vector<std::string> names = dashed_names(*option);
    out.insert(out.end(), names.begin(), names.end());
  }
  return out;
}

bool looks_like_option(const std::string& word) {
  return word.size() > 1 && word.front() == '-';
}

// Returns one of the words that nothing expected, an option before others; empty: there are none.
std::string unexpected(const CLI::App& app) {
  const CLI::App& command = chosen(app);
  const std::vector<std::string> early = app.remaining(false);
  const bool is_early = !early.empty() && &command != &app;
  if (is_early) {
    return fmt::format("spillway has no option {}; a command's own come after it: {} {}", early.front(),
                       title(command), early.front());
  }
  const std::vector<std::string> left = app.remaining(true);
  if (left.empty() || command.get_prefix_command()) return "";
  const auto option = std::find_if(left.begin(), left.end(), looks_like_option);
  if (option == left.end())
    return fmt::format("'{}' was not expected: {}", left.front(), usage(command_of(command)));
  const std::string name = option->substr(0, option->find('='));
  const std::vector<std::string> names = names_of_options(command);
  if (const std::string meant = estimator::did_you_mean(name, {names.begin(), names.end()}); !meant.empty())
    return fmt::format("{} has no option {}{}", title(command), name, meant);
  const std::vector<const CLI::App*> all = commands_of(app);
  const auto other = std::find_if(all.begin(), all.end(), [&](const CLI::App* each) {
    const std::vector<std::string> its = names_of_options(*each);
    return std::find(its.begin(), its.end(), name) != its.end();
  });
  return fmt::format("{} has no option {}{}", title(command), name,
                     other == all.end() ? "" : fmt::format("; {} has", title(**other)));
}

// "--audit requires --preload", as CLI11 says it, of which the middle is a word of its own.
std::string between(const std::string& text, const std::string& verb, const char* instead) {
  const size_t at = text.find(verb);
  return at == std::string::npos ? text : text.substr(0, at) + instead + text.substr(at + verb.size());
}

std::string missing(const std::string& text, const CLI::App& command) {
  if (command.get_parent() == nullptr) {
    std::vector<std::string> names;
    for (const CLI::App* each : commands_of(command)) names.push_back(each->get_name());
    return fmt::format("which command? allowed: {}", fmt::join(names, ", "));
  }
  const std::string name = text.substr(0, text.find(" is required"));
  return fmt::format("{} is missing: {}", name, usage(command_of(command)));
}

// The name stands before the colon.
std::string mismatch(const std::string& text, const CLI::App& command) {
  const std::string name = text.substr(0, text.find(':'));
  if (text.find("At Most") != std::string::npos) return name + " is given more than once";
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_name() == name)
      return fmt::format("{} needs a value: {}", name, heading(describe(*option)));
  }
  return name + " needs a value";
}

}  // namespace

void take_one_value_each(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    for (CLI::Option* option : command->get_options()) {
      if (!option->get_positional() && !is_flag(*option)) option->allow_extra_args(false);
    }
  }
}

HelpPages describe(const CLI::App& app, const std::string& version) {
  HelpPages out{version, app.get_description(), options_of(app), {}, examples_of(app)};
  for (const CLI::App* command : commands_of(app)) out.commands.push_back(command_of(*command));
  // Commands of one group stand together.
  std::vector<std::string> groups;
  for (const HelpCommand& command : out.commands) {
    if (std::find(groups.begin(), groups.end(), command.group) == groups.end())
      groups.push_back(command.group);
  }
  std::stable_sort(out.commands.begin(), out.commands.end(), [&](const HelpCommand& a, const HelpCommand& b) {
    return std::find(groups.begin(), groups.end(), a.group) <
           std::find(groups.begin(), groups.end(), b.group);
  });
  return out;
}

std::string no_option(const CLI::App& command, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  const std::vector<std::string> names = names_of_options(command);
  return fmt::format("{} has no option {}{}", title(command), name,
                     estimator::did_you_mean(name, {names.begin(), names.end()}));
}

std::string forgotten_value(const CLI::App& app) {
  const CLI::App& command = chosen(app);
  const std::vector<std::string> names = names_of_options(command);
  for (const CLI::Option* option : command.get_options()) {
    if (is_flag(*option)) continue;
    for (const std::string& value : option->results()) {
      if (value.empty()) return fmt::format("{} needs a value, and '' is none", option->get_name());
      if (std::find(names.begin(), names.end(), value) != names.end())
        return fmt::format("{} needs a value, and {} is an option", option->get_name(), value);
    }
  }
  return "";
}

std::string plain_words(const CLI::ParseError& error, const CLI::App& app) {
  if (std::string text = forgotten_value(app); !text.empty()) return text;
  if (std::string text = unexpected(app); !text.empty()) return text;
  const CLI::App& command = chosen(app);
  std::string text = error.what();
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) return missing(text, command);
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) return mismatch(text, command);
  if (dynamic_cast<const CLI::RequiresError*>(&error) != nullptr)
    return between(text, " requires ", " goes with ");
  if (dynamic_cast<const CLI::ExcludesError*>(&error) != nullptr)
    return between(text, " excludes ", " does not go with ");
  return text;
}

std::string no_command(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands_of(app)) names.push_back(command->get_name());
  std::string text = fmt::format("no command '{}'", word);
  const std::vector<std::string> options = names_of_options(app);
  if (std::find(options.begin(), options.end(), "--" + word) != options.end())
    return text + fmt::format("; did you mean '--{}'?", word);
  if (std::string meant = estimator::did_you_mean(word, {names.begin(), names.end()}); !meant.empty())
    return text + meant;
  std::error_code error;
  if (word.find('/') != std::string::npos || word == "python" || word.ends_with(".py") ||
      std::filesystem::is_regular_file(word, error)) {
    return text + fmt::format("; to run a program: spillway run -- {}{}",
                              word.ends_with(".py") ? "python " : "", word);
  }
  return fmt::format("{}; allowed: {}", text, fmt::join(names, ", "));
}

}  // namespace spillway
