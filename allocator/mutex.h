// A mutex for critical sections of nanoseconds: locking is one atomic exchange, unlocking a plain store,
// which is what the hit path pays for. A thread that finds it held spins, then yields, then sleeps in growing
// steps; it is not woken, so an unlock costs nothing more when somebody waits. Not recursive, not fair.
//
// BiasedMutex: the same for a lock that one thread takes nearly always. That thread owns the *bias* and pays
// neither exchange nor fence, only plain stores and loads; another thread that comes takes the bias away
// first, which costs it a system call that fences every running thread (stats/barrier.h). A thread that then
// takes the lock many times in a row gets the bias. After Dice, Moir and Scherer, "Quickly reacquirable
// locks" (2003).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "stats/barrier.h"
#include "stats/lock.h"

namespace spillway {

class SPW_CAPABILITY("mutex") Mutex {
 public:
  void lock() SPW_ACQUIRE() {
    if (held_.exchange(true, std::memory_order_acquire)) lock_contended();
  }
  void unlock() SPW_RELEASE() { held_.store(false, std::memory_order_release); }
  // For the analysis alone, where it cannot see that the mutex is held.
  void assert_held() const SPW_ASSERT_HELD() {}

 private:
  void lock_contended();

  std::atomic<bool> held_{false};
};

class SPW_CAPABILITY("mutex") BiasedMutex {
 public:
  void lock() SPW_ACQUIRE() {
    const void* self = this_thread();
    Seat* seat = bias_.load(std::memory_order_relaxed);
    if (seat != nullptr && seat->thread.load(std::memory_order_relaxed) == self) [[likely]] {
      seat->busy.store(true, std::memory_order_relaxed);
      light_barrier(false);  // a bias is given only where this suffices
      if (bias_.load(std::memory_order_relaxed) == seat) [[likely]] {
        by_bias_ = seat;
        return;
      }
      seat->busy.store(false, std::memory_order_release);
    }
    lock_without_bias(self);
  }
  // For the analysis alone, where it cannot see that the mutex is held.
  void assert_held() const SPW_ASSERT_HELD() {}
  void unlock() SPW_RELEASE() {
    if (by_bias_ != nullptr) [[likely]] {
      by_bias_->busy.store(false, std::memory_order_release);
    } else {
      mutex_.unlock();
    }
  }

 private:
  static constexpr uint32_t kFewestTurns = 64;
  static constexpr uint32_t kMostTurns = 4096;
  static constexpr size_t kSeats = 8;

  // Belongs to one thread for good: a thread that lost the bias long ago, and finds out only now, must not
  // write what says whether its successor is inside.
  struct Seat {
    std::atomic<const void*> thread{nullptr};
    std::atomic<bool> busy{false};  // the thread is inside by its bias, or looks whether it may be
  };

  static const void* this_thread();
  void lock_without_bias(const void* self) SPW_NO_THREAD_SAFETY_ANALYSIS;
  Seat* seat_of(const void* self);

  std::atomic<Seat*> bias_{nullptr};  // changed only under mutex_, to a seat only by its thread
  Seat* by_bias_ = nullptr;           // how the present holder came in; the holder's
  Mutex mutex_;
  // Guarded by this lock.
  const void* last_ = nullptr;
  uint32_t turns_ = 0;           // of last_ in a row
  uint32_t turns_for_bias_ = 1;  // doubles each time a bias is taken away
  Seat seats_[kSeats];
};

// Names an arena's lock where pages, views and the memory of more than one heap are declared: the parts of an
// arena cannot name its member. One name serves all arenas, since no thread holds two of them.
class SPW_CAPABILITY("lock of an arena") ArenaCapability {
 public:
  void assert_held() const SPW_ASSERT_HELD() {}
};
inline constexpr ArenaCapability kArenaLock;

class SPW_SCOPED_CAPABILITY ArenaLock {
 public:
  explicit ArenaLock(Mutex& mutex) SPW_ACQUIRE(kArenaLock) : mutex_(mutex) { mutex_.lock(); }
  ~ArenaLock() SPW_RELEASE() { mutex_.unlock(); }
  ArenaLock(const ArenaLock&) = delete;
  ArenaLock& operator=(const ArenaLock&) = delete;

 private:
  Mutex& mutex_;
};

inline const void* BiasedMutex::this_thread() {
  static thread_local char marker __attribute__((tls_model("initial-exec")));
  return &marker;
}

}  // namespace spillway
