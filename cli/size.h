// Sizes as people read them. Those that they write: stats/size.h.
#pragma once

#include <cstdint>
#include <string>

namespace spillway {

constexpr double kGiB = 1 << 30;

// "46.593 GiB", in the largest unit that leaves a number of 1 and more.
std::string format_size(uint64_t bytes);

// "1,073,741,824".
std::string grouped(uint64_t number);

// As format_size(), of a bound, without the decimals that say nothing: "64 MiB".
std::string format_bound(uint64_t bytes);

// Bytes that were computed with fractions.
int64_t whole(double bytes);

}  // namespace spillway
