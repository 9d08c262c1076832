// A dump: everything the counters and the map of memory say at one moment, for people's scripts and for other
// tools. As JSON, its schema is docs/schema/dump.schema.json; `schema_version` comes first in the text and
// changes when a reader of the old one would misread the new one. Members may be added without that. As text
// for Prometheus and as PyTorch's memory snapshot: prometheus.h, snapshot.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "include/spillway/offload.h"
#include "include/spillway/stats.h"
#include "stats/device_stats.h"
#include "stats/segment_row.h"
#include "stats/slow_path_log.h"
#include "stats/stack_table.h"

namespace spillway {

struct DumpRegion {
  std::string tag;
  spw_region_stats stats{};
};

// Holds what left the device by name: docs/spilling.md.
struct DumpTiers {
  spw_tier_stats stats{};
  std::vector<DumpRegion> regions;
};

struct DumpDevice {
  int ordinal = 0;
  std::string name;
  std::string uuid;
  uint64_t total_bytes = 0;
  DeviceStats stats;
  std::map<std::string, uint64_t> annotations;  // what the program said its bytes are for
  std::vector<SegmentRow> segments;
  // The driver calls so many free; none where it does not answer.
  std::optional<uint64_t> free_bytes;
  std::optional<DumpTiers> tiers;  // none where nothing was ever spilled
  std::vector<PoolRow> pools;
  std::vector<SlowPath> climbs;  // oldest first

  // Returns what is neither free nor Spillway's: other processes, contexts, other libraries.
  std::optional<uint64_t> other_bytes() const;
  // Bytes within what Spillway holds that are free.
  uint64_t unused_bytes() const;
  // External fragmentation: the share of the unused bytes that lies outside of the largest free range, from 0
  // to 1; 0 where nothing is unused.
  double fragmentation() const;
};

struct Dump {
  static constexpr int kSchemaVersion = 1;

  std::string library_version;
  int64_t process_id = 0;
  int64_t rank = 0;
  int64_t time_seconds = 0;  // since 1970
  std::string reason;        // why it was written: exit, oom, signal, interval, call
  std::vector<std::pair<std::string, std::string>> config;
  std::vector<DumpDevice> devices;
  std::optional<spw_pinned_stats> pinned;  // none where no host memory was pinned
  // BlockRow::stack counts these, from 1 on: frames with their names, innermost first.
  std::vector<std::vector<StackFrame>> stacks;
};

// PyTorch's names for the same states.
const char* block_state_name(BlockKind kind);

std::string dump_to_json(const Dump& dump);

// The JSON Schema of dump_to_json, made from the same lists of counters.
std::string dump_schema();

// The rank of this process in its job: RANK, SLURM_PROCID or OMPI_COMM_WORLD_RANK; 0 where none is set.
int64_t process_rank();

}  // namespace spillway
