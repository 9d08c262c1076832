// A report as a trace for ui.perfetto.dev: counters of memory, slices of what the program was doing, of rungs
// of the ladder, and of the largest blocks. Trace Event Format: docs.google.com/document/d/1CvAClvFfyA5R-Ph-
// YUmn5OOQtYMH4h6I0nSsKchNAySU, which Perfetto documents as one of its inputs.
#pragma once

#include <nlohmann/json.hpp>

#include "cli/report/job.h"

namespace spillway {

// Writes the rank that the report shows in full. Times are microseconds; events without times get one each.
nlohmann::ordered_json perfetto_json(const RankReport& report);

}  // namespace spillway
