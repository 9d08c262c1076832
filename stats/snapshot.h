// Dumps as PyTorch's memory snapshot: a pickle that pytorch.org/memory_viz and torch/cuda/_memory_viz.py
// read.
//
// It holds segments and blocks, without stacks and without a trace of events: what a dump knows. Pure; throws
// std::bad_alloc only.
#pragma once

#include <string>

#include "stats/dump.h"

namespace spillway {

std::string snapshot_pickle(const Dump& dump);

}  // namespace spillway
