// A trace compiled into the calls that replay makes, so that a pass is one walk over an array.
//
// Frees with pending work: a snapshot says that another stream still used the block, not which. Each such
// block is recorded on a helper stream on which a piece of work was just enqueued; that work completes where
// the trace says the free did. Helpers are used so that blocks on one helper complete in the order of their
// frees (streams complete in order); past kMaxHelpers a block may be held longer than the trace shows, never
// shorter.
//
// Repeating: at the wrap all pending work completes, blocks that are live at the end but were not at the
// start are freed in order of allocation, and those that were live at the start and are no longer are
// allocated again.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/trace/trace.h"

namespace spillway {

struct ReplayOperation {
  enum class Kind : uint8_t { kAllocate, kFree, kFreePending, kComplete };
  uint32_t block = 0;
  Kind kind = Kind::kAllocate;
  uint16_t helper = 0;  // for kFreePending and kComplete
};

struct ReplayProgram {
  static constexpr uint32_t kMaxHelpers = 64;

  struct Block {
    uint64_t bytes = 0;
    uint32_t stream = 0;
  };

  std::vector<uint64_t> streams;  // as the trace names them; 0 is the default stream
  std::vector<Block> blocks;
  uint32_t helpers = 0;

  std::vector<ReplayOperation> start;  // once, before the first pass: what is live at its start
  std::vector<ReplayOperation> pass;
  std::vector<ReplayOperation> wrap;  // between two passes, after all pending work completed

  uint64_t peak_live_bytes = 0;
  uint64_t calls_per_pass = 0;  // allocations and frees of `pass`: the "events" of every report
  uint64_t calls_per_wrap = 0;
};

ReplayProgram compile(const Trace& trace);

}  // namespace spillway
