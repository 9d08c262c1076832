// Device memory that programs do not ask for: of contexts and of modules. That of page tables is in Memory.
// Nothing is taken unless the configuration says so.
#pragma once

#include "sim/cuda/state.h"

namespace spillway::sim {

// False: the device is out of memory.
bool take_context_memory(State& state, Context* context);
// At a launch: the code of a module comes to a context with the first.
bool take_module_memory(State& state, Context* context, CUmodule module);
void release_module(State& state, CUmodule module);
// All that the context and its modules took.
void release_context_memory(State& state, Context* context);

}  // namespace spillway::sim
