// The sections of the probe's report. Each measures one matter and returns its JSON; each throws Failure
// where the driver refuses what it needs.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "bench/driver_probe/session.h"

namespace spillway::probe {

using Json = nlohmann::ordered_json;

// Names, sizes and attributes of the device and the driver; whether cuGetProcAddress gives the exported
// symbols.
Json describe(const Session& session);
// Host time of one call of each entry point on an idle device, in ns, by its name: what the simulated device
// loads.
Json measure_costs(Session& session);
// Ranges: one handle of 64 MiB against 32 of 2 MiB, and one cuMemSetAccess over ever more mappings.
Json measure_ranges(const Session& session);
// The same calls while a stream is busy: their time, and whether the work was still running when they
// returned.
Json measure_behind_work(Session& session);
// Tells whether bytes written through one view are read through another: in one stream, across streams, with
// a shared edge.
Json check_aliasing(const Session& session);
// Device memory replaced by host memory at one address: whether bytes survive, and how fast the device reads
// them.
Json check_remap(const Session& session);
// Tells what pointer attributes and cuMemGetInfo say of each kind of memory; what cuMemMap says to an offset.
Json check_answers(const Session& session);
// Pinned copies in both directions, GB/s.
Json measure_copies(const Session& session);
// Finds how many mappings may live at once.
Json find_mapping_limit(const Session& session);

}  // namespace spillway::probe
