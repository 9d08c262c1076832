// For system calls that make a file longer, on a thread of the program's: a file beyond the process's limit
// (RLIMIT_FSIZE) raises SIGXFSZ, which would end the program. The call says EFBIG all the same.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <ctime>

namespace spillway {

// Holds it back while this lives, on this thread.
class HeldSignal {
 public:
  HeldSignal() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGXFSZ);
    sigset_t pending;
    was_pending_ = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
    held_ = pthread_sigmask(SIG_BLOCK, &set_, &before_) == 0;
  }
  ~HeldSignal() {
    if (!held_) return;
    const timespec now{};
    if (!was_pending_) (void)sigtimedwait(&set_, nullptr, &now);
    (void)pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  HeldSignal(const HeldSignal&) = delete;
  HeldSignal& operator=(const HeldSignal&) = delete;

 private:
  sigset_t set_{};
  sigset_t before_{};
  bool was_pending_ = false;
  bool held_ = false;
};

}  // namespace spillway
