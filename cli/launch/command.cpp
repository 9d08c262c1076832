#include "cli/launch/command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/launch/dryrun.h"
#include "cli/launch/program.h"
#include "cli/output.h"
#include "driver/driver.h"

namespace spillway {
namespace {

struct LaunchChoices {
  CLI::App* run = nullptr;
  CLI::App* dryrun = nullptr;
  CLI::App* stand_ins = nullptr;
  std::vector<std::string> program;
  bool plain = false;
  bool preload = false;
  bool audit = false;
  bool pinned_memory = false;
  std::string python;
  DryrunChoices of_dryrun;
};

Result<std::vector<std::string>> program_of(const std::vector<std::string>& after_marker,
                                            const CLI::App& command) {
  const std::vector<std::string> others = command.remaining();
  if (!others.empty() && (!after_marker.empty() || others.front().front() == '-')) {
    return Status::invalid_argument(
        fmt::format("'{}' was not expected before the command to run", others.front()));
  }
  std::vector<std::string> program = after_marker.empty() ? others : after_marker;
  if (program.empty()) {
    return Status::invalid_argument(
        fmt::format("what is to be run? spillway {} [OPTIONS] -- COMMAND [ARGUMENT...]", command.get_name()));
  }
  return program;
}

// To those of SPILLWAY_CONF.
void add_option(const std::string& option) {
  const char* others = std::getenv("SPILLWAY_CONF");
  const std::string all = others == nullptr || *others == '\0' ? option : std::string(others) + "," + option;
  ::setenv("SPILLWAY_CONF", all.c_str(), 1);
}

// The program as it is: no integration, the driver's calls alone.
int run_preloaded(const std::vector<std::string>& program, bool audit) {
  Result<std::string> library = preload_library();
  if (!library.ok()) return complain(library.take_status());
  // The preload library says it when a program that asked for the driver ends, but some are killed by that.
  if (const auto driver = Driver::open(); !driver.ok()) {
    std::fprintf(stderr, "spillway: %s; until then the program runs without Spillway\n",
                 driver.status().text().c_str());
    ::setenv("SPILLWAY_DRIVER", "unusable", 1);  // and it is not said twice
  } else {
    ::unsetenv("SPILLWAY_DRIVER");  // of an outer command, on another machine perhaps
  }
  put_first("LD_PRELOAD", library.value());
  if (audit) {
    Result<std::string> auditor = auditor_beside(library.value());
    if (!auditor.ok()) return complain(auditor.take_status());
    put_first("LD_AUDIT", auditor.value());
    // Where there is an auditor, the loader lays out thread-local memory before it knows the program's
    // libraries and leaves them 2 KB of the kind that cannot grow; allocators and OpenMP runtimes want more.
    put_first("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=65536");
  }
  return complain(execute(program));
}

int run(const LaunchChoices& choices) {
  Result<std::vector<std::string>> program = program_of(choices.program, *choices.run);
  if (!program.ok()) return complain(program.take_status());
  if (choices.preload) return run_preloaded(program.value(), choices.audit);
  if (Status status = start_with_package(program.value()); !status.ok()) return complain(status);
  ::setenv("SPILLWAY_RUN", choices.plain ? "plain" : "full", 1);
  if (choices.pinned_memory) add_option("pinned_memory:on");
  return complain(execute(program.value()));
}

int stand_ins(const LaunchChoices& choices) {
  const std::string python = choices.python.empty() ? python_of({}) : choices.python;
  Result<std::string> folder = simulated_libraries_folder(python);
  if (!folder.ok()) return complain(folder.take_status());
  Status written = write_stdout(folder.value() + "\n");
  return written.ok() ? 0 : complain(written);
}

}  // namespace

std::function<std::optional<int>()> add_launch_commands(CLI::App& app, std::vector<std::string> program) {
  auto choices = std::make_shared<LaunchChoices>();
  choices->program = std::move(program);
  choices->run =
      app.add_subcommand("run", "Run a command with Spillway as PyTorch's allocator, in all its processes");
  CLI::Option* preload = choices->run->add_flag(
      "--preload", choices->preload,
      "For any CUDA program: stand before its driver (LD_PRELOAD) and change nothing in PyTorch");
  choices->run
      ->add_flag("--audit", choices->audit,
                 "With --preload: serve libraries that are opened with RTLD_DEEPBIND too (LD_AUDIT)")
      ->needs(preload);
  choices->run->add_flag("--plain", choices->plain, "The integration that needs no compiler")
      ->excludes(preload);
  choices->run
      ->add_flag("--pinned-memory", choices->pinned_memory, "Serve pinned host memory too, without rounding")
      ->excludes("--plain")
      ->excludes(preload);
  choices->run->prefix_command();
  choices->run->footer("As in: spillway run [OPTIONS] -- COMMAND [ARGUMENT...]");

  choices->dryrun = app.add_subcommand(
      "dryrun",
      "Run a PyTorch command on a simulated device and tell whether and where it runs out of memory (exit "
      "code 2 where it does)");
  CLI::Option* memory = choices->dryrun->add_option("--gpu-memory", choices->of_dryrun.gpu_memory,
                                                    "Memory that the allocator may have of a device (80GiB)");
  CLI::Option* gpus = choices->dryrun
                          ->add_option("--gpu", choices->of_dryrun.gpus,
                                       "Instead: GPUs to judge by, h100-80,a100-40 and such, or sizes (exit "
                                       "code 2 where it does not fit one of them)")
                          ->excludes(memory);
  choices->dryrun->add_option("--devices", choices->of_dryrun.devices, "How many there are")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  CLI::Option* allocator =
      choices->dryrun
          ->add_option("--allocator", choices->of_dryrun.allocator,
                       "Spillway, or PyTorch's own for comparison, also with expandable segments")
          ->check(CLI::IsMember(kDryrunAllocators))
          ->capture_default_str();
  CLI::Option* compare =
      choices->dryrun
          ->add_flag(
              "--compare", choices->of_dryrun.compare,
              "Run on each of these allocators, one after the other, and print one table; the exit code is "
              "Spillway's")
          ->excludes(allocator)
          ->excludes(gpus);
  choices->dryrun
      ->add_option("--world-size", choices->of_dryrun.world_size,
                   "Ranks of the job, --devices of them on a node (those of torchrun)")
      ->check(CLI::Range(1, 1 << 20));
  choices->dryrun->add_option("--ranks", choices->of_dryrun.ranks,
                              "Which run, such as 0,511: the others are taken to do the same (all)");
  CLI::Option* values = choices->dryrun
                            ->add_option("--values", choices->of_dryrun.values,
                                         "Which values are computed: those of small tensors and of integers, "
                                         "all (for small programs), none")
                            ->check(CLI::IsMember({"small", "all", "none"}))
                            ->capture_default_str();
  choices->dryrun
      ->add_flag("--no-bytes", choices->of_dryrun.no_bytes,
                 "Keep accounts only: copies move nothing and read zeros, no values are computed; for data "
                 "larger than "
                 "this machine's memory")
      ->excludes(values);
  choices->dryrun
      ->add_option(
          "--out", choices->of_dryrun.files.out,
          "Write a snapshot of the rank with most to this file, for PyTorch's memory_viz, report and "
          "replay; of each rank where it has %r")
      ->excludes(compare);
  choices->dryrun
      ->add_option("--html", choices->of_dryrun.files.html,
                   "Write one self-contained page of it to this file")
      ->excludes(compare);
  choices->dryrun->add_flag("--json", choices->of_dryrun.json, "The report as JSON, on stderr as well");
  choices->dryrun->prefix_command();
  choices->dryrun->footer("As in: spillway dryrun --gpu-memory SIZE [OPTIONS] -- COMMAND [ARGUMENT...]");

  choices->stand_ins = app.add_subcommand(
      "stand-ins",
      "Make what dryrun needs for the PyTorch of a Python, where it is not there yet, and print its folder");
  choices->stand_ins->add_option("python", choices->python, "As .venv/bin/python; the own one unless given");

  return [choices]() -> std::optional<int> {
    if (choices->stand_ins->parsed()) return stand_ins(*choices);
    if (choices->run->parsed()) return run(*choices);
    if (choices->dryrun->parsed()) {
      Result<std::vector<std::string>> program = program_of(choices->program, *choices->dryrun);
      if (!program.ok()) return complain(program.take_status());
      return dryrun(choices->of_dryrun, std::move(program.value()));
    }
    return std::nullopt;
  };
}

}  // namespace spillway
