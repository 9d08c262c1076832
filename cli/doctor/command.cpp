#include "cli/doctor/command.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/doctor/checks.h"
#include "cli/output.h"
#include "include/spillway/spillway.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

struct DoctorOptions {
  bool json = false;
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

Json to_json(const Examination& found) {
  Json checks = Json::array();
  for (const Check& check : found.checks) {
    checks.push_back({{"name", check.name},
                      {"device", check.device.has_value() ? Json(*check.device) : Json(nullptr)},
                      {"answer", word_of(check.answer)},
                      {"detail", check.detail}});
  }
  return {{"schema_version", 1}, {"can_serve", found.can_serve}, {"checks", std::move(checks)}};
}

std::string to_text(const Examination& found) {
  std::string text;
  for (const Check& check : found.checks) {
    const std::string name =
        check.device.has_value() ? fmt::format("{} {}", check.name, *check.device) : check.name;
    text += fmt::format("{:<30}{:<9}{}\n", name, word_of(check.answer), check.detail);
  }
  return text + (found.can_serve ? "Spillway can serve here.\n" : "Spillway cannot serve here.\n");
}

int run(const DoctorOptions& asked) {
  Examination found = examine_devices();
  std::vector<Check> host = examine_host(spill_directory());
  std::move(host.begin(), host.end(), std::back_inserter(found.checks));
  // Texts of the system need not be UTF-8.
  const Status status =
      write_stdout(asked.json ? to_json(found).dump(1, ' ', false, Json::error_handler_t::replace) + "\n"
                              : to_text(found));
  if (!status.ok()) {
    std::fprintf(stderr, "spillway: %s\n", status.text().c_str());
    return 1;
  }
  return found.can_serve ? 0 : 2;
}

}  // namespace

std::function<std::optional<int>()> add_doctor_command(CLI::App& app) {
  auto asked = std::make_shared<DoctorOptions>();
  CLI::App* command =
      app.add_subcommand("doctor", "what this machine offers, and whether Spillway can serve");
  command->add_flag("--json", asked->json, "JSON instead of text");
  return [=]() -> std::optional<int> {
    if (!command->parsed()) return std::nullopt;
    return run(*asked);
  };
}

}  // namespace spillway
