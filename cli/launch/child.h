// A program that this process waits for. A signal that somebody sends to this process reaches the program;
// what a terminal's keys send, both have got already. Where this process is killed, the program is as well.
#pragma once

#include <string>
#include <vector>

#include "driver/status.h"

namespace spillway {

struct Ended {
  int code = 0;    // of exit()
  int signal = 0;  // that ended it; 0: none

  int exit_code() const { return signal != 0 ? 128 + signal : code; }
};

// Errors: io (it cannot be started, or somebody ended an earlier one already).
Result<Ended> run_and_wait(const std::vector<std::string>& program);

// Ends this process as the program ended: by the same signal, without a second core file. Returns the exit
// code where it was none.
int end_as(const Ended& ended);

}  // namespace spillway
