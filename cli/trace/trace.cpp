#include "cli/trace/trace.h"

#include <algorithm>

namespace spillway {

uint64_t peak_live_bytes(const Trace& trace) {
  uint64_t live = 0;
  for (const TraceBlock& block : trace.blocks) live += block.initially_live ? block.bytes : 0;
  uint64_t peak = live;
  for (const TraceEvent& event : trace.events) {
    const uint64_t bytes = trace.blocks[event.block].bytes;
    switch (event.kind) {
      case TraceEvent::Kind::kAllocate:
        live += bytes;
        peak = std::max(peak, live);
        break;
      case TraceEvent::Kind::kFree:
      case TraceEvent::Kind::kFreeCompleted:
        live -= bytes;
        break;
      case TraceEvent::Kind::kFreeRequested:
        break;
    }
  }
  return peak;
}

}  // namespace spillway
