// Asking whether work is over, and waiting for events. A query that comes out true teaches the host what it
// asked.
#pragma once

#include "sim/cuda/state.h"

namespace spillway::sim {

CUresult query_stream(State& state, Stream* stream, Lock& lock);
CUresult query_event(State& state, Event* event, Lock& lock);
CUresult record_event(State& state, Event* event, Stream* stream, Lock& lock);
CUresult wait_event(State& state, Stream* stream, Event* event, Lock& lock);
void synchronize_event(State& state, Event* event, Lock& lock);

}  // namespace spillway::sim
