#include "cli/launch/command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/launch/meeting.h"
#include "cli/launch/program.h"
#include "cli/launch/ranks.h"
#include "cli/launch/refusals.h"
#include "cli/launch/values.h"
#include "cli/output.h"
#include "cli/size.h"
#include "driver/driver.h"

namespace spillway {
namespace {

using Parsed = nlohmann::json;

// A device of these sizes can be simulated.
constexpr uint64_t kLeastGpuBytes = uint64_t{2} << 20;
constexpr uint64_t kMostGpuBytes = uint64_t{16} << 40;

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
  std::string gpu_memory;
  int devices = 1;
  std::string allocator = "spillway";
  bool no_bytes = false;
  std::string values = "small";
  bool json = false;
  int world_size = 0;
  std::string ranks;
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

// ---- dryrun

// Holds what the program's processes left in the folder, one file each.
struct Results {
  bool watched = false;       // some process had PyTorch and said so
  bool complete = true;       // each that used CUDA said what it used
  std::vector<Parsed> users;  // of CUDA, by rank
  MeetingResult met;
};

Results results_in(const std::filesystem::path& folder) {
  Results results;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    std::ifstream file(entry.path());
    Parsed result = Parsed::parse(file, nullptr, false);
    results.watched = true;
    if (result.is_discarded() || !result.value("complete", false)) {
      results.complete = false;
    } else if (!result["devices"].empty()) {
      results.users.push_back(std::move(result));
    }
  }
  std::sort(results.users.begin(), results.users.end(),
            [](const Parsed& a, const Parsed& b) { return a.value("rank", 0) < b.value("rank", 0); });
  return results;
}

enum class Verdict { kFits, kNothingUsed, kOutOfMemory, kStuck, kFailed, kNotKnown };

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFits:
      return "fits";
    case Verdict::kNothingUsed:
      return "nothing used";
    case Verdict::kOutOfMemory:
      return "out of memory";
    case Verdict::kStuck:
      return "stuck";
    case Verdict::kFailed:
      return "failed";
    case Verdict::kNotKnown:
      return "not known";
  }
  return "";
}

// Judges a program that ended with the code.
Verdict judge(const Results& results, int code) {
  const auto is_out_of_memory = [](const Parsed& result) { return result.contains("oom"); };
  if (code != 0 && std::any_of(results.users.begin(), results.users.end(), is_out_of_memory)) {
    return Verdict::kOutOfMemory;
  }
  if (!results.met.kind.empty()) return Verdict::kStuck;
  if (!results.watched || !results.complete) return Verdict::kNotKnown;
  if (code != 0) return Verdict::kFailed;
  return results.users.empty() ? Verdict::kNothingUsed : Verdict::kFits;
}

// As of all commands: 2 is a no. What is not known is no success.
int exit_code(Verdict verdict, int code) {
  if (verdict == Verdict::kOutOfMemory) return 2;
  if (verdict == Verdict::kStuck) return 1;
  return verdict == Verdict::kNotKnown && code == 0 ? 1 : code;
}

std::string explain(Verdict verdict, const Results& results, int code) {
  switch (verdict) {
    case Verdict::kFits:
      return "it ran to its end: it fits, as far as it ran";
    case Verdict::kNothingUsed:
      return "it ran to its end, and used nothing of PyTorch's CUDA memory";
    case Verdict::kOutOfMemory:
      return "it does NOT fit";
    case Verdict::kStuck:
      return results.met.kind == "deadlock"
                 ? "DEADLOCK: every rank waits for another, and the job would hang"
                 : "MISMATCH: ranks that must meet call different collectives, and the job would hang";
    case Verdict::kFailed:
      return fmt::format("the program ended with code {}, for another reason than device memory", code);
    case Verdict::kNotKnown:
      break;
  }
  return fmt::format("not known{}: {}", code == 0 ? "" : fmt::format(" why it ended with code {}", code),
                     results.watched
                         ? "a process that used CUDA was killed or crashed, and what it used is lost"
                         : "no process imported PyTorch where Spillway sees it, which it does not "
                           "where PYTHONPATH is replaced, or Python has -E, -I or -S");
}

std::string report(const Results& results, uint64_t gpu_bytes, const std::string& allocator, Verdict verdict,
                   int code) {
  std::string out = fmt::format("spillway dryrun: simulated device of {}, allocator {}\n",
                                format_size(gpu_bytes), allocator);
  for (const Parsed& result : results.users) {
    for (const Parsed& device : result["devices"]) {
      out += fmt::format("  rank {} device {}: peak allocated {}, peak reserved {}, {} out of memory\n",
                         result.value("rank", 0), device.value("device", 0),
                         format_size(device.value("peak_allocated_bytes", uint64_t{0})),
                         format_size(device.value("peak_reserved_bytes", uint64_t{0})),
                         device.value("num_ooms", uint64_t{0}));
    }
    out += refusals(result);
  }
  out += fmt::format("  {}\n", explain(verdict, results, code));
  for (const std::string& line : results.met.lines) out += fmt::format("    {}\n", line);
  for (const std::string& note : results.met.notes) out += fmt::format("  note: {}\n", note);
  return out + unreal_reads(results.users) + caveat(results.users);
}

