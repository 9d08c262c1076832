#include "stats/own_thread.h"

#include <signal.h>

#include <ctime>
#include <utility>

namespace spillway {
namespace {

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

std::thread start_own_thread(std::function<void()> body) {
  const SignalsBlocked blocked;  // a thread begins with the signals of the one that starts it
  return std::thread(std::move(body));
}

bool lock_for_fork(BlockingMutex& mutex) {
  constexpr int kTries = 100;
  constexpr timespec kPause{0, 1'000'000};
  for (int i = 0; i < kTries; ++i) {
    if (mutex.try_lock()) return true;
    nanosleep(&kPause, nullptr);
  }
  return false;
}

void unlock_after_fork(BlockingMutex& mutex, bool held) {
  if (!held) return;
  mutex.assert_held();  // since the handler before the fork
  mutex.unlock();
}

}  // namespace spillway
