// Says what a traced model needs, for people and as docs/schema/trace-model.schema.json says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "cli/replay/run.h"
#include "driver/status.h"

namespace spillway {

struct TracedModel {
  nlohmann::ordered_json summary;  // as python/spillway/_trace_model/__main__.py writes it
  RunResult unlimited;             // the replay on a device that is large enough
  std::optional<uint64_t> capacity_bytes;
  RunResult at_capacity;   // where there is one
  std::string trace_path;  // of the file that is kept; empty: none

  bool fits() const { return !capacity_bytes || at_capacity.ooms == 0; }
};

nlohmann::ordered_json to_json(const TracedModel& model);
std::string to_text(const TracedModel& model);

}  // namespace spillway
