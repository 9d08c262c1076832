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
#include "cli/launch/command.h"
#include "cli/output.h"
#include "cli/plot/command.h"
#include "cli/replay/command.h"
#include "cli/report/command.h"
#include "cli/tiers/command.h"
#include "cli/top/command.h"
#include "cli/trace_model/command.h"

namespace {

int complain(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::fprintf(stderr, "spillway: %s (see spillway --help)\n", text.c_str());
  return 1;
}

std::vector<std::string> names(const CLI::App& app) {
  std::vector<std::string> out;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    out.push_back(command->get_name());
  }
  return out;
}

int run(int argc, char** argv) {
  CLI::App app("Spillway, a caching allocator for CUDA device memory", "spillway");
  app.set_version_flag("--version", "spillway " SPILLWAY_VERSION);
  app.require_subcommand(1);
  const std::function<int()> replay = spillway::add_replay_command(app);
  // What follows "--" is another program's command line.
  char** const end = argv + argc;
  char** const marker = std::find_if(argv, end, [](const char* word) { return std::string(word) == "--"; });
  const std::vector<std::string> program(marker == end ? end : marker + 1, end);
  const std::function<std::optional<int>()> launch = spillway::add_launch_commands(app, program);
  const std::function<std::optional<int>()> estimate = spillway::add_estimate_command(app);
  const std::function<std::optional<int>()> calibrate = spillway::add_calibrate_command(app);
  const std::function<std::optional<int>()> tiers = spillway::add_tiers_commands(app);
  const std::function<std::optional<int>()> traces = spillway::add_trace_commands(app);
  const std::function<std::optional<int>()> report = spillway::add_report_commands(app);
  const std::function<std::optional<int>()> exporter = spillway::add_exporter_command(app);
  const std::function<std::optional<int>()> top = spillway::add_top_command(app);
  const std::function<std::optional<int>()> doctor = spillway::add_doctor_command(app);
  const std::function<std::optional<int>()> trace_model = spillway::add_trace_model_command(app);
  const std::vector<std::string> commands = names(app);
  if (argc > 1 && argv[1][0] != '-' &&
      std::find(commands.begin(), commands.end(), argv[1]) == commands.end()) {
    return complain(std::string("no command '") + argv[1] +
                    "'; allowed: " + CLI::detail::join(commands, ", "));
  }
  try {
    app.parse(static_cast<int>(marker - argv), argv);
  } catch (const CLI::CallForHelp&) {
    const auto chosen = app.get_subcommands();
    return spillway::write_stdout(chosen.empty() ? app.help() : chosen.front()->help("spillway")).ok() ? 0
                                                                                                       : 1;
  } catch (const CLI::CallForVersion&) {
    return spillway::write_stdout("spillway " SPILLWAY_VERSION "\n").ok() ? 0 : 1;
  } catch (const CLI::ParseError& error) {
    return complain(error.what());
  }
  for (const auto& command :
       {launch, estimate, calibrate, tiers, report, traces, exporter, top, doctor, trace_model}) {
    if (const std::optional<int> code = command(); code.has_value()) return *code;
  }
  return replay();
}

}  // namespace

int main(int argc, char** argv) {
  // A closed pipe is an error of write(), not the silent end of the program.
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    return complain(error.what());
  }
}
