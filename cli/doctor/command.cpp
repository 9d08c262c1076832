#include "cli/doctor/command.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/doctor/checks.h"
#include "cli/doctor/grades.h"
#include "cli/doctor/probe.h"
#include "cli/help/values.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "include/spillway/spillway.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

struct DoctorOptions {
  std::string output;
  bool json = false;
  bool probe = false;
};

const char* word_of(CheckAnswer answer) {
  switch (answer) {
    case CheckAnswer::kYes:
      return "yes";
    case CheckAnswer::kNo:
      return "no";
    case CheckAnswer::kUnknown:
      break;
  }
  return "unknown";
}

// Returns where memory is spilled, or could be.
std::string spill_directory() {
  std::vector<char> text(4096);
  const bool is_set =
      spw_conf_get("spill_dir", text.data(), text.size(), nullptr) == SPW_OK && text[0] != '\0';
  return is_set ? text.data() : std::filesystem::temp_directory_path().string();
}

Json to_json(const Examination& found, const std::optional<Probed>& probed) {
  Json checks = Json::array();
  for (const Check& check : found.checks) {
    checks.push_back({{"name", check.name},
                      {"device", check.device.has_value() ? Json(*check.device) : Json(nullptr)},
                      {"answer", word_of(check.answer)},
                      {"detail", check.detail},
                      {"grade", word_of(grade_of(check).grade)},
                      {"advice", grade_of(check).advice}});
  }
  Json out = {{"schema_version", 1}, {"can_serve", found.can_serve}, {"checks", std::move(checks)}};
  if (!probed.has_value()) return out;
  Json& profiles = out["profiles"] = Json::array();
  for (const Verdict& verdict : probed->verdicts) {
    profiles.push_back({{"device", verdict.device},
                        {"device_name", verdict.device_name},
                        {"driver", verdict.driver},
                        {"profile", verdict.profile.has_value() ? Json(*verdict.profile) : Json(nullptr)},
                        {"kept_in", verdict.kept_in.empty() ? Json(nullptr) : Json(verdict.kept_in)}});
  }
  return out;
}

std::string to_text(const Verdict& verdict) {
  const std::string what = fmt::format("The driver {} with {}", verdict.driver, verdict.device_name);
  if (!verdict.profile.has_value()) return fmt::format("{}: which profile it deserves is not known.\n", what);
  return fmt::format("{} deserves the profile {}: kept in {}.\n", what, *verdict.profile, verdict.kept_in);
}

// "ok", "warn" or "bad", green, yellow or red.
std::string mark_of(Grade grade, bool has_colour) {
  constexpr std::array<int, 3> kColours = {32, 33, 31};
  const std::string word = fmt::format("{:<5}", word_of(grade));
  return has_colour ? fmt::format("\x1b[{}m{}\x1b[0m", kColours[static_cast<size_t>(grade)], word) : word;
}

std::string to_text(const Check& check, bool has_colour) {
  const std::string name =
      check.device.has_value() ? fmt::format("{} {}", check.name, *check.device) : check.name;
  const Graded graded = grade_of(check);
  std::string text = fmt::format("{} {:<28}{:<9}{}\n", mark_of(graded.grade, has_colour), name,
                                 word_of(check.answer), check.detail);
  if (!graded.advice.empty()) text += fmt::format("      {:<28}-> {}\n", "", graded.advice);
  return text;
}

std::string to_text(const Examination& found, const std::optional<Probed>& probed, bool has_colour) {
  std::string text;
  for (const Check& check : found.checks) text += to_text(check, has_colour);
  if (probed.has_value())
    for (const Verdict& verdict : probed->verdicts) text += to_text(verdict);
  return text + (found.can_serve ? "Spillway can serve here.\n" : "Spillway cannot serve here.\n");
}

int fail(const Status& status) {
  std::fprintf(stderr, "spillway: %s\n", status.text().c_str());
  return 1;
}

int run(const DoctorOptions& asked) {
  if (const Status status = check_folder(asked.output); !status.ok()) return fail(status);
  Examination found = examine_devices();
  std::vector<Check> host = examine_host(spill_directory(), found.driver_version);
  std::move(host.begin(), host.end(), std::back_inserter(found.checks));
  std::optional<Probed> probed;
  if (asked.probe && found.can_serve) {
    Result<Probed> answer = probe_devices();
    if (!answer.ok()) return fail(answer.status());
    probed = std::move(answer.value());
    found.checks.insert(found.checks.end(), probed->checks.begin(), probed->checks.end());
  }
  // Texts of the system need not be UTF-8.
  const Status status = write_answer(
      asked.output, asked.json
                        ? to_json(found, probed).dump(1, ' ', false, Json::error_handler_t::replace) + "\n"
                        : to_text(found, probed, asked.output.empty() && has_colours()));
  if (!status.ok()) return fail(status);
  return found.can_serve ? 0 : 2;
}

}  // namespace

std::function<std::optional<int>()> add_doctor_command(CLI::App& app) {
  auto asked = std::make_shared<DoctorOptions>();
  CLI::App* command =
      app.add_subcommand("doctor", "Say what this machine offers, and whether Spillway can serve");
  command->group("Watch a machine");
  command->add_option("--output", asked->output, "Write the answer to this file instead of stdout")
      ->type_name("FILE")
      ->check(file_to_write());
  command->add_flag("--json", asked->json, "JSON instead of text");
  command->add_flag("--probe", asked->probe,
                    "Try in 20 s what is relied on, and keep which profile the driver deserves");
  set_examples(*command, {{"Can Spillway serve here?", "spillway doctor"},
                          {"Which profile does the driver deserve?", "spillway doctor --probe"}});
  return [=]() -> std::optional<int> {
    if (!command->parsed()) return std::nullopt;
    return run(*asked);
  };
}

}  // namespace spillway
