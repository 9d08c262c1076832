// Everything that a recorded run holds, in the order of time: what a trace file of Spillway's says, or as
// much of it as a PyTorch memory snapshot has. Replay needs less, which is a Trace (to_trace).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cli/trace/snapshot.h"
#include "cli/trace/trace.h"
#include "driver/status.h"
#include "stats/trace_record.h"

namespace spillway {

struct RecordedFrame {
  std::string function;
  std::string file;
  uint64_t line = 0;  // of a C++ frame: its offset in the file
};

struct Recording {
  std::string path;
  bool is_spillway = false;  // else a PyTorch snapshot
  int64_t process_id = 0;
  int64_t rank = 0;
  // `ticks` are ns since 1970. What was live at the start comes first, as kLive; a mark's `address` is its
  // number in `marks`. No records of the file itself.
  std::vector<TraceRecord> events;
  std::vector<std::string> marks;
  std::map<uint32_t, std::string> tags;
  std::vector<RecordedFrame> frames;
  std::map<uint32_t, std::vector<uint32_t>> stacks;  // numbers of frames, innermost first
  uint64_t dropped = 0;                              // records that the program lost
  bool ended = true;                                 // the program ended it; false where it was killed
  std::string missing;                               // in words, what of the file could not be read
};

// Tells whether the bytes begin as a trace file does.
bool is_trace_file(std::string_view data);

// Either kind of file; of a bounded trace, both of its files. An error is one line that begins with the path.
Result<Recording> read_recording(const std::string& path, const SnapshotOptions& options = {});

// A trace file's bytes, as far as they are whole: what follows is `missing`. Errors do not name a file.
Result<Recording> parse_trace_file(std::string_view data);

// Returns what replay runs, of one device. Where records were dropped, a block whose free is missing ends
// when its address is allocated again, and a free without an allocation is left out. Errors:
// invalid_argument.
Result<Trace> to_trace(const Recording& recording, int device = -1);

// For replay, which is not interested in the rest of a file.
Result<Trace> read_trace(const std::string& path, const SnapshotOptions& options = {});

// The device with the most events.
int busiest_device(const Recording& recording);

// A PyTorch snapshot, as pickle: the blocks' events, and a segment for each block that is live at the end.
std::string to_snapshot(const Recording& recording);

// Writes a trace file. Errors: io.
Status write_trace_file(const Recording& recording, const std::string& path, const std::string& version);

}  // namespace spillway
