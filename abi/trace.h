// The trace of the process, where the option `trace` asks for one: begun with the first device, written by a
// thread of its own, ended by the process' end. Thread-safe.
#pragma once

#include <string>

#include "abi/config.h"
#include "driver/status.h"
#include "stats/tracer.h"

namespace spillway {

class ProcessTrace {
 public:
  // Begins it. Returns what every arena is to be given; null without the option, or where the file cannot be
  // made, which costs one line on stderr. Again answers the same.
  static Tracer* start(const Config& config);
  // Null where none was begun.
  static Tracer* tracer();

  // Tells whether allocations note where the program is.
  static bool notes_stacks();
  // For the next allocation of this thread; `caller` is where the program called.
  static void note_stack(const void* caller) noexcept;
};

}  // namespace spillway
