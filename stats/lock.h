// Locks that clang's -Wthread-safety follows: what a mutex guards and what a function needs held are
// declared, and scripts/lint refuses code that does not keep to it. Other compilers see plain locks.
//
// A member that a mutex guards is SPW_GUARDED_BY(mutex); a function that is called with it held
// SPW_REQUIRES(mutex), and so is a lambda: [&]() SPW_REQUIRES(mutex_) { ... }.
#pragma once

#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#if defined(__clang__)
#define SPW_CAPABILITY(name) __attribute__((capability(name)))
#define SPW_SCOPED_CAPABILITY __attribute__((scoped_lockable))
#define SPW_ACQUIRE(...) __attribute__((acquire_capability(__VA_ARGS__)))
#define SPW_ACQUIRE_SHARED(...) __attribute__((acquire_shared_capability(__VA_ARGS__)))
#define SPW_TRY_ACQUIRE(...) __attribute__((try_acquire_capability(__VA_ARGS__)))
#define SPW_RELEASE(...) __attribute__((release_capability(__VA_ARGS__)))
#define SPW_RELEASE_SHARED(...) __attribute__((release_shared_capability(__VA_ARGS__)))
#define SPW_RELEASE_GENERIC(...) __attribute__((release_generic_capability(__VA_ARGS__)))
#define SPW_REQUIRES(...) __attribute__((requires_capability(__VA_ARGS__)))
#define SPW_REQUIRES_SHARED(...) __attribute__((requires_shared_capability(__VA_ARGS__)))
#define SPW_EXCLUDES(...) __attribute__((locks_excluded(__VA_ARGS__)))
#define SPW_GUARDED_BY(mutex) __attribute__((guarded_by(mutex)))
#define SPW_ASSERT_HELD(...) __attribute__((assert_capability(__VA_ARGS__)))
#define SPW_RETURN_CAPABILITY(mutex) __attribute__((lock_returned(mutex)))
// Only where a lock is made, or what it guards before anybody else can know of it.
#define SPW_NO_THREAD_SAFETY_ANALYSIS __attribute__((no_thread_safety_analysis))
#else
#define SPW_CAPABILITY(name)
#define SPW_SCOPED_CAPABILITY
#define SPW_ACQUIRE(...)
#define SPW_ACQUIRE_SHARED(...)
#define SPW_TRY_ACQUIRE(...)
#define SPW_RELEASE(...)
#define SPW_RELEASE_SHARED(...)
#define SPW_RELEASE_GENERIC(...)
#define SPW_REQUIRES(...)
#define SPW_REQUIRES_SHARED(...)
#define SPW_EXCLUDES(...)
#define SPW_GUARDED_BY(mutex)
#define SPW_ASSERT_HELD(...)
#define SPW_RETURN_CAPABILITY(mutex)
#define SPW_NO_THREAD_SAFETY_ANALYSIS
#endif

namespace spillway {

// std::mutex. Threads that wait for it sleep, so it may be held for long.
class SPW_CAPABILITY("mutex") BlockingMutex {
 public:
  void lock() SPW_ACQUIRE() { mutex_.lock(); }
  bool try_lock() SPW_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock() SPW_RELEASE() { mutex_.unlock(); }
  // For the analysis alone, where it cannot see that the mutex is held.
  void assert_held() const SPW_ASSERT_HELD() {}

 private:
  friend class Condition;
  std::mutex mutex_;
};

// std::condition_variable. The mutex is given up during a wait and held again after it.
class Condition {
 public:
  void notify_one() noexcept { changed_.notify_one(); }
  void notify_all() noexcept { changed_.notify_all(); }

  void wait(BlockingMutex& mutex) SPW_REQUIRES(mutex) {
    Adopted lock(mutex.mutex_);
    changed_.wait(lock.lock);
  }
  // `until` is called with the mutex held.
  template <typename Until>
  void wait(BlockingMutex& mutex, Until until) SPW_REQUIRES(mutex) SPW_NO_THREAD_SAFETY_ANALYSIS {
    Adopted lock(mutex.mutex_);
    changed_.wait(lock.lock, until);
  }
  template <typename Duration>
  std::cv_status wait_for(BlockingMutex& mutex, Duration duration) SPW_REQUIRES(mutex) {
    Adopted lock(mutex.mutex_);
    return changed_.wait_for(lock.lock, duration);
  }
  // False where the time is over and `until` still answers false.
  template <typename Duration, typename Until>
  bool wait_for(BlockingMutex& mutex, Duration duration, Until until)
      SPW_REQUIRES(mutex) SPW_NO_THREAD_SAFETY_ANALYSIS {
    Adopted lock(mutex.mutex_);
    return changed_.wait_for(lock.lock, duration, until);
  }
  template <typename Time, typename Until>
  bool wait_until(BlockingMutex& mutex, Time time, Until until)
      SPW_REQUIRES(mutex) SPW_NO_THREAD_SAFETY_ANALYSIS {
    Adopted lock(mutex.mutex_);
    return changed_.wait_until(lock.lock, time, until);
  }

 private:
  // The caller's, before and after.
  struct Adopted {
    explicit Adopted(std::mutex& mutex) : lock(mutex, std::adopt_lock) {}
    ~Adopted() { lock.release(); }
    Adopted(const Adopted&) = delete;
    Adopted& operator=(const Adopted&) = delete;
    std::unique_lock<std::mutex> lock;
  };

  std::condition_variable changed_;
};

// std::shared_mutex.
class SPW_CAPABILITY("mutex") SharedMutex {
 public:
  void lock() SPW_ACQUIRE() { mutex_.lock(); }
  bool try_lock() SPW_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock() SPW_RELEASE() { mutex_.unlock(); }
  void lock_shared() SPW_ACQUIRE_SHARED() { mutex_.lock_shared(); }
  void unlock_shared() SPW_RELEASE_SHARED() { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_;
};

struct AdoptLock {};
inline constexpr AdoptLock kAdoptLock{};

// Holds a mutex of any of these kinds from its beginning to its end.
template <typename AnyMutex>
class SPW_SCOPED_CAPABILITY Lock {
 public:
  explicit Lock(AnyMutex& mutex) SPW_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  // One that is held already.
  Lock(AnyMutex& mutex, AdoptLock) SPW_REQUIRES(mutex) : mutex_(mutex) {}
  ~Lock() SPW_RELEASE() { mutex_.unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  AnyMutex& mutex_;
};

// The same, and may give it up and take it again in between.
template <typename AnyMutex>
class SPW_SCOPED_CAPABILITY PausableLock {
 public:
  explicit PausableLock(AnyMutex& mutex) SPW_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~PausableLock() SPW_RELEASE() {
    if (holds_) mutex_.unlock();
  }
  PausableLock(const PausableLock&) = delete;
  PausableLock& operator=(const PausableLock&) = delete;

  void unlock() SPW_RELEASE() {
    holds_ = false;
    mutex_.unlock();
  }
  void lock() SPW_ACQUIRE() {
    mutex_.lock();
    holds_ = true;
  }

 private:
  AnyMutex& mutex_;
  bool holds_ = true;
};

// Shared with others who only look.
class SPW_SCOPED_CAPABILITY SharedLock {
 public:
  explicit SharedLock(SharedMutex& mutex) SPW_ACQUIRE_SHARED(mutex) : mutex_(mutex) { mutex_.lock_shared(); }
  ~SharedLock() SPW_RELEASE_GENERIC() { mutex_.unlock_shared(); }
  SharedLock(const SharedLock&) = delete;
  SharedLock& operator=(const SharedLock&) = delete;

 private:
  SharedMutex& mutex_;
};

}  // namespace spillway
