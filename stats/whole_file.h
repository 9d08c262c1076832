// Files that appear whole or not at all, whatever happens to the process that writes them.
//
// The text goes into a file beside its place, named `.NAME.PID.NUMBER.spillway-tmp`, which then takes the
// name. Its writer holds a lock on it, so one that nobody holds was left by a process that was killed, and is
// removed by the next process that writes into the folder.
#pragma once

#include <string>
#include <string_view>

#include "driver/status.h"

namespace spillway {

inline constexpr std::string_view kTemporarySuffix = ".spillway-tmp";

// Thread-safe. Raises no signal (SIGXFSZ is held back), replaces regular files only, and leaves nothing
// behind when it fails. Errors: io, in one line with the path.
Status write_whole_file(const std::string& path, std::string_view text);

// All of the text to an open file, or false and errno.
bool write_all(int file, std::string_view text);

}  // namespace spillway
