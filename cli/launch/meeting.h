// Where the ranks of a dryrun meet: the simulated NCCL's, in this process, which outlives them all.
#pragma once

#include <string>
#include <vector>

#include "driver/status.h"

namespace spillway {

// How it ended for collectives.
struct MeetingResult {
  std::string kind;                // "deadlock", "mismatch" or ""
  std::vector<std::string> lines;  // who waits where
  std::vector<std::string> notes;  // what was assumed
};

class Meeting {
 public:
  Meeting() = default;
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  ~Meeting() { end(); }

  // Opens the library of the folder and sets SPILLWAY_DRYRUN_MEETING. `ranks`: how many run of a job that has
  // more; 0: all run. Errors: io.
  Status start(const std::string& folder, int ranks);
  MeetingResult end();

 private:
  void* meeting_ = nullptr;
  const char* (*end_)(void* meeting) = nullptr;
};

}  // namespace spillway
