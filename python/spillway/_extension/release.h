// What differs between the releases of PyTorch that the extension compiles against.
#pragma once

#include <torch/headeronly/version.h>

#define SPILLWAY_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

// snapshot() has a second argument.
#define SPILLWAY_SNAPSHOT_TRACES , bool include_traces
