// What a frame of C++ says to a reader.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace spillway {

// Tells whether the function is the program's own. Others are what its calls pass through: those of CUDA, of
// Spillway, of PyTorch, of the languages' libraries, of libraries that allocate for it. `file` is that of the
// machine code, or of the source.
bool is_programs_own(std::string_view function, std::string_view file);

// "load (app+0x1189)": the function without its parameters, and where addr2line(1) finds the line in the file
// of the machine code; "load app.cpp:14" where the file is the source. Of a function that is not known ("??")
// the place alone.
std::string native_text(std::string_view function, std::string_view file, uint64_t line);

}  // namespace spillway
