#include "allocator/readback.h"

#include <string>
#include <utility>
#include <vector>

#include "driver/memory.h"
#include "tests/support/device.h"
#include "tests/support/seeded.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

class ReadbackTest : public testing::Test {
 protected:
  explicit ReadbackTest(const std::string& configuration = "capacity:128MiB,completion:run-ahead")
      : device(configuration) {
    Result<DeviceBlock> block = DeviceBlock::allocate(*device.driver, 20 * kMiB);
    if (!block.ok()) throw std::runtime_error(block.status().text());
    memory = std::move(block.value());
  }
  void SetUp() override {
    if (!device.simulated()) GTEST_SKIP() << "needs work that waits to be done, and faults";
  }

  std::unique_ptr<Readback> create() const {
    Result<std::unique_ptr<Readback>> made = Readback::create(*device.driver);
    EXPECT_TRUE(made.ok()) << made.status().text();
    return std::move(made.value());
  }
  // Returns what the whole memory holds from now on.
  std::vector<uint8_t> fill(uint32_t seed) const {
    Random random(seed);
    std::vector<uint8_t> bytes(memory.bytes());
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    EXPECT_EQ(device.driver->cuMemcpyHtoD(memory.base(), bytes.data(), bytes.size()), CUDA_SUCCESS);
    return bytes;
  }
  void fill_later(CUstream stream, uint8_t byte, uint64_t bytes) const {
    EXPECT_EQ(device.driver->cuMemsetD8Async(memory.base(), byte, bytes, stream), CUDA_SUCCESS);
  }
  // All that is shown of the ranges, which come one after the other and each from its beginning.
  std::vector<std::vector<uint8_t>> read(Readback& readback, const std::vector<DeviceRange>& ranges) const {
    std::vector<std::vector<uint8_t>> shown(ranges.size());
    size_t last = 0;
    const Status status =
        readback.read(ranges, [&](size_t range, uint64_t offset, const uint8_t* bytes, size_t count) {
          ASSERT_LT(range, ranges.size());
          EXPECT_GE(range, last);
          last = range;
          EXPECT_EQ(offset, shown[range].size());
          EXPECT_GT(count, 0u);
          shown[range].insert(shown[range].end(), bytes, bytes + count);
        });
    EXPECT_TRUE(status.ok()) << status.text();
    return shown;
  }
  std::vector<uint8_t> read_first(Readback& readback, uint64_t bytes) const {
    return read(readback, {{memory.base(), bytes}}).front();
  }

  Device device;
  DeviceBlock memory;
};

TEST_F(ReadbackTest, ShowsEveryByteOfEveryRangeInOrder) {
  const std::vector<uint8_t> bytes = fill(1);
  const auto readback = create();
  // Around the size of the buffer, and several that share one.
  const std::pair<uint64_t, uint64_t> pieces[] = {
      {0, 4 * kMiB},         {7, 4 * kMiB - 1}, {5 * kMiB, 4 * kMiB + 1}, {100, 1}, {3, 0},
      {9 * kMiB, 11 * kMiB}, {50, 511},         {20 * kMiB - 3, 3},       {8, 0},   {kMiB + 1, 2 * kMiB + 9}};
  std::vector<DeviceRange> ranges;
  for (const auto& [offset, count] : pieces) ranges.push_back({memory.base() + offset, count});
  const auto shown = read(*readback, ranges);
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto begin = bytes.begin() + static_cast<ptrdiff_t>(pieces[i].first);
    EXPECT_TRUE(shown[i] == std::vector<uint8_t>(begin, begin + static_cast<ptrdiff_t>(pieces[i].second)))
        << "range " << i;
  }
  EXPECT_EQ(device.reports(), "");
}

TEST_F(ReadbackTest, WaitsOnceForEachBufferFull) {
  const auto readback = create();
  const auto waits_of = [&](const std::vector<DeviceRange>& ranges) {
    const uint64_t before = device.host_waits();
    read(*readback, ranges);
    return device.host_waits() - before;
  };
  EXPECT_EQ(waits_of(std::vector<DeviceRange>(100, {memory.base(), 1000})), 1u);
  EXPECT_EQ(waits_of({{memory.base(), 4 * kMiB}}), 1u);
  EXPECT_EQ(waits_of({{memory.base(), 4 * kMiB + 1}}), 2u);
  EXPECT_EQ(waits_of({{memory.base(), 20 * kMiB}}), 5u);
}

