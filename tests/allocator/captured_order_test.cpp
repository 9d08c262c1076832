#include "allocator/captured_order.h"

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "tests/support/device.h"
#include "tests/support/seeded.h"

namespace spillway::test {
namespace {

constexpr int kStreams = 4;

// Streams that are captured into one graph, and what came before what by hand.
class CapturedOrderTest : public testing::Test {
 protected:
  CapturedOrderTest() {
    for (int i = 0; i < kStreams; ++i) streams.push_back(device.stream());
    device.driver->cuMemAlloc(&memory, 4096);
  }
  ~CapturedOrderTest() override { device.driver->cuMemFree(memory); }

  // All of them, with one operation before what they do from now on.
  void begin() {
    before.assign(kStreams, {});
    device.begin_capture(streams[0], CU_STREAM_CAPTURE_MODE_RELAXED);
    work(0);
    for (size_t i = 1; i < kStreams; ++i) order(0, i);
  }
  void end() {
    for (size_t i = 1; i < kStreams; ++i) order(i, 0);
    device.discard_capture(streams[0]);
  }
  void work(size_t on) {
    EXPECT_EQ(device.driver->cuMemsetD8Async(memory, 1, 16, streams[on]), CUDA_SUCCESS);
    before[on].insert(++operations_);
  }
  void order(size_t earlier, size_t later) {
    device.order(streams[earlier], streams[later]);
    before[later].insert(before[earlier].begin(), before[earlier].end());
  }
  CaptureTail tail(size_t of) const {
    const std::optional<CaptureTail> found = capture_tail(*device.driver, streams[of]);
    EXPECT_TRUE(found.has_value());
    return found.value_or(CaptureTail());
  }
  bool is_behind(size_t stream, const CaptureTail& earlier) {
    order_of_.look(*device.driver, streams[stream]);
    return order_of_.is_behind(earlier);
  }

  Device device{"capacity:16MiB"};
  std::vector<CUstream> streams;
  std::vector<std::set<int>> before;  // the operations that a stream's next one comes after
  CUdeviceptr memory = 0;

 private:
  CapturedOrder order_of_;
  int operations_ = 0;
};

TEST_F(CapturedOrderTest, WhatAnotherStreamDidIsBehindOnceItHasJoined) {
  begin();
  work(1);
  const CaptureTail earlier = tail(1);
  EXPECT_FALSE(is_behind(0, earlier));
  work(0);
  EXPECT_FALSE(is_behind(0, earlier));
  order(1, 0);
  EXPECT_TRUE(is_behind(0, earlier));
  work(1);
  EXPECT_FALSE(is_behind(0, tail(1))) << "it went on";
  EXPECT_TRUE(is_behind(0, earlier));
  end();
}

TEST_F(CapturedOrderTest, AStreamMayJoinThroughOthers) {
  begin();
  work(3);
  const CaptureTail earlier = tail(3);
  order(3, 2);
  work(2);
  order(2, 1);
  EXPECT_FALSE(is_behind(0, earlier));
  order(1, 0);
  EXPECT_TRUE(is_behind(0, earlier));
  end();
}

TEST_F(CapturedOrderTest, AllOfATailMustBeBehind) {
  begin();
  work(1);
  work(2);
  order(1, 0);
  order(2, 1);  // stream 1's next work comes after both
  const CaptureTail both = tail(1);
  EXPECT_EQ(both.nodes.size(), 2u);
  EXPECT_FALSE(is_behind(0, both));
  order(2, 0);
  EXPECT_TRUE(is_behind(0, both));
  end();
}

TEST_F(CapturedOrderTest, AgreesWithSetsOfOperations) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    Random random(seed);
    begin();
    CapturedOrder orders[kStreams];
    int behind = 0;
    struct Noted {
      CaptureTail tail;
      std::set<int> operations;
    };
    std::vector<Noted> noted;
    for (int step = 0; step < 120; ++step) {
      const size_t one = random() % kStreams;
      const size_t other = (one + 1 + random() % (kStreams - 1)) % kStreams;
      switch (random() % 4) {
        case 0:
          work(one);
          break;
        case 1:
          order(one, other);
          break;
        case 2:
          noted.push_back({tail(one), before[one]});
          break;
        default:
          orders[one].look(*device.driver, streams[one]);
          for (const Noted& each : noted) {
            const bool expected = std::includes(before[one].begin(), before[one].end(),
                                                each.operations.begin(), each.operations.end());
            ASSERT_EQ(orders[one].is_behind(each.tail), expected) << "seed " << seed << ", step " << step;
            behind += expected;
          }
      }
    }
    EXPECT_GT(behind, 0);
    end();
  }
}

