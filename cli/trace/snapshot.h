// PyTorch memory snapshots (torch.cuda.memory._dump_snapshot) as traces.
//
// A snapshot holds what happened (device_traces) and what was there at the end (segments). What was live at
// the start follows by walking the events backwards from that end; blocks that are freed without ever having
// been allocated are live at the start as well, so a snapshot with a trace but no segments still reads.
#pragma once

#include <string>

#include "cli/trace/trace.h"
#include "driver/status.h"

namespace spillway {

struct Recording;

struct SnapshotOptions {
  int device = -1;  // -1: the device with the most events
};

// The trace of a snapshot file, gzip'd or not. An error is one line that begins with the path.
Result<Trace> read_snapshot(const std::string& path, const SnapshotOptions& options = {});

// The same from the unpacked bytes; errors do not name a file.
Result<Trace> parse_snapshot(const std::string& data, const SnapshotOptions& options = {});

// All that is known of one device's run: times, addresses and stacks too.
Result<Recording> parse_snapshot_recording(const std::string& data, const SnapshotOptions& options = {});

}  // namespace spillway
