// Threads that end when there is nothing to do, and never before everything is done.
#include "offload/spill/workers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace spillway::test {
namespace {

TEST(Workers, EverythingIsDoneBeforeTheyEnd) {
  std::atomic<int> done{0};
  for (const unsigned threads : {0u, 1u, 4u}) {
    Workers workers(threads);
    for (int i = 0; i < 200; ++i) {
      workers.run([&] {
        workers.run([&] { ++done; });
        ++done;
      });
    }
  }
  EXPECT_EQ(done, 3 * 400);
}

TEST(Workers, JobsBeginInTheOrderTheyWereGiven) {
  std::vector<int> order;  // of one thread at a time
  Workers workers(1);
  for (int i = 0; i < 100; ++i) workers.run([&order, i] { order.push_back(i); });
  workers.drain();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(Workers, WithoutAThreadTheCallerDoesIt) {
  Workers workers(0);
  std::thread::id who;
  workers.run([&] { who = std::this_thread::get_id(); });
  EXPECT_EQ(who, std::this_thread::get_id());
  workers.drain();
}

// Each of the jobs waits until as many are under way as there may be threads.
TEST(Workers, AsManyWorkAtATimeAsMay) {
  constexpr int kThreads = 3;
  std::mutex mutex;
  std::condition_variable changed;
  int running = 0;
  int most = 0;
  int finished = 0;
  std::set<std::thread::id> who;
  Workers workers(kThreads);
  for (int i = 0; i < 3 * kThreads; ++i) {
    workers.run([&] {
      std::unique_lock lock(mutex);
      who.insert(std::this_thread::get_id());
      most = std::max(most, ++running);
      changed.notify_all();
      changed.wait(lock, [&] { return most == kThreads; });
      --running;
      ++finished;
    });
  }
  workers.drain();
  EXPECT_EQ(most, kThreads);
  EXPECT_EQ(finished, 3 * kThreads);
  EXPECT_EQ(who.count(std::this_thread::get_id()), 0u) << "never the caller's";
}

TEST(Workers, DrainingWaitsForWhatIsUnderWay) {
  std::atomic<int> done{0};
  Workers workers(2);
  for (int round = 1; round <= 50; ++round) {
    for (int i = 0; i < 4; ++i) {
      workers.run([&] {
        std::this_thread::yield();
        ++done;
      });
    }
    workers.drain();
    ASSERT_EQ(done, 4 * round);
  }
}

// What a job holds goes before anybody hears that all is done, and may itself have something to do.
TEST(Workers, AJobMayGiveAnotherWhenItGoes) {
  std::atomic<int> done{0};
  Workers workers(1);
  for (int i = 1; i <= 50; ++i) {
    std::shared_ptr<void> last(nullptr, [&](void*) { workers.run([&] { ++done; }); });
    workers.run([held = std::move(last)] {});
    workers.drain();
    ASSERT_EQ(done, i);
  }
}

}  // namespace
}  // namespace spillway::test
