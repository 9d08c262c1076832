// A recorded program of allocations and frees on one device, in the form that replay runs.
//
// A block is live from its kAllocate (or from before the first event, where initially_live) to its kFree or
// its kFreeCompleted. kFree is a free with nothing pending. kFreeRequested says that the program let go of
// the block while another stream still worked on it, kFreeCompleted that this work is done. The events of one
// block are in this order, each at most once; a block without an ending is live after the last event.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace spillway {

struct TraceBlock {
  uint64_t bytes = 0;   // as requested, never 0
  uint32_t stream = 0;  // index into Trace::streams
  bool initially_live = false;
  bool initially_pending = false;  // its free was requested before the first event; implies initially_live
};

struct TraceEvent {
  enum class Kind : uint8_t { kAllocate, kFree, kFreeRequested, kFreeCompleted };
  uint32_t block = 0;  // index into Trace::blocks
  Kind kind = Kind::kAllocate;
};

struct Trace {
  std::string path;
  int device = 0;                  // the one that is replayed
  int devices_with_events = 1;     // how many the file holds
  std::vector<uint64_t> streams;   // as the file names them; 0 is the default stream
  std::vector<TraceBlock> blocks;  // in order of allocation; initially live ones first, in order of address
  std::vector<TraceEvent> events;
  uint64_t peak_live_bytes = 0;  // of requested bytes, over one pass
};

// Peak of live requested bytes over one pass.
uint64_t peak_live_bytes(const Trace& trace);

}  // namespace spillway
