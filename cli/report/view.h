// Holds what is known of one process's memory on one device, whoever wrote the file: a Spillway dump or a
// PyTorch memory snapshot. Plain data; sizes are bytes, times microseconds since 1970.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/report/stacks.h"

namespace spillway {

// Reserved bytes by what they are; they sum to the whole.
struct Parts {
  uint64_t live = 0;            // as the program requested, of blocks in its hands
  uint64_t rounding = 0;        // active blocks above what was requested
  uint64_t pending = 0;         // as requested, of blocks that are freed and that a stream still uses
  uint64_t inactive_split = 0;  // free, in segments (Spillway: pages) that are partly in use
  uint64_t cached = 0;          // free segments (pages)

  uint64_t active() const { return live + rounding + pending; }
  uint64_t free() const { return inactive_split + cached; }
  uint64_t reserved() const { return active() + free(); }
};

enum class BlockState : uint8_t { kLive, kPending, kInactive };

struct BlockView {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t requested_bytes = 0;  // 0 where inactive
  BlockState state = BlockState::kInactive;
  uint32_t site = 0;   // index into MemoryView::sites
  uint32_t stack = 0;  // of MemoryView::stacks
};

struct SegmentView {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t stream = 0;
  uint64_t pool_first = 0;
  uint64_t pool_second = 0;
  bool small = false;             // of PyTorch's pool for requests up to 1 MiB
  bool expandable = false;        // grows and shrinks at any place
  std::vector<BlockView> blocks;  // ascending, without gaps
};

struct MemoryEvent {
  enum class Kind : uint8_t {
    kAllocate,
    kFreeRequested,
    kFreeCompleted,
    kSegmentAdd,
    kSegmentRemove,
    kOutOfMemory
  };
  Kind kind = Kind::kAllocate;
  bool expandable = false;  // of a segment: a range of one, not a whole
  uint32_t site = 0;
  uint64_t address = 0;  // kOutOfMemory: what the device had free
  uint64_t bytes = 0;    // of a block: as requested
  uint64_t stream = 0;
  int64_t time_us = 0;  // 0: the file has no times
  uint32_t stack = 0;   // of MemoryView::stacks
};

// Holds what the program said about its own time.
struct Mark {
  std::string name;
  bool begins = true;
  int64_t time_us = 0;
};

// One request's way up the ladder.
struct ClimbView {
  int64_t time_us = 0;
  uint64_t requested_bytes = 0;
  uint64_t stream = 0;
  std::vector<std::pair<std::string, int64_t>> rung_ns;
  std::string outcome;  // empty: none yet
};

struct RungView {
  std::string name;
  int64_t hits = 0;
  int64_t time_ns = 0;
};

struct RegionView {
  std::string tag;
  uint64_t device_bytes = 0;
  uint64_t host_bytes = 0;
  uint64_t disk_bytes = 0;
  uint64_t pins = 0;
};

// Bytes beside the device's own memory.
struct TierView {
  uint64_t host_placed = 0;
  uint64_t host = 0;  // of regions and stashes
  uint64_t disk = 0;
  uint64_t disk_today = 0;  // written on the day of the dump (UTC)
  std::optional<uint64_t> disk_daily_limit;
  uint64_t lasting_error = 0;  // of the driver, since which nothing is moved any more
  std::vector<RegionView> regions;
};

struct MemoryView {
  std::string source;           // the file
  bool is_snapshot = false;     // PyTorch's; else a Spillway dump
  bool is_trace = false;        // or a Spillway trace
  std::optional<int64_t> rank;  // in the job
  int64_t device = 0;
  int64_t process_id = 0;
  int64_t time_us = 0;
  std::string hardware;  // the device's name
  std::string reason;    // why it was written
  std::map<std::string, std::string> config;
  std::map<std::string, double> annotations;  // what the program said its bytes are for

  Parts now;
  uint64_t reserved_peak_bytes = 0;
  uint64_t live_peak_bytes = 0;       // requested, pending blocks included
  uint64_t allocated_peak_bytes = 0;  // 0: not counted
  uint64_t split_peak_bytes = 0;      // inactive split; 0: not counted
  int64_t retries = 0;
  int64_t ooms = 0;
  std::optional<uint64_t> device_bytes;
  std::optional<uint64_t> device_free_bytes;
  std::optional<uint64_t> other_bytes;         // other processes, contexts, other libraries
  std::optional<uint64_t> limit_bytes;         // what may be reserved
  std::optional<uint64_t> largest_free_bytes;  // a free range that a request can take as it is
  bool joins_pages = false;                    // free pages serve a request wherever they are

  TierView tiers;
  std::vector<RungView> rungs;
  std::vector<ClimbView> climbs;  // oldest first
  std::vector<SegmentView> segments;
  std::vector<std::string> sites = {"unknown"};  // where blocks were allocated; the first is no place
  std::shared_ptr<const Stacks> stacks;          // null: none were recorded
  std::vector<MemoryEvent> events;               // those that led to `segments`
  std::vector<Mark> marks;
  std::vector<std::string> notes;  // what the file does not say, or says twice

  std::string label() const;  // "rank 3, device 0"
};

// Adds up what the blocks say. Segments hold their blocks without gaps.
Parts parts_of(const std::vector<SegmentView>& segments);

// The largest free range in one segment.
uint64_t largest_free_range(const std::vector<SegmentView>& segments);

}  // namespace spillway
