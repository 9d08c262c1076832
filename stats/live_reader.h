// Reading live pages (live_page.h): which there are, what is in them, and whether their process lives.
//
// A page is a file of somebody else's: nothing in it is believed before it is checked, its text is cut to
// printable ASCII, and only the pages of the calling user are read, or any by root. Thread-safe: no state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "driver/status.h"
#include "stats/live_page.h"

namespace spillway {

enum class LiveLife : uint8_t {
  kRunning,
  kStopped,   // by a signal or a debugger
  kEnded,     // without removing its page: killed, or crashed
  kElsewhere  // of another container: whether it lives cannot be told, but its page's time can
};
const char* life_name(LiveLife life);

struct LiveRow {
  LiveDevice now{};
  // The state before: for rates. Zero where there is none.
  LiveDevice before{};
};

struct LiveReading {
  std::string path;
  LiveProcess process;
  uint32_t user = 0;
  LiveLife life = LiveLife::kRunning;
  std::string program;
  std::string library_version;
  int64_t rank = 0;
  uint64_t interval_ns = 0;
  int64_t began_ns = 0;    // since 1970
  int64_t written_ns = 0;  // since 1970
  int64_t apart_ns = 0;    // between the state before and this one; 0: there is none before
  std::optional<spw_pinned_stats> pinned;
  std::vector<LiveRow> devices;
};

// Errors: invalid_argument (another user's page, no page, another version's; the text begins with the path),
// invalid_state (nothing was written to it yet), io.
Result<LiveReading> read_live_page(const std::string& path);

struct LiveListing {
  std::vector<LiveReading> pages;     // by process id
  std::vector<std::string> problems;  // a line for each page that is none, path first, printable ASCII
};

// All pages the calling user may read: with `chosen`, those in that folder; else those in the folders of the
// system, and for root every user's.
LiveListing list_live_pages(const std::string& chosen);

// Removes the pages in a user's folder whose process ended more than `kept_ns` ago, and of the others of
// ended processes all but the newest. A process of another namespace for process ids, as containers have that
// share this folder, has ended when it has not written for a minute and 20 of its intervals.
constexpr size_t kMostDeadPages = 32;
void remove_dead_pages(const std::string& user_folder, int64_t kept_ns);

}  // namespace spillway
