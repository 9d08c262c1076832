#include "cli/launch/dryrun_answer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "cli/launch/allocators.h"
#include "cli/launch/child.h"
#include "cli/launch/peak_holders.h"
#include "cli/launch/rank_classes.h"
#include "cli/launch/refusals.h"
#include "cli/launch/values.h"
#include "cli/size.h"

namespace spillway {
namespace {

using Parsed = nlohmann::json;

std::string class_text(const DryrunClass& one) {
  const Parsed& device = *one.device;
  return fmt::format("  {}: peak allocated {}, peak reserved {}, {} out of memory\n", title_of(one),
                     format_size(device.value("peak_allocated_bytes", uint64_t{0})),
                     format_size(device.value("peak_reserved_bytes", uint64_t{0})),
                     device.value("num_ooms", uint64_t{0})) +
         peak_holders(device);
}

std::string needed_text(const DryrunResults& results, const FixedParts& fixed) {
  const uint64_t reserved = most_bytes(results, "peak_reserved_bytes");
  if (reserved == 0) return "";
  std::string out = fmt::format("  of a GPU: reserved {} + context and libraries {}", format_size(reserved),
                                format_size(fixed.context_bytes));
  if (fixed.communicator_bytes > 0) out += fmt::format(" + NCCL {}", format_size(fixed.communicator_bytes));
  return out + fmt::format(" = {}\n", format_size(reserved + fixed.bytes()));
}

}  // namespace

std::string dryrun_text(const Attempt& made, const FixedParts& fixed, const std::vector<GpuAnswer>& gpus) {
  const DryrunResults& results = made.results;
  std::string out = fmt::format("spillway dryrun: simulated device of {}, allocator {}\n",
                                format_size(made.capacity_bytes), made.allocator);
  for (const DryrunClass& one : classes_of(results.users)) out += class_text(one);
  for (const Parsed& result : results.users) out += refusals(result);
  for (const std::string& crash : results.crashes) out += fmt::format("  {}\n", crash);
  out += needed_text(results, fixed);
  out += fmt::format("  {}\n", explain(made.verdict, results, made.code, made.signal));
  out += gpus_text(gpus);
  for (const std::string& line : results.met.lines) out += fmt::format("    {}\n", line);
  for (const std::string& note : results.met.notes) out += fmt::format("  note: {}\n", note);
  return out + unreal_reads(results.users) + caveat(results.users);
}

Parsed dryrun_json(const Attempt& made, const FixedParts& fixed, const std::vector<GpuAnswer>& gpus) {
  Parsed processes = made.results.users;
  for (Parsed& process : processes) process.erase("snapshot");  // it is gone by then
  return {
      {"schema_version", 1},
      {"gpu_memory_bytes", made.capacity_bytes},
      {"allocator", made.allocator},
      {"exit_code", made.code},
      {"verdict", name_of(made.verdict)},
      {"signal", made.signal == 0 ? Parsed() : Parsed(name_of_signal(made.signal))},
      {"out_of_memory", made.verdict == DryrunVerdict::kOutOfMemory},
      {"collectives",
       {{"problem", made.results.met.kind},
        {"ranks", made.results.met.lines},
        {"notes", made.results.met.notes}}},
      {"outside", {{"context_bytes", fixed.context_bytes}, {"communicator_bytes", fixed.communicator_bytes}}},
      {"gpus", gpus_json(gpus)},
      {"classes", classes_json(classes_of(made.results.users))},
      {"crashes", made.results.crashes},
      {"processes", std::move(processes)}};
}

std::string comparison_text(const std::vector<Attempt>& attempts) {
  std::string out =
      fmt::format("spillway dryrun: simulated device of {}\n", format_size(attempts.front().capacity_bytes));
  out += fmt::format("  {:<12}{:>16}{:>16}  {}\n", "allocator", "peak allocated", "peak reserved", "");
  for (const Attempt& made : attempts) {
    out += fmt::format("  {:<12}{:>16}{:>16}  {}\n", made.allocator,
                       format_size(most_bytes(made.results, "peak_allocated_bytes")),
                       format_size(most_bytes(made.results, "peak_reserved_bytes")),
                       explain(made.verdict, made.results, made.code, made.signal));
  }
  for (const Attempt& made : attempts) {
    for (const Parsed& result : made.results.users) {
      if (const std::string lines = refusals(result); !lines.empty())
        out += fmt::format("  {}:\n{}", made.allocator, lines);
    }
  }
  if (attempts.size() < kDryrunAllocators.size()) {
    out += fmt::format("  not run, as {} came: {}\n", name_of_signal(signal_after(attempts.back())),
                       fmt::join(kDryrunAllocators.begin() + static_cast<ptrdiff_t>(attempts.size()),
                                 kDryrunAllocators.end(), ", "));
  }
  return out + caveat(attempts.front().results.users);
}

Parsed comparison_json(const std::vector<Attempt>& attempts, const FixedParts& fixed) {
  Parsed runs = Parsed::array();
  for (const Attempt& made : attempts) runs.push_back(dryrun_json(made, fixed, {}));
  return {{"schema_version", 1},
          {"gpu_memory_bytes", attempts.front().capacity_bytes},
          {"runs", std::move(runs)}};
}

}  // namespace spillway
