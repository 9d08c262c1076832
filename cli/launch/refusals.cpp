#include "cli/launch/refusals.h"

#include <fmt/format.h>

#include "cli/size.h"

namespace spillway {

void forgive_refusals(std::vector<nlohmann::json>& processes, int code) {
  if (code != 0) return;
  for (nlohmann::json& process : processes) process.erase("oom");
}

std::string refusals(const nlohmann::json& process) {
  const int rank = process.value("rank", 0);
  const auto oom = process.find("oom");
  const std::string last = oom == process.end() ? "" : oom->value("refused_at", std::string());
  std::string out;
  for (const nlohmann::json& refusal : process.value("refusals", nlohmann::json::array())) {
    const std::string where = refusal.value("where", std::string("?"));
    const uint64_t times = refusal.value("times", uint64_t{1}) - (where == last ? 1 : 0);
    if (times == 0) continue;
    out += fmt::format("  rank {} was refused {} at {}, and went on{}\n", rank,
                       format_size(refusal.value("bytes", uint64_t{0})), where,
                       times == 1 ? "" : fmt::format(" ({} times)", times));
  }
  if (oom == process.end()) return out;
  return out +
         fmt::format("  rank {} died of device memory at {}\n", rank, oom->value("where", std::string("?")));
}

}  // namespace spillway
