// Whose copy is next on one stream: equals take turns, what is waited for comes first, no more copies are in
// flight than may be, and a move that fails is in nobody's way.
#include "offload/spill/copy_queue.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "offload/spill/copy_streams.h"
#include "tests/support/device.h"

namespace spillway::test {
namespace {

class CopyQueueTest : public testing::Test {
 protected:
  // Nothing is complete before somebody waits for it.
  CopyQueueTest() : device_("completion:run-ahead"), events_(*device_.driver), stream_(device_.stream()) {
    mark_ = reinterpret_cast<decltype(mark_)>(device_.driver->find("spwSimMark"));
    is_complete_ = reinterpret_cast<decltype(is_complete_)>(device_.driver->find("spwSimIsComplete"));
    Result<std::unique_ptr<CopyStreams>> made = CopyStreams::create(*device_.driver);
    if (!made.ok()) throw std::runtime_error(made.status().text());
    who_waits_ = std::move(made.value());
    EXPECT_EQ(device_.driver->cuMemAlloc(&memory_, 4096), CUDA_SUCCESS);
  }
  ~CopyQueueTest() override {
    EXPECT_EQ(queue_.waiting(), 0u);
    device_.driver->cuMemFree(memory_);
  }

  // Enqueues work, as a copy is.
  void enqueue() {
    device_.touch(stream_, reinterpret_cast<void*>(memory_), 4096);
    marks_.push_back(mark_(stream_));
  }
  size_t in_flight() const {
    return static_cast<size_t>(std::count_if(
        marks_.begin(), marks_.end(), [&](uint64_t mark) { return is_complete_(stream_, mark) == 0; }));
  }
  // Begins a move of so many copies; where `hold` is set, the first one does not return before the test says
  // so.
  void move(const std::string& name, size_t copies, const Urgency& urgency, bool hold = false) {
    threads_.emplace_back([=, this, &urgency] {
      EXPECT_EQ(device_.driver->cuCtxSetCurrent(device_.context), CUDA_SUCCESS);
      size_t left = copies;
      SPW_EXPECT_OK(queue_.run(stream_, urgency, [&]() -> Result<bool> {
        std::unique_lock lock(mutex_);
        order_ += name;
        enqueue();
        is_held_ = is_held_ || hold;
        changed_.notify_all();
        changed_.wait(lock, [&] { return !hold || is_open_; });
        return --left > 0;
      }));
    });
  }
  void wait_until_held() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_held_; });
  }
  void wait_for(size_t moves) const {
    while (queue_.waiting() < moves) std::this_thread::yield();
  }
  void open_and_join() {
    {
      const std::lock_guard lock(mutex_);
      is_open_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  // Runs a move of one copy.
  Status one() {
    return queue_.run(stream_, calm_, [&]() -> Result<bool> {
      enqueue();
      return false;
    });
  }

  Device device_;
  EventPool events_;
  CUstream stream_;
  CUdeviceptr memory_ = 0;
  size_t depth_ = 2;
  CopyQueue queue_{events_, [this] { return depth_; }};
  std::unique_ptr<CopyStreams> who_waits_;
  const Urgency calm_;
  decltype(&spwSimMark) mark_ = nullptr;
  decltype(&spwSimIsComplete) is_complete_ = nullptr;
  std::vector<uint64_t> marks_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string order_;
  bool is_held_ = false;
  bool is_open_ = false;
};

TEST_F(CopyQueueTest, SoManyCopiesAreInFlightAndNoMore) {
  for (const size_t depth : {1u, 3u}) {
    depth_ = depth;
    size_t most = 0;
    size_t left = 10;
    SPW_EXPECT_OK(queue_.run(stream_, calm_, [&]() -> Result<bool> {
      enqueue();
      most = std::max(most, in_flight());
      return --left > 0;
    }));
    EXPECT_EQ(left, 0u);
    EXPECT_EQ(most, depth);
  }
}

TEST_F(CopyQueueTest, ADepthThatShrinksIsWaitedFor) {
  depth_ = 4;
  std::vector<size_t> found;
  SPW_EXPECT_OK(queue_.run(stream_, calm_, [&]() -> Result<bool> {
    enqueue();
    found.push_back(in_flight());
    if (found.size() == 4) depth_ = 1;
    return found.size() < 6;
  }));
  EXPECT_EQ(found, (std::vector<size_t>{1, 2, 3, 4, 1, 1}));
}

TEST_F(CopyQueueTest, EqualsTakeTurns) {
  move("a", 4, calm_, true);
  wait_until_held();
  move("b", 3, calm_);
  wait_for(2);
  move("c", 2, calm_);
  wait_for(3);
  open_and_join();
  EXPECT_EQ(order_, "abcabcaba");
}

TEST_F(CopyQueueTest, WhatIsWaitedForGoesFirstAndTakesTurnsWithItsLike) {
  Urgency urgent;
  Urgency too;
  const CopyStreams::Demand demand(*who_waits_, urgent);
  const CopyStreams::Demand another(*who_waits_, too);
  move("a", 3, calm_, true);
  wait_until_held();
  move("b", 2, calm_);
  wait_for(2);
  move("U", 3, urgent);
  wait_for(3);
  move("V", 2, too);
  wait_for(4);
  open_and_join();
  EXPECT_EQ(order_, "aUVUVUbaba");
}

TEST_F(CopyQueueTest, WhatBecomesUrgentOnItsWayGoesFirstFromThen) {
  Urgency later;
  move("a", 4, calm_, true);
  wait_until_held();
  move("b", 3, later);
  wait_for(2);
  {
    const CopyStreams::Demand demand(*who_waits_, later);
    queue_.reorder();
    open_and_join();
  }
  EXPECT_EQ(order_, "abbbaaa");
  EXPECT_FALSE(later.is_waited_for());
}

// Two wait for one move: it is urgent until neither does.
TEST_F(CopyQueueTest, AnUrgencyIsOneUntilTheLastGoes) {
  Urgency urgency;
  EXPECT_FALSE(urgency.is_waited_for());
  {
    const CopyStreams::Demand first(*who_waits_, urgency);
    { const CopyStreams::Demand second(*who_waits_, urgency); }
    EXPECT_TRUE(urgency.is_waited_for());
  }
  EXPECT_FALSE(urgency.is_waited_for());
}

TEST_F(CopyQueueTest, AMoveThatFailsIsOverAndOthersGoOn) {
  int copies = 0;
  const Status status = queue_.run(stream_, calm_, [&]() -> Result<bool> {
    if (++copies == 2) return Status::driver("refused");
    enqueue();
    return true;
  });
  EXPECT_EQ(status.text(), "refused");
  EXPECT_EQ(copies, 2);
  EXPECT_EQ(queue_.waiting(), 0u);
  for (int i = 0; i < 4; ++i) SPW_EXPECT_OK(one());
}

TEST_F(CopyQueueTest, WhatIsThrownLeavesTheQueueToOthers) {
  EXPECT_THROW((void)queue_.run(stream_, calm_, []() -> Result<bool> { throw std::bad_alloc(); }),
               std::bad_alloc);
  EXPECT_EQ(queue_.waiting(), 0u);
  SPW_EXPECT_OK(one());
}

TEST_F(CopyQueueTest, AMarkThatTheDriverRefusesIsAnError) {
  for (const char* call : {"cuEventCreate", "cuEventRecord", "cuEventSynchronize"}) {
    SCOPED_TRACE(call);
    depth_ = 1;
    events_.clear();
    SPW_EXPECT_OK(one());  // so that the next has one to wait for
    events_.clear();
    device_.inject_fault(call, 1, CUDA_ERROR_UNKNOWN);
    const Status status = queue_.run(stream_, calm_, [&]() -> Result<bool> {
      enqueue();
      events_.clear();
      return true;
    });
    EXPECT_EQ(status.code(), SPW_ERROR_DRIVER);
    EXPECT_NE(status.text().find(call), std::string::npos) << status.text();
    device_.clear_faults();
    EXPECT_EQ(queue_.waiting(), 0u);
    SPW_EXPECT_OK(one());
  }
}

// A move of any length creates no more events than may be in flight.
TEST_F(CopyQueueTest, EventsServeAgain) {
  depth_ = 2;
  for (int i = 0; i < 10; ++i) SPW_EXPECT_OK(one());
  EXPECT_LE(device_.calls("cuEventCreate"), 3u);
}

}  // namespace
}  // namespace spillway::test
