#include "allocator/heap_lock.h"

#include <chrono>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/page_stores.h"

namespace spillway::test {
namespace {

// Another thread's attempt to take a lock.
class Attempt {
 public:
  explicit Attempt(BiasedMutex& mutex)
      : done_(std::async(std::launch::async, [&mutex] { const Lock lock(mutex); })) {}

  // Tells whether it has not succeeded yet; something holds the lock then.
  bool waits() const { return done_.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready; }
  // Waits for it.
  bool succeeds() const { return done_.wait_for(std::chrono::seconds(60)) == std::future_status::ready; }

 private:
  std::future<void> done_;
};

bool is_free(BiasedMutex& mutex) {
  return Attempt(mutex).succeeds();
}

TEST(HeapLock, HoldsTheLockAsLongAsItLives) {
  BiasedMutex mutex;
  auto lock = std::make_unique<HeapLock>(mutex);
  const Attempt attempt(mutex);
  EXPECT_TRUE(attempt.waits());
  lock.reset();
  EXPECT_TRUE(attempt.succeeds());
}

TEST(HeapLock, OfNothingHoldsNothing) {
  TakenRange none;
  TakenRange moved(std::move(none));
  moved = TakenRange();
  EXPECT_EQ(moved.range, nullptr);
}

TEST(HeapLock, IsHandedOnWithoutBeingGivenUp) {
  BiasedMutex mutex;
  CachedRange range;
  TakenRange last;
  {
    TakenRange first{&range, HeapLock(mutex)};
    TakenRange second(std::move(first));
    last = std::move(second);
  }
  EXPECT_EQ(last.range, &range);
  const Attempt attempt(mutex);
  EXPECT_TRUE(attempt.waits()) << "the last one has it";
  last.lock = HeapLock();
  EXPECT_TRUE(attempt.succeeds());
}

TEST(HeapLock, WhatWasHeldBeforeIsGivenUpWithTheOther) {
  BiasedMutex one;
  BiasedMutex two;
  TakenRange taken{nullptr, HeapLock(one)};
  {
    TakenRange other{nullptr, HeapLock(two)};
    taken = std::move(other);
  }
  EXPECT_TRUE(is_free(one));
  const Attempt attempt(two);
  EXPECT_TRUE(attempt.waits());
  taken = TakenRange();
  EXPECT_TRUE(attempt.succeeds());
}

class AllLockedTest : public testing::Test {
 protected:
  StoreOf<VirtualMemory> of;
  const std::unique_ptr<Heap> heaps[3] = {of.heap(), of.heap(), of.heap()};
};

TEST_F(AllLockedTest, HoldsEveryLockAndGivesEachUp) {
  std::vector<Attempt> attempts;
  {
    const AllLocked locked({heaps[0].get(), heaps[1].get(), heaps[2].get()});
    for (const auto& heap : heaps) attempts.emplace_back(heap->mutex);
    for (const Attempt& attempt : attempts) EXPECT_TRUE(attempt.waits());
  }
  for (const Attempt& attempt : attempts) EXPECT_TRUE(attempt.succeeds());
}

TEST_F(AllLockedTest, LeavesOthersAlone) {
  const AllLocked nothing({});
  const AllLocked locked({heaps[1].get()});
  EXPECT_TRUE(is_free(heaps[0]->mutex));
  EXPECT_TRUE(is_free(heaps[2]->mutex));
}

}  // namespace
}  // namespace spillway::test
