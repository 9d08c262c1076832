#include "allocator/mutex.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace spillway {
namespace {

constexpr int kSpins = 100;
constexpr int kYields = 20;
constexpr std::chrono::microseconds kShortestSleep{20};
constexpr std::chrono::microseconds kLongestSleep{1000};

void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Until `free` answers true: spins, then yields, then sleeps.
template <typename Free>
void wait_until(Free free) {
  std::chrono::microseconds sleep = kShortestSleep;
  for (int tries = 0; !free(); ++tries) {
    if (tries < kSpins) {
      pause_processor();
    } else if (tries < kSpins + kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(sleep);
      sleep = std::min(2 * sleep, kLongestSleep);
    }
  }
}

}  // namespace

void Mutex::lock_contended() {
  // Looking costs less than exchanging: the word stays shared until it is free.
  wait_until([this] {
    return !held_.load(std::memory_order_relaxed) && !held_.exchange(true, std::memory_order_acquire);
  });
}

BiasedMutex::Seat* BiasedMutex::seat_of(const void* self) {
  for (Seat& seat : seats_) {
    const void* thread = seat.thread.load(std::memory_order_relaxed);
    if (thread == nullptr) seat.thread.store(self, std::memory_order_relaxed);
    if (thread == nullptr || thread == self) return &seat;
  }
  return nullptr;
}

void BiasedMutex::lock_without_bias(const void* self) {
  mutex_.lock();
  if (Seat* owner = bias_.load(std::memory_order_relaxed)) {
    // Either the owner sees that it is none any more, or this thread sees that it is inside.
    bias_.store(nullptr, std::memory_order_relaxed);
    heavy_barrier();
    wait_until([owner] { return !owner->busy.load(std::memory_order_acquire); });
    turns_for_bias_ = std::clamp(2 * turns_for_bias_, kFewestTurns, kMostTurns);
  }
  by_bias_ = nullptr;
  turns_ = last_ == self ? turns_ + 1 : 1;
  last_ = self;
  if (turns_ < turns_for_bias_ || light_barrier_needs_fence()) return;
  turns_ = 0;
  Seat* seat = seat_of(self);
  if (seat == nullptr) return;
  seat->busy.store(true, std::memory_order_relaxed);
  by_bias_ = seat;
  bias_.store(seat, std::memory_order_relaxed);
  mutex_.unlock();
}

}  // namespace spillway
