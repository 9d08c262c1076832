// Sizes as people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace spillway {

constexpr double kGiB = 1 << 30;

// "1073741824", "512MiB", "1.5GiB", "80GiB": bytes, or with KiB, MiB, GiB, TiB (also without "iB": 80G).
// Empty for anything else, for zero, and past 2^60.
std::optional<uint64_t> parse_size(std::string_view text);

// "46.593 GiB", in the largest unit that leaves a number of 1 and more.
std::string format_size(uint64_t bytes);

// Bytes that were computed with fractions.
int64_t whole(double bytes);

}  // namespace spillway
