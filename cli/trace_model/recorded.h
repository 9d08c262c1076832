// Runs the step of a traced model: on fake tensors, or on the simulated device as a dry run does.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "driver/status.h"

namespace spillway {

struct TraceSetting {
  std::string function;
  int steps = 2;
  bool strict = false;
  std::string tensors = "auto";  // or "fake", "device"
  std::optional<double> bound;  // of results whose size depends on values: a share of the largest; fake alone
  // Of the job, where there is one.
  int world_size = 0;
  int rank = 0;
  int devices = 1;          // of each node
  bool keeps_bytes = true;  // of the simulated device alone
};

// What is asked for is had on the simulated device alone.
bool is_of_device(const TraceSetting& setting);

// Answers the summary as python/spillway/_trace_model/__main__.py writes it, and leaves the trace in the
// file. Nothing: the program said itself what is wrong. Errors: io, invalid_argument.
Result<std::optional<nlohmann::ordered_json>> record(const TraceSetting& setting, const std::string& trace);

}  // namespace spillway
