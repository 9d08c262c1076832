// The names of an address in the program's code.
#pragma once

#include <cstdint>
#include <string>

#include "stats/stack_table.h"

namespace spillway {

struct Symbol {
  std::string function;          // demangled; empty where the module tells none
  uint64_t function_offset = 0;  // of the address in it
  std::string module;            // the file's path; empty where no module has the address
  uint64_t module_offset = 0;    // where the address is in the file, as addr2line(1) counts
};

// Goes by what the dynamic linker knows, and for functions that are not exported by their file's own table of
// symbols, unless it was stripped; that is read once, in milliseconds. Takes the linker's lock and allocates;
// some microseconds.
Symbol find_symbol(const void* address);

// The frame by its names, if it has an address alone; "??" is a function that is not known.
StackFrame named_frame(const StackFrame& frame);

}  // namespace spillway
