// A whole input file in memory, unpacked where it is gzip'd.
#pragma once

#include <string>

#include "driver/status.h"

namespace spillway {

// The bytes of a regular file; a gzip'd one (by its first two bytes, not its name) is unpacked. Bounded: at
// most 4 GiB, and what a small archive may unpack to is limited by its size. An error is one line that begins
// with the path.
Result<std::string> read_file(const std::string& path);

// Unpacks gzip'd bytes; the error does not name a file.
Result<std::string> inflate_gzip(const std::string& packed);

}  // namespace spillway
