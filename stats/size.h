// Reads sizes as people write them: in options, in run files, in place of a GPU's name.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace spillway {

// "1073741824", "512MiB", "1.5 GiB", "80g": bytes, or with KiB, MiB, GiB, TiB (also without "iB"), in powers
// of 1024; with KB, MB, GB, TB in powers of 1000. Capitals or not. Returns bytes, with fractions; nothing for
// any other text.
std::optional<double> parse_bytes(std::string_view text);

// The same in whole bytes; nothing for less than one either, and past 2^60.
std::optional<uint64_t> parse_size(std::string_view text);

}  // namespace spillway
