// Tells where the program is, as a number in a StackTable: C++ frames, and Python's where the thread runs
// Python.
//
// A stack that is known costs under a microsecond at depth 8 and allocates nothing of this library's; a new
// one costs some microseconds, once. See docs/decisions/stacks.md.
//
// C++ frames are found by libunwind where it is installed, whose cache makes it several times faster than the
// compiler's own unwinder, which serves otherwise, and under ThreadSanitizer. Python's come from the
// interpreter that the program has, by calls that all versions from 3.10 to 3.14 have; nothing is linked.
// They need the interpreter's lock, so no lock of the allocator may be held.
#pragma once

#include <cstdint>

#include "abi/config.h"
#include "stats/stack_table.h"

namespace spillway {

// Frames of each kind that are kept, innermost first.
inline constexpr int kMostCppFrames = 24;
inline constexpr int kMostPythonFrames = 24;

// The stack of the calling thread from the frame that returns to `caller` on; 0 where there is none, or no
// room for it. Thread-safe; never throws.
uint32_t capture_stack(StackTable& table, TraceStacks which, const void* caller) noexcept;

// Loads what stacks are found with. Later the dynamic linker is not asked for it, whose lock another thread
// may hold that waits for the call in which a stack is captured.
void prepare_stacks() noexcept;

}  // namespace spillway
