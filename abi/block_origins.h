// Notes where the process's large blocks were allocated, for its dumps and its out-of-memory errors, if the
// option dump_stacks asks for it. Thread-safe.
//
// A stack is that of the Python code, or of C++ where the thread runs no Python, as autograd's do. It is
// captured before any lock of the allocator is taken: Python's frames need the interpreter's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stats/dump.h"
#include "stats/segment_row.h"

namespace spillway {

class BlockOrigins {
 public:
  // Blocks from this size on are known. They are few, and hold nearly all.
  static constexpr uint64_t kLeastBytes = 1 << 20;
  // Stacks that are kept; further ones are not known.
  static constexpr uint32_t kMostStacks = 1 << 14;

  // From now on, and for good.
  static void start();
  static bool are_noted();
  // A number for the stack of the calling thread, for Arena::note_stack; 0 where none is found, or there is
  // no room. `caller` is where the program called. Never throws.
  static uint32_t capture(const void* caller) noexcept;

  // The same inside of a call of the driver's, where who waits for Python's lock may wait for ever: whoever
  // has it may be waiting for the driver.
  static uint32_t capture_in_driver(const void* caller) noexcept;

  // Gives the dump the stacks that its blocks have, numbered anew.
  static void name_stacks(Dump& dump);
  // A line for an error's text: which lines of the program hold most of these segments; or, where they are
  // not noted and could be, how to have them noted. Empty where none is known.
  static std::string largest_text(const std::vector<SegmentRow>& segments);
};

}  // namespace spillway
