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

#include "cli/help/described.h"
#include "cli/help/values.h"
#include "cli/launch/child.h"
#include "cli/launch/dryrun.h"
#include "cli/launch/program.h"
#include "cli/launch/served.h"
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
  bool quiet = false;
  std::string python;
  DryrunChoices of_dryrun;
};

Result<std::vector<std::string>> program_of(const std::vector<std::string>& after_marker,
                                            const CLI::App& command) {
  const std::vector<std::string> others = command.remaining();
  if (!others.empty() && others.front().starts_with('-'))
    return Status::invalid_argument(no_option(command, others.front()));
  if (!others.empty() && !after_marker.empty()) {
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

// One line, or nothing where the program has said itself what is wrong.
std::string why_nothing_was_served(const Ended& ended, bool is_preloaded) {
  if (const auto driver = Driver::open(); !driver.ok()) {
    if (is_preloaded) return "";  // said before it began
    return fmt::format(
        "nothing was served, for there is no GPU here ({}); on a simulated one: spillway dryrun "
        "--gpu-memory 80GiB -- COMMAND",
        driver.status().text());
  }
  return ended.exit_code() == 0 ? "nothing was served: no process asked for device memory" : "";
}

// Runs it, says what it was served, and ends as it ended.
int run_watched(const std::vector<std::string>& program, bool is_preloaded) {
  const ServedPages pages;
  Result<Ended> ended = run_and_wait(program);
  if (!ended.ok()) return complain(ended.take_status());
  std::string line = served_line(pages.read());
  if (line.empty() && pages.is_watching()) line = why_nothing_was_served(ended.value(), is_preloaded);
  if (!line.empty()) std::fprintf(stderr, "spillway run: %s\n", line.c_str());
  return end_as(ended.value());
}

// The program as it is: no integration, the driver's calls alone.
Status prepare_preloaded(bool audit) {
  Result<std::string> library = preload_library();
  if (!library.ok()) return library.take_status();
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
    if (!auditor.ok()) return auditor.take_status();
    put_first("LD_AUDIT", auditor.value());
    // Where there is an auditor, the loader lays out thread-local memory before it knows the program's
    // libraries and leaves them 2 KB of the kind that cannot grow; allocators and OpenMP runtimes want more.
    put_first("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=65536");
  }
  return {};
}

Status prepare(const LaunchChoices& choices, const std::vector<std::string>& program) {
  if (choices.preload) return prepare_preloaded(choices.audit);
  if (Status status = start_with_package(program); !status.ok()) return status;
  ::setenv("SPILLWAY_RUN", choices.plain ? "plain" : "full", 1);
  if (choices.pinned_memory) add_option("pinned_memory:on");
  return {};
}

int run(const LaunchChoices& choices) {
  Result<std::vector<std::string>> program = program_of(choices.program, *choices.run);
  if (!program.ok()) return complain(program.take_status());
  if (Status status = prepare(choices, program.value()); !status.ok()) return complain(status);
  return choices.quiet ? complain(execute(program.value())) : run_watched(program.value(), choices.preload);
}

int stand_ins(const LaunchChoices& choices) {
  const std::string python = choices.python.empty() ? python_of({}) : choices.python;
  if (!choices.python.empty() && !is_python(python)) {
    return complain(Status::invalid_argument(
        fmt::format("'{}' is no Python; allowed: python3 and the like, or such a program's path", python)));
  }
  Result<std::string> folder = simulated_libraries_folder(python);
  if (!folder.ok()) return complain(folder.take_status());
  Status written = write_stdout(folder.value() + "\n");
  return written.ok() ? 0 : complain(written);
}

void add_run(CLI::App& app, LaunchChoices& choices) {
  CLI::App& run =
      *app.add_subcommand("run", "Run a command with Spillway as PyTorch's allocator, in all its processes");
  choices.run = &run;
  run.group("Run programs");
  CLI::Option* preload = run.add_flag(
      "--preload", choices.preload,
      "For any CUDA program: stand before its driver (LD_PRELOAD) and change nothing in PyTorch");
  run.add_flag("--audit", choices.audit,
               "With --preload: serve libraries that are opened with RTLD_DEEPBIND too (LD_AUDIT)")
      ->needs(preload);
  run.add_flag("--plain", choices.plain, "The integration that needs no compiler")->excludes(preload);
  run.add_flag("--pinned-memory", choices.pinned_memory, "Serve pinned host memory too, without rounding")
      ->excludes("--plain")
      ->excludes(preload);
  run.add_flag("--quiet", choices.quiet, "Say nothing at the end of what was served and what it took");
  run.prefix_command();
  set_examples(run, {{"Train with Spillway as PyTorch's allocator", "spillway run -- python train.py"},
                     {"A program that is not PyTorch", "spillway run --preload -- ./simulate --steps 100"}});
}

void add_dryrun_device(CLI::App& dryrun, DryrunChoices& choices) {
  const char* const group = "The device";
  CLI::Option* memory =
      dryrun
          .add_option(
              "--gpu-memory", choices.gpu_memory,
              "Memory that the allocator may have of a device: a size (80GiB, 80GB), or a GPU, whose usable "
              "memory is taken (h100-80)")
          ->type_name("SIZE")
          ->transform(name_of_gpu())
          ->group(group);
  CLI::Option* gpus =
      dryrun
          .add_option("--gpu", choices.gpus,
                      "Instead: GPUs to judge by, h100-80,a100-40 and such, or sizes (exit code 2 where "
                      "it does not fit one of them)")
          ->type_name("NAME,SIZE")
          ->check(names_of_gpus())
          ->excludes(memory)
          ->group(group);
  dryrun.add_option("--devices", choices.devices, "How many there are")
      ->type_name("N")
      ->check(whole(1, 16))
      ->capture_default_str()
      ->group(group);
  CLI::Option* allocator =
      dryrun
          .add_option("--allocator", choices.allocator,
                      "Spillway, or PyTorch's own for comparison, also with expandable segments")
          ->type_name("NAME")
          ->check(one_of(kDryrunAllocators))
          ->capture_default_str()
          ->group(group);
  dryrun
      .add_flag("--compare", choices.compare,
                "Run on each of these allocators, one after the other, and print one table; the exit code is "
                "Spillway's")
      ->excludes(allocator)
      ->excludes(gpus)
      ->group(group);
}

void add_dryrun_answer(CLI::App& dryrun, DryrunChoices& choices) {
  const char* const group = "The answer";
  dryrun
      .add_option("--out", choices.files.out,
                  "Write a snapshot of the rank with most to this file, for PyTorch's memory_viz, report and "
                  "replay; of "
                  "each rank where it has %r")
      ->type_name("FILE")
      ->excludes("--compare")
      ->group(group);
  dryrun.add_option("--html", choices.files.html, "Write one self-contained page of it to this file")
      ->type_name("FILE")
      ->excludes("--compare")
      ->group(group);
  dryrun.add_option("--output", choices.output, "Write the report to this file instead of stderr")
      ->type_name("FILE")
      ->group(group);
  dryrun.add_flag("--json", choices.json, "The report as JSON")->group(group);
}

void add_dryrun(CLI::App& app, LaunchChoices& choices) {
  CLI::App& dryrun = *app.add_subcommand(
      "dryrun",
      "Run a PyTorch command on a simulated device and tell whether and where it runs out of memory (exit "
      "code 2 where it does)");
  choices.dryrun = &dryrun;
  dryrun.group("Run programs");
  DryrunChoices& of = choices.of_dryrun;
  add_dryrun_device(dryrun, of);
  dryrun
      .add_option("--world-size", of.world_size,
                  "Ranks of the job, --devices of them on a node (those of torchrun)")
      ->type_name("N")
      ->check(whole(1, 1 << 20))
      ->group("The job");
  dryrun
      .add_option("--ranks", of.ranks, "Which run, such as 0,511: the others are taken to do the same (all)")
      ->type_name("LIST")
      ->group("The job");
  CLI::Option* values = dryrun
                            .add_option("--values", of.values,
                                        "Which values are computed: those of small tensors and of integers, "
                                        "all (for small programs), none")
                            ->type_name("WHICH")
                            ->check(one_of({"small", "all", "none"}))
                            ->capture_default_str();
  dryrun
      .add_flag("--no-bytes", of.no_bytes,
                "Keep accounts only: copies move nothing and read zeros, no values are computed; for data "
                "larger than this machine's memory")
      ->excludes(values);
  add_dryrun_answer(dryrun, of);
  dryrun.prefix_command();
  set_examples(
      dryrun,
      {{"Does it fit an H100?", "spillway dryrun --gpu h100-80 -- python train.py"},
       {"The first and the last of 512 ranks",
        "spillway dryrun --gpu-memory 80GiB --devices 8 --world-size 512 --ranks 0,511 -- python train.py"}});
}

void add_stand_ins(CLI::App& app, LaunchChoices& choices) {
  CLI::App& stand_ins = *app.add_subcommand(
      "stand-ins",
      "Make what dryrun needs for the PyTorch of a Python, where it is not there yet, and print its folder");
  choices.stand_ins = &stand_ins;
  stand_ins.group("Run programs");
  stand_ins.add_option("PYTHON", choices.python, "As .venv/bin/python; the own one unless given");
  set_examples(stand_ins, {{"For the python3 of this shell", "spillway stand-ins"},
                           {"For another Python", "spillway stand-ins .venv/bin/python"}});
}

}  // namespace

std::function<std::optional<int>()> add_launch_commands(CLI::App& app, std::vector<std::string> program) {
  auto choices = std::make_shared<LaunchChoices>();
  choices->program = std::move(program);
  add_run(app, *choices);
  add_dryrun(app, *choices);
  add_stand_ins(app, *choices);
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
