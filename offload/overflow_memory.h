// Says what memory of the host the device is given where it has no room: an option of its own.
#pragma once

#include <cstdint>

namespace spillway {

// kAuto: the host's part of virtual memory management where the driver says that it has one, else pinned
// memory. kVmm: the first alone, at a NUMA node if need be. kPinned: pinned memory alone.
enum class OverflowMemory : uint8_t { kAuto, kVmm, kPinned };

}  // namespace spillway
