// A report as text: every table sums, by explicit + and =, to the total in its last line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/report/job.h"

namespace spillway {

struct TextOptions {
  std::optional<uint64_t> fits;  // a request to be answered for
  size_t rows = 10;              // of call sites, pools, streams, ranks
};

std::string report_text(const JobReport& job, const TextOptions& options);

// One row of a sum: sign, what, bytes, and the same in the largest unit.
std::string sum_line(char sign, std::string_view what, uint64_t bytes);

enum class FitsAnswer : uint8_t { kYes, kNo, kUnknown };
FitsAnswer answer_of(uint64_t request, const std::optional<uint64_t>& most);

}  // namespace spillway
