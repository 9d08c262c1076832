// A mutex for critical sections of nanoseconds: locking is one atomic exchange, unlocking a plain store,
// which is what the hit path pays for. A thread that finds it held spins, then yields, then sleeps in growing
// steps; it is not woken, so an unlock costs nothing more when somebody waits. Not recursive, not fair.
// Annotated for clang -Wthread-safety.
#pragma once

#include <atomic>

#if defined(__clang__)
#define SPW_CAPABILITY(name) __attribute__((capability(name)))
#define SPW_SCOPED_CAPABILITY __attribute__((scoped_lockable))
#define SPW_ACQUIRE(...) __attribute__((acquire_capability(__VA_ARGS__)))
#define SPW_RELEASE(...) __attribute__((release_capability(__VA_ARGS__)))
#define SPW_REQUIRES(...) __attribute__((requires_capability(__VA_ARGS__)))
#define SPW_GUARDED_BY(mutex) __attribute__((guarded_by(mutex)))
#else
#define SPW_CAPABILITY(name)
#define SPW_SCOPED_CAPABILITY
#define SPW_ACQUIRE(...)
#define SPW_RELEASE(...)
#define SPW_REQUIRES(...)
#define SPW_GUARDED_BY(mutex)
#endif

namespace spillway {

class SPW_CAPABILITY("mutex") Mutex {
 public:
  void lock() SPW_ACQUIRE() {
    if (held_.exchange(true, std::memory_order_acquire)) lock_contended();
  }
  void unlock() SPW_RELEASE() { held_.store(false, std::memory_order_release); }

 private:
  void lock_contended();

  std::atomic<bool> held_{false};
};

class SPW_SCOPED_CAPABILITY Lock {
 public:
  explicit Lock(Mutex& mutex) SPW_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~Lock() SPW_RELEASE() { mutex_.unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace spillway
