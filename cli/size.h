// Sizes as people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace spillway {

constexpr double kGiB = 1 << 30;

// "1073741824", "512MiB", "1.5 GiB", "80g": bytes, or with KiB, MiB, GiB, TiB (also without "iB"), in powers
// of 1024; with KB, MB, GB, TB in powers of 1000. Capitals or not. Empty for anything else, for zero, and
// past 2^60.
std::optional<uint64_t> parse_size(std::string_view text);

// "46.593 GiB", in the largest unit that leaves a number of 1 and more.
std::string format_size(uint64_t bytes);

// "1,073,741,824".
std::string grouped(uint64_t number);

// As format_size(), of a bound, without the decimals that say nothing: "64 MiB".
std::string format_bound(uint64_t bytes);

// Bytes that were computed with fractions.
int64_t whole(double bytes);

}  // namespace spillway
