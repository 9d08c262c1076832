#include "cli/launch/dryrun.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/launch/meeting.h"
#include "cli/launch/program.h"
#include "cli/launch/ranks.h"
#include "cli/launch/refusals.h"
#include "cli/launch/values.h"
#include "cli/output.h"
#include "cli/size.h"

namespace spillway {
namespace {

using Parsed = nlohmann::json;

// A device of these sizes can be simulated.
constexpr uint64_t kLeastGpuBytes = uint64_t{2} << 20;
constexpr uint64_t kMostGpuBytes = uint64_t{16} << 40;

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

// Holds one run of the program, on one allocator.
struct Attempt {
  std::string allocator;
  Results results;
  int code = 0;
  Verdict verdict = Verdict::kNotKnown;
};

Status set_device(const DryrunChoices& choices) {
  const std::optional<uint64_t> gpu_bytes = parse_size(choices.gpu_memory);
  if (!gpu_bytes.has_value() || *gpu_bytes < kLeastGpuBytes || *gpu_bytes > kMostGpuBytes) {
    return Status::invalid_argument(
        fmt::format("--gpu-memory '{}' is no size of a device; allowed: 2MiB to 16TiB, such as 80GiB",
                    choices.gpu_memory));
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
  ::setenv("SPILLWAY_DRYRUN_VALUES", choices.no_bytes ? "none" : choices.values.c_str(), 1);
  return {};
}

Result<Attempt> attempt(const std::string& allocator, const std::vector<std::string>& program,
                        const std::string& libraries, int ranks) {
  std::string folder = (std::filesystem::temp_directory_path() / "spillway-dryrun-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return Status::io(fmt::format("no temporary folder: {}", folder));
  ::setenv("SPILLWAY_DRYRUN", folder.c_str(), 1);
  const AllocatorEnvironment environment(allocator);
  Meeting meeting;
  if (Status status = meeting.start(libraries, ranks); !status.ok()) return status;
  Result<int> code = execute_and_wait(program);
  Attempt made{allocator, results_in(folder), 0, {}};
  made.results.met = meeting.end();
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  if (!code.ok()) return code.take_status();
  made.code = code.value();
  forgive_refusals(made.results.users, made.code);
  made.verdict = judge(made.results, made.code);
  // SPILLWAY_DISABLE may have the last word.
  const std::vector<Parsed>& users = made.results.users;
  if (!users.empty() && allocator == "spillway") made.allocator = users.front().value("allocator", allocator);
  return made;
}

Parsed json_of(const Attempt& made, uint64_t gpu_bytes) {
  return {{"gpu_memory_bytes", gpu_bytes},
          {"allocator", made.allocator},
          {"exit_code", made.code},
          {"verdict", name_of(made.verdict)},
          {"out_of_memory", made.verdict == Verdict::kOutOfMemory},
          {"collectives",
           {{"problem", made.results.met.kind},
            {"ranks", made.results.met.lines},
            {"notes", made.results.met.notes}}},
          {"processes", made.results.users}};
}

// One line for each allocator, of the rank and the device that has most.
std::string comparison(const std::vector<Attempt>& attempts, uint64_t gpu_bytes) {
  std::string out = fmt::format("spillway dryrun: simulated device of {}\n", format_size(gpu_bytes));
  out += fmt::format("  {:<12}{:>16}{:>16}  {}\n", "allocator", "peak allocated", "peak reserved", "");
  for (const Attempt& made : attempts) {
    uint64_t allocated = 0;
    uint64_t reserved = 0;
    for (const Parsed& result : made.results.users) {
      for (const Parsed& device : result["devices"]) {
        allocated = std::max(allocated, device.value("peak_allocated_bytes", uint64_t{0}));
        reserved = std::max(reserved, device.value("peak_reserved_bytes", uint64_t{0}));
      }
    }
    out += fmt::format("  {:<12}{:>16}{:>16}  {}\n", made.allocator, format_size(allocated),
                       format_size(reserved), explain(made.verdict, made.results, made.code));
  }
  for (const Attempt& made : attempts) {
    for (const Parsed& result : made.results.users) {
      if (const std::string lines = refusals(result); !lines.empty())
        out += fmt::format("  {}:\n{}", made.allocator, lines);
    }
  }
  return out + caveat(attempts.front().results.users);
}

}  // namespace

int dryrun(const DryrunChoices& choices, std::vector<std::string> program) {
  if (Status status = set_device(choices); !status.ok()) return complain(status);
  if (Status status = start_with_package(program); !status.ok()) return complain(status);
  Result<std::string> libraries = preload_simulation(python_of(program));
  if (!libraries.ok()) return complain(libraries.take_status());
  Result<int> ranks = choose_ranks(choices.ranks, choices.world_size, choices.devices, program);
  if (!ranks.ok()) return complain(ranks.take_status());

  const std::vector<std::string> allocators =
      choices.compare ? kDryrunAllocators : std::vector<std::string>{choices.allocator};
  std::vector<Attempt> attempts;
  for (const std::string& allocator : allocators) {
    if (choices.compare) std::fprintf(stderr, "spillway dryrun: allocator %s\n", allocator.c_str());
    Result<Attempt> made = attempt(allocator, program, libraries.value(), ranks.value());
    if (!made.ok()) return complain(made.take_status());
    attempts.push_back(std::move(made.value()));
  }
  const uint64_t gpu_bytes = *parse_size(choices.gpu_memory);
  const Attempt& first = attempts.front();
  if (choices.json) {
    Parsed all = json_of(first, gpu_bytes);
    if (choices.compare) {
      all = {{"gpu_memory_bytes", gpu_bytes}, {"runs", Parsed::array()}};
      for (const Attempt& made : attempts) all["runs"].push_back(json_of(made, gpu_bytes));
    }
    std::fprintf(stderr, "%s\n", all.dump(2).c_str());
  } else if (choices.compare) {
    std::fputs(comparison(attempts, gpu_bytes).c_str(), stderr);
  } else {
    std::fputs(report(first.results, gpu_bytes, first.allocator, first.verdict, first.code).c_str(), stderr);
  }
  return exit_code(first.verdict, first.code);
}

}  // namespace spillway
