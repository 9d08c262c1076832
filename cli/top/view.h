// The screen of `spillway top`: live pages as lines of text of a given width. Pure: no terminal, no clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stats/live_reader.h"

namespace spillway {

struct TopStyle {
  static constexpr size_t kNarrowest = 40;

  size_t columns = 80;  // at least kNarrowest; what does not fit beside goes below
  bool has_colour = false;
  bool has_unicode = true;  // bars of blocks rather than letters
};

// Holds what is shared by the text and the JSON. Rates are over the writer's last interval; 0 where there is
// none.
struct TopRates {
  double allocations_per_s = 0;
  double frees_per_s = 0;
  double driver_calls_per_s = 0;
  double host_waits_per_s = 0;
  double rung_hits_per_s = 0;  // requests that the heap itself did not serve
};
TopRates rates_of(const LiveReading& page, const LiveRow& row);

// The share of the free memory that is not in the largest free range: 0 where one range holds all of it.
double external_fragmentation(const spw_stats& stats);

// The lines of all pages, each at most `columns` wide, colours apart. `now_ns` is since 1970.
std::vector<std::string> top_lines(const LiveListing& listing, int64_t now_ns, const TopStyle& style);

}  // namespace spillway
