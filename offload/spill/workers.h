// Threads for work on bytes: checksums and compression, beside the thread that submits them and the disk's.
//
// A thread starts when there is work for it, and ends soon after the last: a program that idles has none.
// Nobody joins them. Thread-safe.
#pragma once

#include <deque>
#include <functional>

#include "stats/lock.h"

namespace spillway {

class Workers {
 public:
  explicit Workers(unsigned most_threads) : most_threads_(most_threads) {}
  // Waits until everything is done.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Runs `job`, which throws nothing, after those that were given before: on one of the threads, or on the
  // caller's where none can be started.
  void run(std::function<void()> job);
  // Waits until nothing is left to do.
  void drain();

 private:
  // Waits until there is no thread left.
  void stop();
  void work();
  // Tells whether somebody will see to what waits.
  bool start() SPW_REQUIRES(mutex_);

  const unsigned most_threads_;
  BlockingMutex mutex_;
  Condition given_;
  Condition ended_;
  std::deque<std::function<void()>> jobs_ SPW_GUARDED_BY(mutex_);
  unsigned threads_ SPW_GUARDED_BY(mutex_) = 0;
  unsigned idle_ SPW_GUARDED_BY(mutex_) = 0;  // of these
  bool is_stopping_ SPW_GUARDED_BY(mutex_) = false;
};

}  // namespace spillway
