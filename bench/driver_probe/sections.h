// The sections of the probe's report. Each measures one matter and returns its JSON; each throws Failure
// where the driver refuses what it needs. A section's "says_nothing" names those of its fields that mean
// nothing on a device that runs no kernels.
#pragma once

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "bench/driver_probe/session.h"

namespace spillway::probe {

using Json = nlohmann::ordered_json;

// A section has either `measure`, or `questions` that are asked in a process each.
struct Section {
  std::string_view name;  // its key in the report
  Json (*measure)(Session& session);
  std::vector<std::string_view> questions = {};
  Json (*ask)(const Session& session, std::string_view question) = nullptr;
};

// All of them, in the order of the report.
const std::vector<Section>& all_sections();
// Returns what the process that was told to measure `name` alone prints: a section's or a question's.
Json measure_here(const Options& options, std::string_view name);

// Names, sizes and attributes of the device and the driver; whether cuGetProcAddress gives the exported
// symbols.
Json describe(const Session& session);
// Host time of one call of each entry point on an idle device, in ns, by its name: what the simulated device
// loads.
Json measure_costs(Session& session);
// Ranges: one handle of 64 MiB against 32 of 2 MiB, and one cuMemSetAccess over ever more mappings.
Json measure_ranges(Session& session);
// The same calls while a stream is busy: their time, and whether the work was still running when they
// returned.
Json measure_behind_work(Session& session);
// Tells whether bytes written through one view are read through another: in one stream, across streams, with
// a shared edge.
Json check_aliasing(Session& session);
// The same where the reader is on the device before the writer is done: programmatic dependent launch in
// streams and graphs, kernels beside each other, and edges parted at ever smaller distances.
Json check_resident_readers(Session& session);
// Device memory replaced by host memory at one address: whether bytes survive, and how fast the device reads
// them.
Json check_remap(Session& session);
// Tells what pointer attributes and cuMemGetInfo say of each kind of memory; what cuMemMap says to an offset.
Json check_answers(Session& session);
// Pinned copies in both directions, GB/s.
Json measure_copies(Session& session);
// One cuMemUnmap over a run of mappings against one for each.
Json measure_unmap_runs(Session& session);
// Measures what memory management costs while many instantiated graphs are resident.
Json measure_beside_graphs(Session& session);
// Much memory in small handles, created and given back.
Json measure_trim(Session& session);
// Measures what device memory mappings take for themselves, and what the driver answers on a full device.
Json measure_page_tables(Session& session);
// Finds how many mappings may live at once.
Json find_mapping_limit(Session& session);

// Questions that may end the process that asks: memory of the host, streams that are gone or captured, green
// contexts.
Json ask_host_memory(const Session& session, std::string_view question);
Json ask_captured_stream(const Session& session, std::string_view question);
Json ask_destroyed_stream(const Session& session, std::string_view question);
Json ask_reset_context(const Session& session, std::string_view question);
Json ask_green_context(const Session& session, std::string_view question);

// Marks fields of a section where the device runs no kernels.
void mark_silent(const Session& session, Json& section, std::initializer_list<std::string_view> fields);

}  // namespace spillway::probe
