// Notices when a dump is asked for from the outside: by a signal, or because time has passed. One thread
// waits for both; the signal's handler does no more than wake it. Which dump is written where is not known
// here.
#pragma once

#include <chrono>
#include <functional>

namespace spillway {

class DumpTrigger {
 public:
  // Called on the trigger's thread with "signal" or "interval". Must not throw.
  using Write = std::function<void(const char* reason)>;

  // One for each process, for as long as it lives.
  static DumpTrigger& instance();

  // `signal`: 0 for none; left alone where the program handles or ignores it. `interval`: 0 for none. Without
  // either, and where there is no thread to be had, nothing is started. To be called once.
  void start(int signal, std::chrono::milliseconds interval, Write write);
  // The signal is ignored from then on. Waits for a dump in progress. Nothing to do in a child of fork, which
  // has no such thread.
  void stop() noexcept;

 private:
  DumpTrigger() = default;
  void take_signal(int signal);
  void work(std::chrono::milliseconds interval, const Write& write);
};

}  // namespace spillway
