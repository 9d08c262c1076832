// A report as JSON: docs/schema/report.schema.json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/report/job.h"

namespace spillway {

// `fits`: a request to be answered for.
nlohmann::ordered_json report_json(const JobReport& job, const std::optional<uint64_t>& fits);

nlohmann::ordered_json parts_json(const Parts& parts);
nlohmann::ordered_json classes_json(const std::vector<ClassRow>& classes);
nlohmann::ordered_json sites_json(const std::vector<SiteRow>& sites);

// Takes folders, names of machines and names of users out of every text, keys included.
void redact_json(nlohmann::ordered_json& value);

// Names come from the outside and need not be UTF-8.
std::string dump_json(const nlohmann::ordered_json& value, int indent);

}  // namespace spillway