// ---- Outside of captures

TEST_F(CapturedOrderTest, AStreamThatIsNotCapturedHasNoTail) {
  EXPECT_FALSE(capture_tail(*device.driver, streams[0]).has_value());
  begin();
  EXPECT_TRUE(capture_tail(*device.driver, streams[0]).has_value());
  const CaptureTail earlier = tail(1);
  end();
  EXPECT_FALSE(capture_tail(*device.driver, streams[0]).has_value());
  EXPECT_FALSE(is_behind(0, earlier)) << "the capture is over";
  EXPECT_FALSE(is_behind(0, CaptureTail()));
}

TEST_F(CapturedOrderTest, NoCaptureIsTakenForAnother) {
  begin();
  for (int i = 0; i < 20; ++i) work(0);
  const CaptureTail first = tail(0);
  EXPECT_TRUE(is_behind(0, first));
  end();
  begin();
  const CaptureTail second = tail(0);
  EXPECT_NE(first.capture, second.capture);
  EXPECT_TRUE(is_behind(0, second));
  EXPECT_FALSE(is_behind(0, first));
  // The driver may give a node of the second the name that one of the first had.
  EXPECT_FALSE(is_behind(0, CaptureTail{first.capture, second.nodes}));
  if (first.nodes != second.nodes) {
    EXPECT_FALSE(is_behind(0, CaptureTail{second.capture, first.nodes}));
  }
  end();
}

TEST_F(CapturedOrderTest, ATailIsOfWorkThatWasSeen) {
  device.begin_capture(streams[0], CU_STREAM_CAPTURE_MODE_RELAXED);
  const CaptureTail nothing = tail(0);
  EXPECT_TRUE(nothing.nodes.empty());
  EXPECT_FALSE(is_behind(0, nothing)) << "nothing is known to be before it yet";
  device.discard_capture(streams[0]);
}

TEST_F(CapturedOrderTest, WhereTheDriverDoesNotTellNothingIsBehind) {
  if (!device.simulated()) GTEST_SKIP() << "faults are made by the simulated driver";
  begin();
  work(1);
  work(1);
  const CaptureTail earlier = tail(1);
  order(1, 0);
  work(0);
  device.inject_fault("cuStreamGetCaptureInfo", 1, CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(capture_tail(*device.driver, streams[0]).has_value());
  for (const char* call : {"cuStreamGetCaptureInfo", "cuGraphNodeGetDependencies"}) {
    CapturedOrder order;
    device.inject_fault(call, 1, CUDA_ERROR_INVALID_VALUE);
    order.look(*device.driver, streams[0]);
    EXPECT_FALSE(order.is_behind(earlier)) << call;
  }
  CapturedOrder order;
  device.inject_fault("cuGraphNodeGetDependencies", 2, CUDA_ERROR_INVALID_VALUE);
  order.look(*device.driver, streams[0]);
  EXPECT_FALSE(order.is_behind(earlier)) << "it told how many, and not which";
  EXPECT_TRUE(is_behind(0, earlier));
  end();
}

TEST_F(CapturedOrderTest, LooksAtEachNodeOnce) {
  if (!device.simulated()) GTEST_SKIP() << "calls are counted by the simulated driver";
  begin();
  for (int i = 0; i < 20; ++i) work(0);
  is_behind(0, {});
  const uint64_t calls = device.calls("cuGraphNodeGetDependencies");
  is_behind(0, {});
  EXPECT_EQ(device.calls("cuGraphNodeGetDependencies"), calls);
  work(0);
  is_behind(0, {});
  EXPECT_LE(device.calls("cuGraphNodeGetDependencies") - calls, 2u);
  end();
}

}  // namespace
}  // namespace spillway::test
