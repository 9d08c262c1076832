// Writes what the exporter says of the live pages of a machine, in Prometheus' text format.
#pragma once

#include <string>

#include "stats/live_reader.h"

namespace spillway {

// Processes that live, each device's counters with the labels pid, rank and device; of all processes, how
// many there are in which state. A process of another container has "@" and its namespace behind its pid. A
// second page of a process, and a second row of a device, are left out: Prometheus refuses a page that says
// something twice.
std::string metrics_text(const LiveListing& listing);

}  // namespace spillway
