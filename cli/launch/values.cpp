#include "cli/launch/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace spillway {

// The lines of the program that looked at values which are not real, those that looked most often first.
std::string unreal_reads(const std::vector<nlohmann::json>& processes) {
  constexpr size_t kMostLines = 10;
  std::map<std::string, uint64_t> times;
  std::map<std::string, uint64_t> ended;
  for (const nlohmann::json& process : processes) {
    for (const nlohmann::json& read : process.value("unreal_reads", nlohmann::json::array())) {
      const std::string where = read.value("where", std::string("?"));
      times[where] += read.value("times", uint64_t{0});
      ended[where] += read.value("loops_ended", uint64_t{0});
    }
  }
  if (times.empty()) return "";
  std::vector<std::pair<std::string, uint64_t>> lines(times.begin(), times.end());
  std::stable_sort(lines.begin(), lines.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string out =
      "  the program looked at values that are not real, and may have gone another way than on a GPU, at\n";
  for (size_t i = 0; i < std::min(lines.size(), kMostLines); ++i) {
    const auto& [where, looks] = lines[i];
    const uint64_t loops = ended.at(where);
    out += fmt::format("    {} ({} times{})\n", where, looks,
                       loops == 0 ? "" : "; a loop waited there for another value, and got one");
  }
  if (lines.size() > kMostLines)
    out += fmt::format("    and {} more lines: --json\n", lines.size() - kMostLines);
  return out;
}

// Says what of a run is not to be believed.
std::string caveat(const std::vector<nlohmann::json>& processes) {
  const auto computes = [](const nlohmann::json& process) {
    return process.value("values", std::string("none")) != "none";
  };
  const bool some = std::any_of(processes.begin(), processes.end(), computes);
  return fmt::format(
      "  sizes are meant; {}, times and libraries' own memory are meaningless here: docs/{}.md\n",
      some ? "values that are not computed" : "values", some ? "dryrun" : "pytorch");
}

}  // namespace spillway
