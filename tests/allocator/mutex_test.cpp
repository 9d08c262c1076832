#include "allocator/mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace spillway::test {
namespace {

// Threads that take the lock in bursts, so that a bias is given and taken away again and again.
template <typename AnyMutex>
void expect_exclusion() {
  AnyMutex mutex;
  int64_t count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int burst = 0; burst < 20; ++burst) {
        for (int i = 0; i < 1000; ++i) {
          const Lock lock(mutex);
          ++count;
        }
        if (burst % 4 == t) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 80000);
}

TEST(Mutex, ExcludesUnderContention) {
  expect_exclusion<Mutex>();
}

TEST(BiasedMutex, ExcludesUnderContention) {
  // A thread that loses the bias at a bad moment is rare: many short fights under TSan, which sees every one
  // of them.
  for (int repeat = 0; repeat < 30; ++repeat) expect_exclusion<BiasedMutex>();
}

TEST(BiasedMutex, GoesBackAndForthBetweenTwoThreads) {
  // As a stream used by a forward pass on one thread and a backward pass on another.
  BiasedMutex mutex;
  int64_t count = 0;
  std::atomic<int> turn{0};
  const auto work = [&](int mine) {
    for (int pass = 0; pass < 20; ++pass) {
      while (turn.load() % 2 != mine) std::this_thread::yield();
      for (int i = 0; i < 5000; ++i) {
        const Lock lock(mutex);
        ++count;
      }
      turn.fetch_add(1);
    }
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  EXPECT_EQ(count, 200000);
}

}  // namespace
}  // namespace spillway::test
