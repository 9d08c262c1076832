#include "cli/launch/peak_holders.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "cli/size.h"

namespace spillway {
namespace {

using Parsed = nlohmann::json;

constexpr size_t kMostLines = 8;

struct KindName {
  const char* member;
  const char* text;
};
constexpr std::array<KindName, 5> kKinds = {{{"parameters", "parameters"},
                                             {"gradients", "gradients"},
                                             {"optimizer_states", "optimizer states"},
                                             {"buffers", "buffers"},
                                             {"others", "activations and others"}}};

std::string kind_text(const std::string& member) {
  const auto found =
      std::find_if(kKinds.begin(), kKinds.end(), [&](const KindName& kind) { return kind.member == member; });
  return found == kKinds.end() ? member : found->text;
}

// They sum to what was allocated.
std::string sum(const Parsed& peak, uint64_t allocated) {
  std::vector<std::string> parts;
  for (const auto& [member, text] : kKinds) {
    if (const uint64_t bytes = peak["kinds"].value(member, uint64_t{0}); bytes > 0)
      parts.push_back(fmt::format("{} {}", text, format_size(bytes)));
  }
  const uint64_t requested = peak.value("requested_bytes", uint64_t{0});
  if (allocated > requested) parts.push_back(fmt::format("rounding {}", format_size(allocated - requested)));
  return fmt::format("{} = {}", fmt::join(parts, " + "), format_size(std::max(allocated, requested)));
}

std::string line_text(const Parsed& line) {
  const uint64_t blocks = line.value("blocks", uint64_t{1});
  std::string out = fmt::format("{:>12}  {:<17} {}", format_size(line.value("bytes", uint64_t{0})),
                                what_is_held(line), line.value("where", std::string("?")));
  if (blocks > 1) out += fmt::format(" ({} blocks)", blocks);
  if (const std::string caller = line.value("called_at", std::string()); !caller.empty())
    out += fmt::format("\n{:>33}called at {}", "", caller);
  return out;
}

}  // namespace

std::string what_is_held(const Parsed& line) {
  const std::string kind = line.value("kind", std::string());
  return kind == "others" ? line.value("phase", std::string()) : kind_text(kind);
}

std::string moment_of(const Parsed& peak) {
  const std::string phase = peak.value("phase", std::string());
  return fmt::format("the peak is in {}{}, at {}", phase,
                     phase == "load" ? "" : fmt::format(" of step {}", peak.value("step", 0)),
                     peak.value("where", std::string("?")));
}

std::string peak_holders(const Parsed& device) {
  const auto peak = device.find("peak");
  if (peak == device.end() || !peak->is_object()) return "";
  std::string out = fmt::format("    {}\n", moment_of(*peak));
  out += fmt::format("      {}\n", sum(*peak, device.value("peak_allocated_bytes", uint64_t{0})));
  const Parsed& lines = (*peak)["lines"];
  for (size_t i = 0; i < std::min(lines.size(), kMostLines); ++i) {
    out += fmt::format("      {}\n", line_text(lines[i]));
  }
  uint64_t left_out = peak->value("left_out_bytes", uint64_t{0});
  for (size_t i = kMostLines; i < lines.size(); ++i) left_out += lines[i].value("bytes", uint64_t{0});
  if (left_out > 0) out += fmt::format("      {:>12}  other lines: --json\n", format_size(left_out));
  return out;
}

}  // namespace spillway
