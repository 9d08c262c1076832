// Says where a command's answer goes: all of it or an error, never half of it without one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "driver/status.h"

namespace spillway {

// To stdout; a full disk or a closed pipe is an error.
Status write_stdout(std::string_view text);

// To a file, through a temporary name beside it that is renamed at the end; straight into what is not a
// regular file.
Status write_file(const std::string& path, std::string_view text);

// Before something takes minutes: whether the folder of a file is there and takes it, and the file itself is
// none; ok where `path` is empty.
Status check_folder(const std::string& path);

// Says on stderr where a file is and how large.
void say_written(const std::string& path, uint64_t bytes);

// As write_file(), and says on stderr where it is and how large.
Status write_and_say(const std::string& path, std::string_view text);

// "Spillway 0.9.0, 2026-11-27 21:50 UTC": what stands below a page that is made now.
std::string made_by(std::string_view version);

// To the file, or to stdout where `path` is empty.
Status write_answer(const std::string& path, std::string_view text);

// Says what is wrong, in one line on stderr. Returns the exit code of an error, 1.
int complain(const Status& status);
// The same, with the command's name.
int complain(std::string_view command, const Status& status);

}  // namespace spillway
