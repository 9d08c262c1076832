// Files of memory, as views: Spillway dumps (JSON), PyTorch memory snapshots (pickles), gzip'd or not, and
// Spillway's traces.
//
// Nothing is believed: sizes are bounded, blocks must lie in their segments, and a file costs memory and time
// in proportion to its length. Members that are not known are skipped, and those that are missing are absent.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/report/view.h"
#include "driver/status.h"

namespace spillway {

// One view for each device on which anything was ever reserved. An error is one line that begins with the
// path. A rank that the file does not name is taken from the file's name, as in "rank3.pickle".
Result<std::vector<MemoryView>> read_views(const std::string& path);

// From the unpacked bytes; errors do not name a file.
Result<std::vector<MemoryView>> parse_views(const std::string& data);
Result<std::vector<MemoryView>> parse_dump(const std::string& json);
Result<std::vector<MemoryView>> parse_memory_snapshot(const std::string& pickle);

// The most one block, segment or counter may say: 2^48 bytes.
inline constexpr uint64_t kMostViewBytes = uint64_t{1} << 48;

// Orders each segment's blocks, fills gaps between them as inactive, and drops requests of inactive ones.
// Errors: blocks that overlap, that lie outside of their segment, or that requested more than they have; more
// than kMostViewBytes in all.
Status settle(std::vector<SegmentView>& segments);

}  // namespace spillway
