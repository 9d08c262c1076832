#include "cli/trace_model/recorded.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "cli/launch/attempt.h"
#include "cli/launch/child.h"
#include "cli/launch/program.h"
#include "cli/launch/ranks.h"
#include "cli/trace/file.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Summary = std::optional<Json>;

// Nothing is allocated on these; programs that ask for their size see this.
constexpr const char* kDevice = "capacity:80GiB,races:off,backing:none";
// Of all devices together: more than any program asks for, and no more than a file can have.
constexpr uint64_t kMostBytes = uint64_t{16} << 40;
// Exit codes of the Python side.
constexpr int kSaidWhy = 1;
constexpr int kRefused = 3;

// The files that the Python side writes, beside the trace.
struct Files {
  explicit Files(const std::string& trace)
      : trace(trace), summary(trace + ".summary"), refusal(trace + ".refusal") {}
  std::string trace;
  std::string summary;
  std::string refusal;
};

std::vector<std::string> program_of(const TraceSetting& setting, const Files& files,
                                    const std::string& python, const std::string& tensors) {
  std::vector<std::string> program = {python,           "-m",          "spillway._trace_model",
                                      setting.function, "--trace",     files.trace,
                                      "--summary",      files.summary, "--tensors",
                                      tensors,          "--steps",     std::to_string(setting.steps)};
  if (setting.bound) program.insert(program.end(), {"--bound", fmt::format("{}", *setting.bound)});
  return program;
}

std::vector<std::string> on_fake_tensors(const TraceSetting& setting, const Files& files,
                                         const std::string& python) {
  std::vector<std::string> program = program_of(setting, files, python, "fake");
  if (setting.strict) program.emplace_back("--strict");
  if (setting.world_size > 0)
    program.insert(program.end(),
                   {"--world-size", std::to_string(setting.world_size), "--rank",
                    std::to_string(setting.rank), "--devices", std::to_string(setting.devices)});
  return program;
}

Result<Summary> read_summary(const Files& files, int code) {
  if (code == kSaidWhy) return Summary();
  std::error_code error;
  if (code != 0 || !fs::exists(files.summary, error))
    return Status::io(fmt::format("the program ended with code {} before its steps were done", code));
  std::ifstream file(files.summary);
  Json summary = Json::parse(file, nullptr, false);
  if (summary.is_discarded()) return Status::io("the summary of the trace cannot be read");
  return Summary(std::move(summary));
}

// `refusal`: why fake tensors cannot show it, where that is not to be an error.
Result<Summary> record_fake(const TraceSetting& setting, const Files& files, const std::string& python,
                            std::string* refusal) {
  ::setenv("SPILLWAY_SIM", fmt::format("{},devices:{}", kDevice, setting.devices).c_str(), 1);
  ::unsetenv("SPILLWAY_RUN");
  std::vector<std::string> program = on_fake_tensors(setting, files, python);
  if (refusal != nullptr) program.insert(program.end(), {"--refusal", files.refusal});
  Result<int> code = execute_and_wait(program);
  if (!code.ok()) return code.take_status();
  if (refusal == nullptr || code.value() != kRefused) return read_summary(files, code.value());
  std::error_code error;
  if (!fs::exists(files.refusal, error)) return read_summary(files, code.value());
  Result<std::string> why = read_file(files.refusal);
  if (!why.ok()) return why.take_status();
  *refusal = why.value();
  return Summary();
}

// Looks at values that are not real, as `spillway dryrun` tells them.
void add_reads(const DryrunResults& results, Json* findings) {
  Json places = Json::array();
  for (const nlohmann::json& user : results.users) {
    for (const nlohmann::json& read : user.value("unreal_reads", nlohmann::json::array()))
      places.push_back({{"place", read.at("where")}, {"count", read.at("times")}});
  }
  if (places.empty()) return;
  const char* text = "a value that is not real was read: the program may go another way on a GPU";
  findings->push_back({{"kind", "value-read"}, {"text", text}, {"places", std::move(places)}});
}

// One line for --strict.
std::string text_of(const Json& findings) {
  std::vector<std::string> texts;
  for (const Json& finding : findings) {
    std::vector<std::string> places;
    for (const Json& place : finding.at("places")) places.push_back(place.at("place").get<std::string>());
    texts.push_back(fmt::format("{} ({})", finding.at("text").get<std::string>(), fmt::join(places, ", ")));
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

// `because`: why not on fake tensors, where that was tried.
Result<Summary> record_on_device(const TraceSetting& setting, const Files& files, const std::string& python,
                                 const std::string& libraries, const std::string& because) {
  AttemptSetting run;
  run.program = program_of(setting, files, python, "device");
  if (!because.empty()) run.program.insert(run.program.end(), {"--because", because});
  run.libraries = libraries;
  run.devices = setting.devices;
  run.keeps_bytes = setting.keeps_bytes;
  if (Status status = start_with_package(run.program); !status.ok()) return status;
  const std::string rank = setting.world_size > 0 ? std::to_string(setting.rank) : "";
  Result<int> ranks = choose_ranks(rank, setting.world_size, setting.devices, run.program);
  if (!ranks.ok()) return ranks.take_status();
  run.ranks = ranks.value();
  ::setenv("SPILLWAY_DRYRUN_VALUES", setting.keeps_bytes ? "small" : "none", 1);
  const Forwarding forwarding;
  Result<Attempt> made = attempt(run, "native", kMostBytes / static_cast<uint64_t>(setting.devices));
  if (!made.ok()) return made.take_status();
  if (const MeetingResult& met = made->results.met; !met.kind.empty())
    return Status::invalid_argument(fmt::format("{}: {}", met.kind, fmt::join(met.lines, "; ")));
  Result<Summary> summary = read_summary(files, made->code);
  if (!summary.ok() || !summary->has_value()) return summary;
  Json& findings = summary.value()->at("findings");
  add_reads(made->results, &findings);
  if (setting.strict && !findings.empty()) return Status::invalid_argument(text_of(findings));
  return summary;
}

}  // namespace

bool is_of_device(const TraceSetting& setting) {
  return setting.tensors == "device" || !setting.keeps_bytes;
}

Result<Summary> record(const TraceSetting& setting, const std::string& trace) {
  if (Status status = import_package(); !status.ok()) return status;
  const std::string python = python_of({});
  Result<std::string> libraries = preload_simulation(python);
  if (!libraries.ok()) return libraries.take_status();
  ::unsetenv("CUDA_VISIBLE_DEVICES");  // of the machine's devices
  const Files files(trace);
  if (setting.tensors == "fake") return record_fake(setting, files, python, nullptr);
  std::string refusal;
  if (setting.tensors == "auto" && !is_of_device(setting)) {
    Result<Summary> summary = record_fake(setting, files, python, &refusal);
    if (refusal.empty()) return summary;
    if (setting.bound) refusal += "; --bound was not used: on the simulated device sizes are computed";
  }
  return record_on_device(setting, files, python, libraries.value(), refusal);
}

}  // namespace spillway
