// A report as one page that needs no network: a timeline, a map of addresses, and tables. The page draws
// itself from the report's JSON, which it holds; the charting library dygraphs is embedded.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/report/diff.h"
#include "cli/report/job.h"

namespace spillway {

// Returns what the page holds: report_json, and the pictures' own members `timelines`, `maps` and `flames`
// beside it.
nlohmann::ordered_json page_json(const JobReport& job, const std::optional<uint64_t>& fits);
// The same of a comparison: diff_json and `flames`.
nlohmann::ordered_json change_page_json(const RankReport& before, const RankReport& after, const Diff& diff,
                                        const std::vector<std::string>& exceeded);

// The page of one of these. `title` and `version` are text without letters that HTML has a meaning for.
std::string page_html(const nlohmann::ordered_json& page, const std::string& title,
                      const std::string& version);

}  // namespace spillway