TEST_F(ReadbackTest, ReadsTheSameMemoryAnewEachTime) {
  const auto readback = create();
  for (const uint8_t byte : {uint8_t{3}, uint8_t{4}}) {
    EXPECT_EQ(device.driver->cuMemsetD8Async(memory.base(), byte, 100, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(device.driver->cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(read_first(*readback, 100), std::vector<uint8_t>(100, byte));
  }
  EXPECT_TRUE(read(*readback, {}).empty());
}

TEST_F(ReadbackTest, SeesWhatTheStreamsItComesAfterWereTold) {
  const auto readback = create();
  const CUstream first = device.stream();
  const CUstream second = device.stream();
  fill_later(first, 1, 1000);
  device.order(first, second);
  fill_later(second, 2, 500);
  SPW_EXPECT_OK(readback->order_after(first));
  SPW_EXPECT_OK(readback->order_after(second));
  EXPECT_EQ(device.host_waits(), 0u) << "the device waits";
  std::vector<uint8_t> expected(1000, 1);
  std::fill_n(expected.begin(), 500, uint8_t{2});
  EXPECT_EQ(read_first(*readback, 1000), expected);
  EXPECT_EQ(device.reports(), "");
}

TEST_F(ReadbackTest, SeesWhatAnEventMarks) {
  const auto readback = create();
  const CUstream stream = device.stream();
  Result<Event> event = Event::create(*device.driver);
  ASSERT_TRUE(event.ok());
  fill_later(stream, 7, 1000);
  SPW_EXPECT_OK(event->record(stream));
  SPW_EXPECT_OK(readback->order_after(event.value()));
  EXPECT_EQ(read_first(*readback, 1000), std::vector<uint8_t>(1000, 7));
  EXPECT_EQ(device.reports(), "");
}

TEST_F(ReadbackTest, ComesAndGoesWhileAnotherStreamIsCaptured) {
  const std::vector<uint8_t> bytes = fill(2);
  const CUstream captured = device.stream();
  device.begin_capture(captured);
  auto readback = create();
  EXPECT_EQ(read_first(*readback, 100), std::vector<uint8_t>(bytes.begin(), bytes.begin() + 100));
  readback.reset();
  device.discard_capture(captured);
}

// ---- Faults

TEST_F(ReadbackTest, WhatIsMadeHalfwayIsGivenBack) {
  const auto kept = [&] {
    return device.calls("cuStreamCreate") - device.calls("cuStreamDestroy") + device.calls("cuMemHostAlloc") -
           device.calls("cuMemFreeHost") + device.calls("cuEventCreate") - device.calls("cuEventDestroy");
  };
  const uint64_t before = kept();
  create().reset();
  EXPECT_EQ(kept(), before);
  uint64_t failed = 0;
  for (const char* call : {"cuStreamCreate", "cuMemHostAlloc", "cuEventCreate"}) {
    device.inject_fault(call, 1, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(Readback::create(*device.driver).status().code(), SPW_ERROR_OUT_OF_MEMORY) << call;
    EXPECT_EQ(kept(), before + ++failed) << call << ": only the calls that failed have nothing to give back";
  }
  EXPECT_NE(create(), nullptr);
}

TEST_F(ReadbackTest, AnErrorIsToldAndTheNextReadIsWhole) {
  const std::vector<uint8_t> bytes = fill(3);
  const auto readback = create();
  for (const char* call : {"cuMemcpyDtoHAsync", "cuStreamSynchronize"}) {
    for (const uint64_t nth : {uint64_t{1}, uint64_t{2}}) {
      device.inject_fault(call, nth, CUDA_ERROR_INVALID_VALUE);
      uint64_t shown = 0;
      const Status status =
          readback->read({{memory.base(), 4 * kMiB}, {memory.base(), kMiB}},
                         [&](size_t, uint64_t, const uint8_t*, size_t count) { shown += count; });
      EXPECT_EQ(status.code(), SPW_ERROR_DRIVER) << call << " " << nth;
      EXPECT_EQ(shown, nth == 1 ? 0 : 4 * kMiB) << call << " " << nth;
      device.clear_faults();
      EXPECT_EQ(read_first(*readback, 1000), std::vector<uint8_t>(bytes.begin(), bytes.begin() + 1000));
    }
  }
}

TEST_F(ReadbackTest, AnOrderThatTheDriverRefusesIsAnError) {
  const auto readback = create();
  const CUstream stream = device.stream();
  for (const char* call : {"cuEventRecord", "cuStreamWaitEvent"}) {
    device.inject_fault(call, 1, CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(readback->order_after(stream).code(), SPW_ERROR_DRIVER) << call;
  }
  SPW_EXPECT_OK(readback->order_after(stream));
}

}  // namespace
}  // namespace spillway::test
