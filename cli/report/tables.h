// Tells who holds the bytes of a moment: by size, by call site, by pool and by stream.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/report/view.h"

namespace spillway {

// Blocks whose requests are above half of `up_to_bytes` and at most that.
struct ClassRow {
  uint64_t up_to_bytes = 0;  // a power of two, at least 512
  uint64_t blocks = 0;
  uint64_t live_bytes = 0;  // as requested, pending blocks included
  uint64_t rounding_bytes = 0;
};

struct SiteRow {
  std::string site;
  uint64_t blocks = 0;
  uint64_t live_bytes = 0;  // as requested, pending blocks included
};

// Says what a pool or stream holds. What is free here serves no other one without a wait or a release.
struct HolderRow {
  std::string name;
  uint64_t segments = 0;
  uint64_t reserved_bytes = 0;
  uint64_t active_bytes = 0;
  uint64_t largest_free_bytes = 0;

  uint64_t stranded_bytes() const { return reserved_bytes - active_bytes; }
};

struct Tables {
  std::vector<ClassRow> classes;   // ascending; those with blocks
  std::vector<SiteRow> sites;      // the most bytes first
  std::vector<HolderRow> pools;    // the most reserved bytes first
  std::vector<HolderRow> streams;  // likewise
};

// The class of a request: the least power of two that holds it, at least 512.
uint64_t size_class_bytes(uint64_t requested_bytes);

Tables tables_of(const std::vector<SegmentView>& segments, const std::vector<std::string>& sites);

// Rows of the same class or site become one.
void add_classes(std::map<uint64_t, ClassRow>& to, const std::vector<ClassRow>& rows);
void add_sites(std::map<std::string, SiteRow>& to, const std::vector<SiteRow>& rows);

// The most bytes first; of equal ones, by name.
std::vector<SiteRow> by_bytes(const std::map<std::string, SiteRow>& sites);

// External fragmentation: the share of free bytes outside of the largest free range, 0 to 1.
double external_index(uint64_t free_bytes, uint64_t largest_free_bytes);

}  // namespace spillway
