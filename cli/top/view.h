// The screen of `spillway top`: live pages as lines of text of a given width. Pure: no terminal, no clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/top/lines.h"
#include "stats/live_reader.h"

namespace spillway {

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

// Processes are put in order by this: running ones first, the most first, then by rank or process id.
enum class TopSort : uint8_t { kReserved, kActive, kAllocations, kRank, kPid };
constexpr int kTopSorts = 5;

bool is_over(const LiveReading& page);
// Those whose process id, program or rank has the filter in it.
std::vector<const LiveReading*> ordered(const LiveListing& listing, TopSort sort, const std::string& filter);

// Counts what was reserved on all its devices at their peaks.
double reserved_peak(const LiveReading& page);
// A process in one line, on a line that was begun.
void add_row(TopLines& screen, const LiveReading& page, int64_t now_ns);
// All that is known of one, below a blank line.
void add_details(TopLines& screen, const LiveReading& page, int64_t now_ns);
void add_problems(TopLines& screen, const LiveListing& listing);

// The lines of all pages, each at most `columns` wide, colours apart; processes that have ended are counted,
// and one that is alone is a line. `now_ns` is since 1970.
std::vector<std::string> top_lines(const LiveListing& listing, int64_t now_ns, const TopStyle& style);

}  // namespace spillway
