// Anonymous memory gets its pages when it is first written to, which takes longer than a copy of them does:
// here several threads do it, and the pages come from the node of the host that is nearest to a device.
#pragma once

#include <cstddef>
#include <string>

#include "driver/driver.h"

namespace spillway {

inline constexpr int kAnyNode = -1;

// The node of the host's memory nearest to the device of the current context
// (CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID); kAnyNode where the driver knows none.
int nearest_host_node(const Driver& driver);

// Tells whether the node has processors of its own: a driver refuses its memory, or faults for it, where it
// has none. True where the kernel does not say. `nodes` is the kernel's folder of them.
bool has_processors(int node, const std::string& nodes = "/sys/devices/system/node");

// Makes every page of `base` present, zero where nothing was written. `base` is page-aligned. `threads` may
// work on it, of which one is the caller's; fewer do where they cannot be started or have too little to do.
// The node is a wish: other nodes serve where it is full, and where the kernel does not allow to ask
// (mbind(2)). A page that cannot be had is left for whoever needs it.
void touch_first(char* base, size_t bytes, unsigned threads, int node) noexcept;

}  // namespace spillway
