#include "allocator/open_pools.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "tests/support/arena_parts.h"

namespace spillway::test {
namespace {

constexpr PoolId kFirst{0, 1};
constexpr PoolId kSecond{0, 2};
constexpr PoolId kThird{0, 3};
// This is how long something that must not happen is waited for.
constexpr std::chrono::milliseconds kAWhile{50};

class OpenPoolsTest : public testing::Test {
 protected:
  using Filter = std::function<bool(CUstream)>;

  std::shared_ptr<OpenPool> open(PoolId id, Filter filter, bool is_last = false) {
    auto pool = std::make_shared<OpenPool>(id, std::move(filter));
    pool->is_last = is_last;
    pools.open(pool);
    return pool;
  }
  Filter accepts(CUstream stream) {
    return [stream](CUstream on) { return on == stream; };
  }
  PoolId serving(CUstream stream) {
    const std::shared_ptr<const OpenPool> pool = pools.serving(stream);
    return pool == nullptr ? PoolId() : pool->id;
  }

  MadeParts made;
  OpenPools pools{made.parts};
  const CUstream one = made.device.stream();
  const CUstream two = made.device.stream();
};

TEST_F(OpenPoolsTest, TheLatestThatAcceptsTheStreamServesIt) {
  EXPECT_FALSE(pools.any());
  EXPECT_EQ(serving(one), PoolId());
  open(kFirst, nullptr);
  open(kSecond, accepts(one));
  EXPECT_TRUE(pools.any());
  EXPECT_EQ(serving(one), kSecond);
  EXPECT_EQ(serving(two), kFirst) << "without a filter every stream";
  open(kThird, accepts(two));
  EXPECT_EQ(serving(one), kSecond);
  EXPECT_EQ(serving(two), kThird);
  EXPECT_TRUE(pools.close(kSecond));
  EXPECT_EQ(serving(one), kFirst);
  EXPECT_EQ(serving(two), kThird);
}

TEST_F(OpenPoolsTest, ThoseThatAreLastComeBehindAllOthers) {
  open(kFirst, accepts(one));
  open(kSecond, nullptr, true);
  EXPECT_EQ(serving(one), kFirst);
  EXPECT_EQ(serving(two), kSecond);
  // Of two that are last the latest is asked first.
  open(kThird, accepts(two), true);
  EXPECT_EQ(serving(one), kFirst);
  EXPECT_EQ(serving(two), kThird);
  EXPECT_TRUE(pools.close(kThird));
  EXPECT_EQ(serving(two), kSecond);
}

TEST_F(OpenPoolsTest, OnlyPoolsThatAreOpenCanBeClosed) {
  EXPECT_FALSE(pools.close(kFirst));
  open(kFirst, nullptr);
  EXPECT_TRUE(pools.contains(kFirst));
  EXPECT_FALSE(pools.contains(kSecond));
  EXPECT_FALSE(pools.close(kSecond));
  EXPECT_TRUE(pools.close(kFirst));
  EXPECT_FALSE(pools.contains(kFirst));
  EXPECT_FALSE(pools.any());
  EXPECT_FALSE(pools.close(kFirst));
}

TEST_F(OpenPoolsTest, AfterAClearNobodyIsAsked) {
  int asked = 0;
  open(kFirst, [&](CUstream) { return ++asked > 0; });
  pools.clear();
  EXPECT_FALSE(pools.any());
  EXPECT_FALSE(pools.may_capture());
  EXPECT_EQ(serving(one), PoolId());
  EXPECT_EQ(asked, 0);
}

// ---- What a pool is open for

TEST_F(OpenPoolsTest, APoolMayBeForACaptureUntilItsFirstRequestTellsOtherwise) {
  EXPECT_FALSE(pools.may_capture());
  const auto any_stream = open(kFirst, [](CUstream) { return true; });
  EXPECT_TRUE(pools.may_capture());
  serving(one);
  EXPECT_EQ(any_stream->use, OpenPool::Use::kOther) << "a stream that nobody ever used was accepted, too";
  EXPECT_FALSE(pools.may_capture());
  EXPECT_TRUE(pools.close(kFirst));
  EXPECT_FALSE(pools.may_capture());
}

TEST_F(OpenPoolsTest, APoolOfOneStreamMayBeForACapture) {
  const auto pool = open(kFirst, accepts(one));
  serving(two);
  EXPECT_EQ(pool->use, OpenPool::Use::kUnknown) << "it has served nobody";
  serving(one);
  EXPECT_EQ(pool->use, OpenPool::Use::kCapture);
  EXPECT_TRUE(pools.may_capture());
  EXPECT_TRUE(pools.close(kFirst));
  EXPECT_FALSE(pools.may_capture());
}

TEST_F(OpenPoolsTest, APoolWithoutAFilterMayBeForACapture) {
  open(kFirst, nullptr);
  serving(one);
  EXPECT_TRUE(pools.may_capture());
}

TEST_F(OpenPoolsTest, APoolThatServesACapturedStreamIsForACapture) {
  const auto pool = open(kFirst, [](CUstream) { return true; });
  made.device.begin_capture(one, CU_STREAM_CAPTURE_MODE_RELAXED);
  serving(one);
  EXPECT_EQ(pool->use, OpenPool::Use::kCapture);
  made.device.discard_capture(one);
  serving(one);
  EXPECT_TRUE(pools.may_capture()) << "the first request has told";
}

TEST_F(OpenPoolsTest, NobodyCapturesBecauseOfAPoolThatIsLast) {
  open(kFirst, nullptr, true);
  EXPECT_FALSE(pools.may_capture());
  serving(one);
  EXPECT_FALSE(pools.may_capture());
  open(kSecond, accepts(two));
  EXPECT_TRUE(pools.may_capture());
  EXPECT_TRUE(pools.close(kFirst));
  EXPECT_TRUE(pools.may_capture());
}

TEST_F(OpenPoolsTest, IsQuietOnlyWhileNoCaptureIsExpected) {
  const auto quiet = [] { return true; };
  const auto busy = [] { return false; };
  EXPECT_TRUE(pools.without_captures(quiet));
  EXPECT_FALSE(pools.without_captures(busy));
  open(kFirst, nullptr);
  EXPECT_FALSE(pools.without_captures(quiet));
  pools.close(kFirst);
  EXPECT_TRUE(pools.without_captures(quiet));
}

// ---- Filters are the program's code

TEST_F(OpenPoolsTest, AFilterRunsWithoutALock) {
  bool contained = false;
  open(kFirst, [&](CUstream) {
    contained = pools.contains(kFirst);
    open(kSecond, nullptr, true);
    return pools.close(kSecond);
  });
  EXPECT_EQ(serving(one), kFirst);
  EXPECT_TRUE(contained);
}

TEST_F(OpenPoolsTest, AFilterThatClosesItsOwnPoolDoesNotWaitForItself) {
  int asked = 0;
  open(kFirst, [&](CUstream) {
    // Asked again for what the pool is open for, it is closed already.
    EXPECT_EQ(pools.close(kFirst), ++asked == 1);
    return true;
  });
  EXPECT_EQ(serving(one), kFirst);
  const int until_closed = asked;
  EXPECT_EQ(serving(one), PoolId());
  EXPECT_EQ(asked, until_closed);
}

TEST_F(OpenPoolsTest, ClosingWaitsForAFilterThatRunsOnAnotherThread) {
  std::promise<void> entered;
  std::promise<void> may_leave;
  std::atomic<bool> has_left{false};
  std::atomic<int> asked{0};
  const CUstream stream = one;
  open(kFirst, [&, leave = may_leave.get_future().share()](CUstream on) {
    if (on != stream || ++asked > 1) return false;
    entered.set_value();
    leave.wait();
    has_left = true;
    return true;
  });
  std::thread asker([&] { pools.serving(stream); });
  entered.get_future().wait();
  std::future<bool> closed = std::async(std::launch::async, [&] {
    const bool was_open = pools.close(kFirst);
    return was_open && has_left;
  });
  EXPECT_EQ(closed.wait_for(kAWhile), std::future_status::timeout);
  EXPECT_FALSE(pools.contains(kFirst)) << "it serves nobody meanwhile";
  EXPECT_EQ(serving(one), PoolId());
  may_leave.set_value();
  EXPECT_TRUE(closed.get()) << "after the filter has left";
  asker.join();
  EXPECT_FALSE(pools.may_capture());
}

TEST_F(OpenPoolsTest, ClosingDoesNotWaitForTheFilterOfAnotherPool) {
  std::promise<void> entered;
  std::promise<void> may_leave;
  open(kFirst, accepts(two));
  std::atomic<int> asked{0};
  open(kSecond, [&, leave = may_leave.get_future().share()](CUstream) {
    if (++asked > 1) return true;
    entered.set_value();
    leave.wait();
    return true;
  });
  open(kThird, nullptr);
  EXPECT_TRUE(pools.close(kThird));
  std::thread asker([&] { pools.serving(one); });
  entered.get_future().wait();
  // Opened since: that thread does not know of it.
  open(kThird, nullptr);
  EXPECT_TRUE(pools.close(kThird));
  may_leave.set_value();
  asker.join();
}

}  // namespace
}  // namespace spillway::test
