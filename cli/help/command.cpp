#include "cli/help/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>

#include "cli/help/described.h"
#include "cli/help/pages.h"
#include "cli/help/values.h"
#include "cli/output.h"
#include "cli/terminal.h"

namespace spillway {
namespace {

struct HelpChoices {
  CLI::App* help = nullptr;
  CLI::App* completion = nullptr;
  CLI::App* man = nullptr;
  std::string command;  // to show help of
  std::string shell;
  std::string page;  // of this command
  std::string folder;
  std::string file;
};

int print(const std::string& text) {
  const Status written = write_stdout(text);
  return written.ok() ? 0 : complain(written);
}

size_t help_columns() {
  constexpr size_t kWidest = 110;
  return std::clamp<size_t>(screen_size().columns, 60, kWidest);
}

int show_help_of(const CLI::App& app, const std::string& name) {
  const HelpPages pages = describe(app, SPILLWAY_VERSION);
  if (name.empty()) return print(help_text(pages, help_columns()));
  const HelpCommand* command = pages.find(name);
  if (command == nullptr) return complain(Status::invalid_argument(no_command(app, name)));
  return print(help_text(*command, help_columns()));
}

int show_completion(const CLI::App& app, const HelpChoices& choices) {
  const HelpPages pages = describe(app, SPILLWAY_VERSION);
  const Status written = write_answer(choices.file, choices.shell == "bash"  ? bash_completion(pages)
                                                    : choices.shell == "zsh" ? zsh_completion(pages)
                                                                             : fish_completion(pages));
  return written.ok() ? 0 : complain("completion", written);
}

int write_pages(const HelpPages& pages, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  Status status = write_file(folder + "/spillway.1", man_page(pages));
  for (const HelpCommand& command : pages.commands) {
    if (status.ok())
      status = write_file(fmt::format("{}/spillway-{}.1", folder, command.name), man_page(pages, command));
  }
  return status.ok() ? 0 : complain("man", status);
}

int show_page(const CLI::App& app, const HelpChoices& choices) {
  const HelpPages pages = describe(app, SPILLWAY_VERSION);
  if (!choices.folder.empty()) return write_pages(pages, choices.folder);
  if (choices.page.empty()) return print(man_page(pages));
  const HelpCommand* command = pages.find(choices.page);
  if (command == nullptr) return complain(Status::invalid_argument(no_command(app, choices.page)));
  return print(man_page(pages, *command));
}

}  // namespace

int show_help(const CLI::App& app, const CLI::App* command) {
  return show_help_of(app, command == nullptr ? "" : command->get_name());
}

std::function<std::optional<int>()> add_help_commands(CLI::App& app) {
  auto choices = std::make_shared<HelpChoices>();
  choices->help = app.add_subcommand("help", "Show what a command does, its options and examples");
  choices->help->add_option("COMMAND", choices->command, "Of this command; of all unless named");
  set_examples(*choices->help, {{"Options and examples of a command", "spillway help dryrun"},
                                {"All commands", "spillway help"}});
  choices->completion =
      app.add_subcommand("completion", "Print what makes a shell complete the command's words");
  choices->completion->add_option("SHELL", choices->shell, "bash, zsh or fish")
      ->required()
      ->check(one_of({"bash", "zsh", "fish"}));
  choices->completion->add_option("--output", choices->file, "Write it to this file instead of stdout")
      ->type_name("FILE")
      ->check(file_to_write());
  set_examples(
      *choices->completion,
      {{"In bash, for this session", "source <(spillway completion bash)"},
       {"In fish, from now on", "spillway completion fish > ~/.config/fish/completions/spillway.fish"}});
  choices->man =
      app.add_subcommand("man", "Print the manual page of a command, or write all pages to a folder");
  CLI::Option* page =
      choices->man->add_option("COMMAND", choices->page, "Of this command; of all unless named");
  choices->man->add_option("--output", choices->folder, "Write every page to this folder")
      ->type_name("FOLDER")
      ->excludes(page);
  set_examples(*choices->man, {{"Read the page of a command", "spillway man dryrun | man -l -"},
                               {"Install all", "spillway man --output ~/.local/share/man/man1"}});
  for (CLI::App* command : {choices->help, choices->completion, choices->man}) command->group("This command");
  return [&app, choices]() -> std::optional<int> {
    if (choices->help->parsed()) return show_help_of(app, choices->command);
    if (choices->completion->parsed()) return show_completion(app, *choices);
    if (choices->man->parsed()) return show_page(app, *choices);
    return std::nullopt;
  };
}

}  // namespace spillway
