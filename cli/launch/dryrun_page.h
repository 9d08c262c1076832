// Makes what the page of a dry run (--html) says above the picture of its memory.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/launch/attempt.h"
#include "cli/launch/gpus.h"

namespace spillway {

// Returns the name by which people call a command: its script, module or program, without folders.
std::string name_of_program(const std::vector<std::string>& program);

// {"program", "sentences", "tables": [{"title", "note", "columns": [[name, is a number]], "rows"}]}, all of
// them as they are shown.
nlohmann::ordered_json dryrun_page(const std::string& program, const Attempt& made, const FixedParts& fixed,
                                   const std::vector<GpuAnswer>& gpus);

}  // namespace spillway
