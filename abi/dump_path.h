// Says where dumps go and in which format, as SPILLWAY_STATS and spw_dump name it: a path with %p, %r, %d and
// %t, whose ending says the format. Pure functions, but for the process' id and rank.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "driver/status.h"

namespace spillway {

enum class DumpFormat : uint8_t { kJson, kPrometheus, kSnapshot };

// .prom and .pickle; JSON for any other ending, or none.
DumpFormat format_of(std::string_view path);
// Errors: invalid_argument (the name is none of json, prometheus and pickle).
Result<DumpFormat> format_named(std::string_view name);

// Errors: invalid_argument: the path is empty, names a folder, or has a % that means nothing.
Status check_dump_path(std::string_view path);

// The path with %p (process), %r (rank), %d (device), %t (time_seconds, since 1970) and %% filled in.
std::string expand_dump_path(std::string_view path, int device, int64_t time_seconds);
// Tells whether each device has a file of its own.
bool is_per_device(std::string_view path);

// The path with `word` before its ending: "run.json" becomes "run.oom.json".
std::string with_word(std::string_view path, std::string_view word);

}  // namespace spillway
