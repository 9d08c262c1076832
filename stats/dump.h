// A dump: everything the counters and the map of memory say at one moment, as one JSON document for people's
// scripts and for other tools. Its schema is docs/schema/dump.schema.json; `schema_version` comes first in
// the text and changes when a reader of the old one would misread the new one. Members may be added without
// that.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "driver/status.h"
#include "stats/device_stats.h"
#include "stats/segment_row.h"

namespace spillway {

struct DumpDevice {
  int ordinal = 0;
  std::string name;
  std::string uuid;
  uint64_t total_bytes = 0;
  DeviceStats stats;
  std::map<std::string, uint64_t> annotations;  // what the program said its bytes are for
  std::vector<SegmentRow> segments;
};

struct Dump {
  static constexpr int kSchemaVersion = 1;

  std::string library_version;
  int64_t process_id = 0;
  int64_t rank = 0;
  int64_t time_seconds = 0;  // since 1970
  std::vector<std::pair<std::string, std::string>> config;
  std::vector<DumpDevice> devices;
};

std::string dump_to_json(const Dump& dump);

// The JSON Schema of dump_to_json, made from the same lists of counters.
std::string dump_schema();

// The rank of this process in its job: RANK, SLURM_PROCID or OMPI_COMM_WORLD_RANK; 0 where none is set.
int64_t process_rank();

// The file appears whole or not at all: written beside its place under another name, then renamed. Errors:
// io.
Status write_whole_file(const std::string& path, const std::string& text);

}  // namespace spillway
