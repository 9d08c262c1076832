// A recording as layers of memory over time: what a plot shows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/trace/recording.h"

namespace spillway {

// Says what the blocks on the device are told apart by.
enum class PlotBy : uint8_t { kSize, kTag, kStream };

struct PlotMark {
  enum class Kind : uint8_t { kMark, kRetry, kOutOfMemory, kEvict };
  Kind kind = Kind::kMark;
  uint64_t time_ns = 0;
  std::string text;
};

struct PlotTimeline {
  std::string title;
  uint64_t begin_ns = 0;  // since 1970
  uint64_t end_ns = 0;
  bool has_times = true;  // false: the file has none, and time is the number of the event
  // Columns of equal length. Each shows the moment in it when the most was live.
  std::vector<std::string> layers;           // from the bottom
  std::vector<std::vector<uint64_t>> bytes;  // by layer, then column
  std::vector<uint64_t> reserved_bytes;      // by column; empty where the file does not tell
  uint64_t limit_bytes = 0;                  // 0: none is known
  uint64_t peak_live_bytes = 0;              // on the device, of requested bytes
  std::vector<PlotMark> marks;
};

// Errors: invalid_argument (no event of a block on this device).
Result<PlotTimeline> make_timeline(const Recording& recording, int device, PlotBy by, size_t columns);

}  // namespace spillway
