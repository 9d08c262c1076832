#include "cli/launch/dryrun_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "cli/launch/peak_holders.h"
#include "cli/launch/program.h"
#include "cli/launch/rank_classes.h"
#include "cli/launch/refusals.h"
#include "cli/launch/values.h"
#include "cli/size.h"
#include "estimator/verdict.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;
using Parsed = nlohmann::json;

Json columns(const std::vector<std::pair<const char*, bool>>& named) {
  Json out = Json::array();
  for (const auto& [name, is_number] : named) out.push_back({name, is_number});
  return out;
}

Json table(const std::string& title, const std::string& note, Json named, Json rows) {
  Json out;
  out["title"] = title;
  out["note"] = note;
  out["columns"] = std::move(named);
  out["rows"] = std::move(rows);
  return out;
}

std::string size_of(const Parsed& row, const char* member) {
  return format_size(row.value(member, uint64_t{0}));
}

Json peaks_table(const std::vector<DryrunClass>& classes) {
  Json rows = Json::array();
  for (const DryrunClass& one : classes) {
    const Parsed& device = *one.device;
    rows.push_back({title_of(one), size_of(device, "peak_allocated_bytes"),
                    size_of(device, "peak_reserved_bytes"),
                    fmt::format("{}", device.value("num_ooms", uint64_t{0}))});
  }
  return table(
      "Peaks",
      "Allocated: what the program held of it at once; reserved: what the allocator needed for that.",
      columns({{"rank and device", false},
               {"peak allocated", true},
               {"peak reserved", true},
               {"out of memory", true}}),
      std::move(rows));
}

void add_holders(const std::vector<DryrunClass>& classes, Json& tables) {
  for (const DryrunClass& one : classes) {
    const Parsed& device = *one.device;
    const auto peak = device.find("peak");
    if (peak == device.end() || !peak->is_object()) continue;
    const Parsed& lines = (*peak)["lines"];
    const bool has_callers = std::any_of(lines.begin(), lines.end(), [](const Parsed& line) {
      return !line.value("called_at", std::string()).empty();
    });
    std::vector<std::pair<const char*, bool>> named = {
        {"bytes", true}, {"blocks", true}, {"what", false}, {"line", false}};
    if (has_callers) named.emplace_back("called at", false);
    Json rows = Json::array();
    for (const Parsed& line : lines) {
      rows.push_back({size_of(line, "bytes"), fmt::format("{}", line.value("blocks", uint64_t{1})),
                      what_is_held(line), line.value("where", std::string("?"))});
      if (has_callers) rows.back().push_back(line.value("called_at", std::string()));
    }
    tables.push_back(table(fmt::format("Lines that hold the peak of {}", title_of(one)),
                           moment_of(*peak) + ".", columns(named), std::move(rows)));
  }
}

Json needed_table(const DryrunResults& results, const FixedParts& fixed) {
  const uint64_t reserved = most_bytes(results, "peak_reserved_bytes");
  Json rows = Json::array();
  rows.push_back({"reserved", format_size(reserved)});
  rows.push_back({"+ context and libraries", format_size(fixed.context_bytes)});
  if (fixed.communicator_bytes > 0) rows.push_back({"+ NCCL", format_size(fixed.communicator_bytes)});
  rows.push_back({"= of a GPU", format_size(reserved + fixed.bytes())});
  return table("What it takes of a GPU", "", columns({{"", false}, {"bytes", true}}), std::move(rows));
}

Json gpus_table(const std::vector<GpuAnswer>& gpus) {
  Json rows = Json::array();
  for (const GpuAnswer& answer : gpus) {
    rows.push_back({answer.gpu.name, format_size(static_cast<uint64_t>(answer.gpu.bytes)),
                    answer.verdict ? estimator::verdict_name(*answer.verdict) : "not known",
                    answer.needed_bytes > 0 ? format_size(answer.needed_bytes) : ""});
  }
  return table("GPUs", "", columns({{"GPU", false}, {"memory", true}, {"verdict", false}, {"needed", true}}),
               std::move(rows));
}

// A text's lines, without what indents them.
void add_lines(const std::string& text, Json& out) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find_first_not_of(' ');
    if (begin != std::string::npos) out.push_back(line.substr(begin));
  }
}

Json sentences(const Attempt& made) {
  const DryrunResults& results = made.results;
  Json out = Json::array();
  out.push_back(fmt::format("On a simulated device of {} with the allocator {}: {}.",
                            format_size(made.capacity_bytes), made.allocator,
                            explain(made.verdict, results, made.code, made.signal)));
  for (const Parsed& result : results.users) add_lines(refusals(result), out);
  for (const std::string& crash : results.crashes) out.push_back(crash);
  for (const std::string& line : results.met.lines) out.push_back(line);
  for (const std::string& note : results.met.notes) out.push_back("note: " + note);
  add_lines(unreal_reads(results.users), out);
  add_lines(caveat(results.users), out);
  return out;
}

}  // namespace

std::string name_of_program(const std::vector<std::string>& program) {
  const auto base = [](const std::string& word) { return std::filesystem::path(word).filename().string(); };
  std::string first = base(program.front());
  if (!is_python(program.front())) return first;
  for (size_t i = 1; i < program.size(); ++i) {
    if (program[i] == "-c") return first + " -c";
    if (program[i] == "-m" && i + 1 < program.size()) return program[i + 1];
    if (!program[i].starts_with("-")) return base(program[i]);
  }
  return first;
}

Json dryrun_page(const std::string& program, const Attempt& made, const FixedParts& fixed,
                 const std::vector<GpuAnswer>& gpus) {
  const std::vector<DryrunClass> classes = classes_of(made.results.users);
  Json out;
  out["program"] = program;
  out["sentences"] = sentences(made);
  out["tables"] = Json::array();
  out["tables"].push_back(peaks_table(classes));
  if (!gpus.empty()) out["tables"].push_back(gpus_table(gpus));
  out["tables"].push_back(needed_table(made.results, fixed));
  add_holders(classes, out["tables"]);
  return out;
}

}  // namespace spillway
