// Finds out when a program is idle: it has not allocated or freed anything for a while, and whenever the
// device was looked at meanwhile, its streams had no work. The device is sampled, some times in each while:
// one that is busy half of the time is found so all but surely.
//
// One thread for the process, made with the first device that has tiers. It lives until the process ends; a
// child of fork has none.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "stats/lock.h"

namespace spillway {

// Tells, look by look, when a spell of quiet has lasted.
class QuietSpell {
 public:
  static constexpr int kLooks = 16;  // make a spell

  // `calls` is how often the program has called so far; `is_quiet` asks the device, and is only called if
  // that is as at the last look. True once in each spell.
  template <typename IsQuiet>
  bool look(uint64_t calls, const IsQuiet& is_quiet) {
    const bool goes_on = calls == calls_ && is_quiet();
    calls_ = calls;
    if (!goes_on) looks_ = 0;
    return goes_on && looks_ < kLooks && ++looks_ == kLooks;
  }
  void begin_anew() { looks_ = 0; }

 private:
  uint64_t calls_ = ~uint64_t{0};
  int looks_ = 0;
};

class IdleWatch {
 public:
  struct Device {
    int ordinal = 0;
    std::function<uint64_t()> calls;  // of the program so far
    std::function<bool()> is_quiet;
    // Called once in each spell, and asks what it is given before each region: the context may be about to
    // end, or the program. False where something is left: the spell begins anew then.
    std::function<bool(const std::function<bool()>&)> relieve;
  };

  static IdleWatch& instance();

  // Calls these from now on, from the thread; a spell lasts for `after`, as the first call has it, zero: for
  // ever. Without a thread, as in a child of fork, nothing is called.
  void add(std::chrono::milliseconds after, Device device);
  // Nothing of the device is looked at from now on: its context ends. Waits for the region that is being
  // evicted, of whichever device. The caller holds no lock that `relieve` takes.
  void remove(int ordinal);

 private:
  struct Watched {
    Device device;
    QuietSpell spell SPW_GUARDED_BY(looks);
    bool is_over SPW_GUARDED_BY(looks) = false;
  };

  IdleWatch() = default;
  bool is_inherited() const;  // by a child of fork: its locks may be held for ever
  void start() SPW_REQUIRES(mutex_);
  void work();
  void look(Watched& watched);
  void stop();  // at exit

  static void before_fork();
  static void after_fork();

  BlockingMutex mutex_;
  Condition changed_;
  std::atomic<bool> is_stopping_ = false;  // set with the mutex held
  // None of them ever goes.
  std::vector<std::unique_ptr<Watched>> watched_ SPW_GUARDED_BY(mutex_);
  std::chrono::milliseconds after_ SPW_GUARDED_BY(mutex_){0};
  std::atomic<pid_t> owner_ = 0;  // whose thread it is
  std::thread thread_;
  std::atomic<int> removals_ = 0;  // that wait for looks
  // Held while locks of an arena may be, and around a fork. Static, as there is one watch: so what is watched
  // can say that this guards it.
  static BlockingMutex looks;
};

}  // namespace spillway
