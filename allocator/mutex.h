// A mutex of one word: an uncontended lock and unlock are one atomic exchange each, which is what the hit
// path pays for; a contended one sleeps in the kernel (C++20 atomic wait). Not recursive. Annotated for clang
// -Wthread-safety.
#pragma once

#include <atomic>
#include <cstdint>

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
    uint32_t expected = kFree;
    if (!state_.compare_exchange_strong(expected, kHeld, std::memory_order_acquire)) lock_contended();
  }
  void unlock() SPW_RELEASE() {
    if (state_.exchange(kFree, std::memory_order_release) == kContended) state_.notify_one();
  }

 private:
  static constexpr uint32_t kFree = 0, kHeld = 1, kContended = 2;

  void lock_contended() {
    for (int spin = 0; spin < 64; ++spin) {
      uint32_t expected = kFree;
      if (state_.compare_exchange_weak(expected, kHeld, std::memory_order_acquire)) return;
    }
    while (state_.exchange(kContended, std::memory_order_acquire) != kFree) {
      state_.wait(kContended, std::memory_order_relaxed);
    }
  }

  std::atomic<uint32_t> state_{kFree};
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
