#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/doctor/probe.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kResident = "aliasing_resident";

// In the order of what they give up.
enum class Trust : uint8_t { kOrdinary, kCareful, kPlain };
constexpr const char* kWords[] = {"ordinary", "careful", "plain"};

// One finding of the probe, what it must be, and what a driver deserves where it is not. The claims behind
// them: docs/hardware-proof.md.
struct Claim {
  const char* name;
  const char* section;
  const char* field;  // below the section
  Json holds;
  Trust otherwise;
  bool is_needed = true;  // false: a device may lack what it is about
};

const std::vector<Claim>& claims() {
  static const std::vector<Claim> kClaims = {
      {"probe_next_launch", "aliasing", "/wrong_words_next_launch_same_stream", 0, Trust::kPlain},
      {"probe_across_streams", "aliasing", "/wrong_words_across_streams_by_event", 0, Trust::kPlain},
      {"probe_shared_edge", "aliasing", "/wrong_words_shared_edge", 0, Trust::kCareful},
      {"probe_running_dependent", kResident, "/wrong_words_dependent", 0, Trust::kCareful, false},
      {"probe_running_beside", kResident, "/wrong_words_beside", 0, Trust::kCareful},
      {"probe_running_edge", kResident, "/cases/edge_512/wrong_words", 0, Trust::kCareful},
      {"probe_remapped", "remap_to_host", "/wrong_words_after_swap", 0, Trust::kPlain, false},
      // Without it, a program warms up before it captures.
      {"probe_made_in_capture", "captured_streams", "/memory_is_made_and_mapped/capture_survives", true,
       Trust::kOrdinary, false},
  };
  return kClaims;
}

// Returns what keeps a section from saying anything of a field; empty: nothing.
std::string silence(const Json& section, const std::string& field) {
  const Json silent = section.value("says_nothing", Json::array());
  const std::string top = field.substr(1, field.find('/', 1) - 1);
  if (std::find(silent.begin(), silent.end(), Json(top)) != silent.end()) return "no kernels run here";
  if (section.contains("ended_after_seconds")) return "it took too long";
  for (const char* why : {"error", "absent"}) {
    if (section.contains(why)) return section[why].is_string() ? section[why].get<std::string>() : why;
  }
  return "";
}

// The checks of running kernels say something only where they can fail, and their controls do not.
bool has_sound_controls(const Json& section) {
  return section.value("checks_can_fail", Json()) == Json(true) &&
         section.value("wrong_words_controls", Json()) == Json(0);
}

Check check(const Json& report, const Claim& claim, int device) {
  Check found{claim.name, CheckAnswer::kUnknown, "", device};
  const Json section = report.value(claim.section, Json());
  if (!section.is_object()) {
    found.detail = "the probe did not come to it";
    return found;
  }
  if (section.contains("crashed")) {
    found.answer = CheckAnswer::kNo;
    found.detail = "the driver ended the process: " + section["crashed"].dump();
    return found;
  }
  found.detail = silence(section, claim.field);
  if (!found.detail.empty()) return found;
  const Json::json_pointer field(claim.field);
  if (!section.contains(field)) {
    found.detail = "the probe does not say";
  } else if (claim.section == std::string(kResident) && !has_sound_controls(section)) {
    found.detail = "its controls failed";
  } else {
    const bool holds = section[field] == claim.holds;
    found.answer = holds ? CheckAnswer::kYes : CheckAnswer::kNo;
    if (!holds) found.detail = fmt::format("{}{}: {}", claim.section, claim.field, section[field].dump());
  }
  return found;
}

}  // namespace

std::optional<std::string> judge(std::string_view text, int device, std::vector<Check>& checks) {
  const Json report = Json::parse(text, nullptr, false);
  const bool is_report = report.is_object();
  bool is_complete = true;
  Trust least = Trust::kOrdinary;
  for (const Claim& claim : claims()) {
    checks.push_back(check(is_report ? report : Json::object(), claim, device));
    const CheckAnswer answer = checks.back().answer;
    if (answer == CheckAnswer::kNo) least = std::max(least, claim.otherwise);
    if (answer == CheckAnswer::kUnknown && claim.is_needed) is_complete = false;
  }
  // Of a simulated device nothing follows for a driver. What was found wrong counts, whatever is left out.
  const bool is_driver = is_report && report.value("simulated", Json()) == Json(false);
  if (!is_driver || (!is_complete && least == Trust::kOrdinary)) return std::nullopt;
  return kWords[static_cast<size_t>(least)];
}

}  // namespace spillway
