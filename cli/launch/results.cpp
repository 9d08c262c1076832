#include "cli/launch/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "cli/launch/child.h"
#include "cli/launch/crashes.h"

namespace spillway {
namespace {

using Parsed = nlohmann::json;

// Says of a run that a signal ended what was seen until then.
std::string explain_end(const DryrunResults& results, const std::string& signal) {
  if (!results.watched)
    return fmt::format("it was ended by {}, and no process had imported PyTorch by then", signal);
  if (!results.complete)
    return fmt::format(
        "it was ended by {}, and a process that used CUDA was killed before it said what it used", signal);
  if (results.users.empty()) return fmt::format("it was ended by {} before it used CUDA memory", signal);
  return fmt::format("it was ended by {}: this is what was seen until then, and whether it fits is not known",
                     signal);
}

}  // namespace

DryrunResults results_in(const std::filesystem::path& folder) {
  DryrunResults results;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream file(entry.path());
    Parsed result = Parsed::parse(file, nullptr, false);
    results.watched = true;
    if (const std::string crash = crash_of(result, entry.path()); !crash.empty())
      results.crashes.push_back(crash);
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

uint64_t most_bytes(const DryrunResults& results, const char* member) {
  uint64_t most = 0;
  for (const Parsed& result : results.users) {
    for (const Parsed& device : result["devices"]) most = std::max(most, device.value(member, uint64_t{0}));
  }
  return most;
}

const char* name_of(DryrunVerdict verdict) {
  switch (verdict) {
    case DryrunVerdict::kFits:
      return "fits";
    case DryrunVerdict::kNothingUsed:
      return "nothing used";
    case DryrunVerdict::kOutOfMemory:
      return "out of memory";
    case DryrunVerdict::kStuck:
      return "stuck";
    case DryrunVerdict::kFailed:
      return "failed";
    case DryrunVerdict::kEnded:
      return "ended";
    case DryrunVerdict::kNotKnown:
      return "not known";
  }
  return "";
}

DryrunVerdict judge(const DryrunResults& results, int code, bool is_signalled) {
  const auto is_out_of_memory = [](const Parsed& result) { return result.contains("oom"); };
  if (code != 0 && std::any_of(results.users.begin(), results.users.end(), is_out_of_memory)) {
    return DryrunVerdict::kOutOfMemory;
  }
  if (!results.met.kind.empty()) return DryrunVerdict::kStuck;
  if (is_signalled && code != 0) return DryrunVerdict::kEnded;
  if (!results.watched || !results.complete) return DryrunVerdict::kNotKnown;
  if (code != 0) return DryrunVerdict::kFailed;
  return results.users.empty() ? DryrunVerdict::kNothingUsed : DryrunVerdict::kFits;
}

int exit_code(DryrunVerdict verdict, int code) {
  if (verdict == DryrunVerdict::kOutOfMemory) return 2;
  if (verdict == DryrunVerdict::kStuck) return 1;
  return verdict == DryrunVerdict::kNotKnown && code == 0 ? 1 : code;
}

std::string explain(DryrunVerdict verdict, const DryrunResults& results, int code, int signal) {
  switch (verdict) {
    case DryrunVerdict::kFits:
      return fmt::format("it ran to its end{}: it fits, as far as it ran",
                         signal == 0 ? "" : fmt::format(", which {} asked for", name_of_signal(signal)));
    case DryrunVerdict::kNothingUsed:
      return "it ran to its end, and used nothing of PyTorch's CUDA memory";
    case DryrunVerdict::kOutOfMemory:
      return "it does NOT fit";
    case DryrunVerdict::kStuck:
      return results.met.kind == "deadlock"
                 ? "DEADLOCK: every rank waits for another, and the job would hang"
                 : "MISMATCH: ranks that must meet call different collectives, and the job would hang";
    case DryrunVerdict::kFailed:
      return fmt::format("the program ended with code {}, for another reason than device memory", code);
    case DryrunVerdict::kEnded:
      return explain_end(results, name_of_signal(signal));
    case DryrunVerdict::kNotKnown:
      break;
  }
  return fmt::format("not known{}: {}", code == 0 ? "" : fmt::format(" why it ended with code {}", code),
                     results.watched
                         ? "a process that used CUDA was killed or crashed, and what it used is lost"
                         : "no process imported PyTorch where Spillway sees it, which it does not "
                           "where PYTHONPATH is replaced, or Python has -E, -I or -S");
}

}  // namespace spillway
