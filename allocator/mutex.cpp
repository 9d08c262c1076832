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

}  // namespace

void Mutex::lock_contended() {
  std::chrono::microseconds sleep = kShortestSleep;
  for (int tries = 0;; ++tries) {
    // Looking costs less than exchanging: the word stays shared until it is free.
    if (!held_.load(std::memory_order_relaxed) && !held_.exchange(true, std::memory_order_acquire)) return;
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

}  // namespace spillway