int dryrun(const LaunchChoices& choices) {
  Result<std::vector<std::string>> program = program_of(choices.program, *choices.dryrun);
  if (!program.ok()) return complain(program.take_status());
  const std::optional<uint64_t> gpu_bytes = parse_size(choices.gpu_memory);
  if (!gpu_bytes.has_value() || *gpu_bytes < kLeastGpuBytes || *gpu_bytes > kMostGpuBytes) {
    return complain(Status::invalid_argument(
        fmt::format("--gpu-memory '{}' is no size of a device; allowed: 2MiB to 16TiB, such as 80GiB",
                    choices.gpu_memory)));
  }
  if (Status status = start_with_package(program.value()); !status.ok()) return complain(status);
  Result<std::string> libraries = preload_simulation(python_of(program.value()));
  if (!libraries.ok()) return complain(libraries.take_status());

  std::string folder = (std::filesystem::temp_directory_path() / "spillway-dryrun-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) {
    return complain(Status::io(fmt::format("no temporary folder: {}", folder)));
  }
  // Host memory is used for what is copied to the device, not for what is only allocated there.
  const std::string device = fmt::format("capacity:{}B,devices:{},races:off,backing:{}", *gpu_bytes,
                                         choices.devices, choices.no_bytes ? "none" : "memfd");
  ::setenv("SPILLWAY_SIM", device.c_str(), 1);
  // Where the environment hides every device, PyTorch does not ask the driver.
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
      visible != nullptr && (*visible == '\0' || *visible == '-')) {
    ::unsetenv("CUDA_VISIBLE_DEVICES");
  }
  ::setenv("SPILLWAY_DRYRUN", folder.c_str(), 1);
  ::setenv("SPILLWAY_DRYRUN_VALUES", choices.no_bytes ? "none" : choices.values.c_str(), 1);
  ::setenv("SPILLWAY_RUN", choices.allocator == "native" ? "native" : "full", 1);
  Result<int> ranks = choose_ranks(choices.ranks, choices.world_size, choices.devices, program.value());
  if (!ranks.ok()) return complain(ranks.take_status());
  Meeting meeting;
  if (Status status = meeting.start(libraries.value(), ranks.value()); !status.ok()) return complain(status);
  Result<int> code = execute_and_wait(program.value());
  Results results = results_in(folder);
  results.met = meeting.end();
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  if (!code.ok()) return complain(code.take_status());

  forgive_refusals(results.users, code.value());
  const Verdict verdict = judge(results, code.value());
  // SPILLWAY_DISABLE may have the last word.
  const std::string allocator =
      results.users.empty() ? choices.allocator : results.users.front().value("allocator", choices.allocator);
  if (choices.json) {
    const Parsed all = {
        {"gpu_memory_bytes", *gpu_bytes},
        {"allocator", allocator},
        {"exit_code", code.value()},
        {"verdict", name_of(verdict)},
        {"out_of_memory", verdict == Verdict::kOutOfMemory},
        {"collectives",
         {{"problem", results.met.kind}, {"ranks", results.met.lines}, {"notes", results.met.notes}}},
        {"processes", results.users}};
    std::fprintf(stderr, "%s\n", all.dump(2).c_str());
  } else {
    std::fputs(report(results, *gpu_bytes, allocator, verdict, code.value()).c_str(), stderr);
  }
  return exit_code(verdict, code.value());
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
  choices->dryrun->add_option("--gpu-memory", choices->gpu_memory, "Memory of a device (80GiB)")->required();
  choices->dryrun->add_option("--devices", choices->devices, "How many there are")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  choices->dryrun->add_option("--allocator", choices->allocator, "Spillway, or PyTorch's own for comparison")
      ->check(CLI::IsMember({"spillway", "native"}))
      ->capture_default_str();
  choices->dryrun
      ->add_option("--world-size", choices->world_size,
                   "Ranks of the job, --devices of them on a node (those of torchrun)")
      ->check(CLI::Range(1, 1 << 20));
  choices->dryrun->add_option("--ranks", choices->ranks,
                              "Which run, such as 0,511: the others are taken to do the same (all)");
  CLI::Option* values = choices->dryrun
                            ->add_option("--values", choices->values,
                                         "Which values are computed: those of small tensors and of integers, "
                                         "all (for small programs), none")
                            ->check(CLI::IsMember({"small", "all", "none"}))
                            ->capture_default_str();
  choices->dryrun
      ->add_flag("--no-bytes", choices->no_bytes,
                 "Keep accounts only: copies move nothing and read zeros, no values are computed; for data "
                 "larger than "
                 "this machine's memory")
      ->excludes(values);
  choices->dryrun->add_flag("--json", choices->json, "The report as JSON, on stderr as well");
  choices->dryrun->prefix_command();
  choices->dryrun->footer("As in: spillway dryrun --gpu-memory SIZE [OPTIONS] -- COMMAND [ARGUMENT...]");

  choices->stand_ins = app.add_subcommand(
      "stand-ins",
      "Make what dryrun needs for the PyTorch of a Python, where it is not there yet, and print its folder");
  choices->stand_ins->add_option("python", choices->python, "As .venv/bin/python; the own one unless given");

  return [choices]() -> std::optional<int> {
    if (choices->stand_ins->parsed()) return stand_ins(*choices);
    if (choices->run->parsed()) return run(*choices);
    if (choices->dryrun->parsed()) return dryrun(*choices);
    return std::nullopt;
  };
}

}  // namespace spillway
