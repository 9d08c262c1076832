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

// While one lives, a signal that somebody sends to this process reaches the program that it waits for, and
// ends nothing here. Signals that this process was started to ignore stay ignored, as by nohup. Not
// thread-safe.
class Forwarding {
 public:
  Forwarding();
  Forwarding(const Forwarding&) = delete;
  Forwarding& operator=(const Forwarding&) = delete;
  ~Forwarding();
};

// Errors: io (it cannot be started, or somebody ended an earlier one already).
Result<Ended> run_and_wait(const std::vector<std::string>& program);

// Ends this process as the program ended: by the same signal, without a second core file. Returns the exit
// code where it was none.
int end_as(const Ended& ended);

// The signal by which somebody asked this process to end while a program ran; 0: nobody did.
int asked_to_end();
// "SIGTERM"; "signal 9" of one that is not forwarded.
std::string name_of_signal(int number);

}  // namespace spillway
