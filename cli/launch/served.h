// Makes what `spillway run` says at its end: what its processes were served, their peak, and what was
// reserved for it.
#pragma once

#include <string>
#include <vector>

#include "stats/live_reader.h"

namespace spillway {

// The live pages of the processes that start while it lives: each gets a second name in a folder of this one,
// so that it can be read when the process has gone.
class ServedPages {
 public:
  ServedPages();  // sets SPILLWAY_LIVE_LINKS, unless no page is wanted or no folder serves
  ServedPages(const ServedPages&) = delete;
  ServedPages& operator=(const ServedPages&) = delete;
  ~ServedPages();

  bool is_watching() const { return !folder_.empty(); }
  std::vector<LiveReading> read() const;

 private:
  std::string folder_;
};

// One line without its end; empty where no page has a device.
std::string served_line(const std::vector<LiveReading>& pages);

}  // namespace spillway
