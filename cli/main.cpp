// The spillway command: finds the subcommand and turns every complaint into one line on stderr and exit
// code 1.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/calibrate/command.h"
#include "cli/doctor/command.h"
#include "cli/estimate/command.h"
#include "cli/exporter/command.h"
#include "cli/help/command.h"
#include "cli/help/described.h"
#include "cli/help/values.h"
#include "cli/launch/command.h"
#include "cli/output.h"
#include "cli/plot/command.h"
#include "cli/replay/command.h"
#include "cli/report/command.h"
#include "cli/tiers/command.h"
#include "cli/top/command.h"
#include "cli/trace_model/command.h"

namespace {

// Says what is wrong with the words, and where to read how it is right.
int complain_of_words(std::string text, const CLI::App& app) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const std::string command = chosen.empty() ? "spillway" : "spillway " + chosen.front()->get_name();
  std::fprintf(stderr, "spillway: %s (see %s --help)\n", text.c_str(), command.c_str());
  return 1;
}

using Command = std::function<std::optional<int>()>;

std::vector<Command> add_commands(CLI::App& app, const std::vector<std::string>& program) {
  return {spillway::add_launch_commands(app, program), spillway::add_report_commands(app),
          spillway::add_trace_commands(app),           spillway::add_replay_command(app),
          spillway::add_estimate_command(app),         spillway::add_calibrate_command(app),
          spillway::add_trace_model_command(app),      spillway::add_top_command(app),
          spillway::add_doctor_command(app),           spillway::add_tiers_commands(app),
          spillway::add_exporter_command(app),         spillway::add_help_commands(app)};
}

bool has_command(const CLI::App& app, const std::string& name) {
  return !app.get_subcommands([&](const CLI::App* command) { return command->get_name() == name; }).empty();
}

int run(int argc, char** argv) {
  CLI::App app("A caching allocator for CUDA device memory, and its tools", "spillway");
  app.set_version_flag("-V,--version", "spillway " SPILLWAY_VERSION, "Show the version")->group("Help");
  app.require_subcommand(1);
  spillway::set_examples(
      app, {{"Train with Spillway as PyTorch's allocator", "spillway run -- python train.py"},
            {"Would it fit, without a GPU?", "spillway dryrun --gpu-memory h100-80 -- python train.py"}});
  // What follows "--" is another program's command line.
  char** const end = argv + argc;
  char** const marker = std::find_if(argv, end, [](const char* word) { return std::string(word) == "--"; });
  const std::vector<std::string> program(marker == end ? end : marker + 1, end);
  const std::vector<Command> commands = add_commands(app, program);
  spillway::take_one_value_each(app);
  if (argc > 1 && argv[1][0] != '-' && !has_command(app, argv[1]))
    return complain_of_words(spillway::no_command(app, argv[1]), app);
  try {
    app.parse(static_cast<int>(marker - argv), argv);
  } catch (const CLI::CallForHelp&) {
    const auto chosen = app.get_subcommands();
    return spillway::show_help(app, chosen.empty() ? nullptr : chosen.front());
  } catch (const CLI::CallForVersion&) {
    return spillway::write_stdout("spillway " SPILLWAY_VERSION "\n").ok() ? 0 : 1;
  } catch (const CLI::ParseError& error) {
    return complain_of_words(spillway::plain_words(error, app), app);
  }
  if (const std::string text = spillway::forgotten_value(app); !text.empty())
    return complain_of_words(text, app);
  for (const Command& command : commands) {
    const std::optional<int> code = command();
    if (!code.has_value()) continue;
    if (*code != 1) spillway::say_notes();
    return *code;
  }
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  // A closed pipe is an error of write(), not the silent end of the program.
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    return spillway::complain(spillway::Status::internal(error.what()));
  }
}
