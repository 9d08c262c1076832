// The counters of what lies below a device, as the C interface tells them.
#pragma once

#include "include/spillway/offload.h"
#include "offload/spill/device_tiers.h"

namespace spillway {

// `regions` is what the regions take together. Waits for no operation of the device or the disk. Size and
// version are the caller's to fill.
spw_tier_stats tier_stats(DeviceTiers& tiers, const RegionUsage& regions);

}  // namespace spillway
