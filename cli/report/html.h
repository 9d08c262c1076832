// A report as one page that needs no network: a timeline, a map of addresses, and tables. The page draws
// itself from the report's JSON, which it holds; the charting library dygraphs is embedded.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cli/report/job.h"

namespace spillway {

// Returns what the page holds: report_json, and the picture's own members `timelines` and `maps` beside it.
nlohmann::ordered_json page_json(const JobReport& job, const std::optional<uint64_t>& fits);

std::string page_html(const nlohmann::ordered_json& page);

}  // namespace spillway
