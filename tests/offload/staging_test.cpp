// Buffers between a device and a disk: as many as serve, of plain memory where none can be pinned, and given
// back only when neither side uses them any more.
#include "offload/spill/staging.h"

#include <string>
#include <thread>
#include <utility>

#include "tests/support/spilling.h"

namespace spillway::test {
namespace {

constexpr uint64_t kBuffer = Staging::kBufferBytes;

TEST(DiskWork, IsOverWhenAllHaveEndedWithTheFirstError) {
  DiskWork work;
  SPW_EXPECT_OK(work.wait());  // nothing was begun
  work.begin(3);
  std::thread disk([&] {
    work.end({});
    work.end(Status::io("first"));
    work.end(Status::data_lost("second"));
  });
  EXPECT_EQ(work.wait().text(), "first");
  disk.join();
  SPW_EXPECT_OK(work.wait());  // it was told
  work.begin(1);
  work.begin(1);
  work.end({});
  std::thread last([&] { work.end(Status::io("of the second")); });
  EXPECT_EQ(work.wait().text(), "of the second");
  last.join();
}

class StagingTest : public testing::Test {
 protected:
  // Nothing is complete before somebody waits for it.
  StagingTest() : device_("completion:run-ahead") {
    mark_ = reinterpret_cast<decltype(mark_)>(device_.driver->find("spwSimMark"));
    is_complete_ = reinterpret_cast<decltype(is_complete_)>(device_.driver->find("spwSimIsComplete"));
    Result<std::unique_ptr<CopyStreams>> made = CopyStreams::create(*device_.driver);
    if (!made.ok()) throw std::runtime_error(made.status().text());
    copies_ = std::move(made.value());
    EXPECT_EQ(device_.driver->cuMemAlloc(&memory_, kBuffer), CUDA_SUCCESS);
  }
  ~StagingTest() override { device_.driver->cuMemFree(memory_); }

  std::unique_ptr<Staging> create(uint64_t bytes, size_t most, bool wants_pinned = true) {
    Result<std::unique_ptr<Staging>> made = Staging::create(*copies_, pinned_, bytes, most, wants_pinned);
    EXPECT_TRUE(made.ok()) << made.status().text();
    return made.ok() ? std::move(made.value()) : nullptr;
  }
  // Enqueues a copy into the buffer; answers where it is in its stream.
  uint64_t copy(Staging::Buffer& buffer) {
    SPW_EXPECT_OK(copies_->copy_out(buffer.memory, memory_, kBuffer));
    return mark_(copies_->out());
  }
  // Neither a copy's mark nor its stream can be waited for, once.
  void fail_waits() {
    device_.inject_fault("cuEventSynchronize", 1, CUDA_ERROR_UNKNOWN);
    device_.inject_fault("cuStreamSynchronize", 1, CUDA_ERROR_UNKNOWN);
  }
  bool is_complete(uint64_t mark) const { return is_complete_(copies_->out(), mark) != 0; }
  // Tells whether all that is pinned is free; what is goes.
  bool all_free() {
    const uint64_t bytes = pinned_.reserved_bytes();
    return pinned_.release_free() == bytes;
  }

  Device device_;
  PinnedArena pinned_{*device_.driver, {}};
  std::unique_ptr<CopyStreams> copies_;
  CUdeviceptr memory_ = 0;
  decltype(&spwSimMark) mark_ = nullptr;
  decltype(&spwSimIsComplete) is_complete_ = nullptr;
};

TEST_F(StagingTest, HasAsManyBuffersAsServe) {
  const std::pair<uint64_t, size_t> cases[] = {{0, 1},           {1, 1},           {kBuffer, 1},
                                               {kBuffer + 1, 2}, {3 * kBuffer, 3}, {100 * kBuffer, 4}};
  for (const auto& [bytes, buffers] : cases) {
    const std::unique_ptr<Staging> staging = create(bytes, 4);
    EXPECT_EQ(staging->size(), buffers) << bytes;
    EXPECT_TRUE(staging->is_pinned());
    EXPECT_EQ(&staging->at(0), &staging->at(buffers)) << "a ring";
    for (size_t i = 1; i < buffers; ++i) EXPECT_NE(staging->at(i).memory, staging->at(0).memory);
  }
  EXPECT_TRUE(all_free());
}

TEST_F(StagingTest, PlainMemoryIsNotPinned) {
  const std::unique_ptr<Staging> staging = create(3 * kBuffer, 4, false);
  EXPECT_EQ(staging->size(), 3u);
  EXPECT_FALSE(staging->is_pinned());
  EXPECT_EQ(pinned_.reserved_bytes(), 0u);
  EXPECT_EQ(device_.calls("cuMemHostRegister"), 0u);
}

TEST_F(StagingTest, WhatCanBePinnedServes) {
  pinned_.set_most_bytes(2 * kBuffer);
  const std::unique_ptr<Staging> staging = create(4 * kBuffer, 4);
  EXPECT_EQ(staging->size(), 2u);
  EXPECT_TRUE(staging->is_pinned());
}

TEST_F(StagingTest, WhereNothingCanBePinnedOnePlainBufferDoes) {
  device_.inject_fault("cuMemHostRegister", 1, CUDA_ERROR_OUT_OF_MEMORY);
  const std::unique_ptr<Staging> staging = create(4 * kBuffer, 4);
  EXPECT_EQ(staging->size(), 1u) << "the host has little left";
  EXPECT_FALSE(staging->is_pinned());
  (void)copy(staging->at(0));
  SPW_EXPECT_OK(staging->mark_copy(staging->at(0), copies_->out()));
  SPW_EXPECT_OK(staging->wait_for_copy(staging->at(0)));
}

TEST_F(StagingTest, WithoutEventsThereAreNoBuffersAndNoneIsLost) {
  for (const uint64_t nth : {1u, 3u}) {
    copies_->events().clear();
    device_.inject_fault("cuEventCreate", nth, CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(Staging::create(*copies_, pinned_, 3 * kBuffer, 3, true).take_status().code(),
              SPW_ERROR_DRIVER);
    device_.clear_faults();
    EXPECT_TRUE(all_free());
  }
}

TEST_F(StagingTest, ACopyIsWaitedForOnce) {
  const std::unique_ptr<Staging> staging = create(kBuffer, 1);
  Staging::Buffer& buffer = staging->at(0);
  const uint64_t waits = device_.calls("cuEventSynchronize");
  SPW_EXPECT_OK(staging->wait_for_copy(buffer));
  EXPECT_EQ(device_.calls("cuEventSynchronize"), waits) << "nothing is being copied";
  const uint64_t mark = copy(buffer);
  SPW_EXPECT_OK(staging->mark_copy(buffer, copies_->out()));
  EXPECT_FALSE(is_complete(mark));
  for (int i = 0; i < 2; ++i) SPW_EXPECT_OK(staging->wait_for_copy(buffer));
  EXPECT_TRUE(is_complete(mark));
  EXPECT_EQ(device_.calls("cuEventSynchronize"), waits + 1);
}

TEST_F(StagingTest, ACopyThatCannotBeMarkedIsWaitedFor) {
  const std::unique_ptr<Staging> staging = create(kBuffer, 1);
  Staging::Buffer& buffer = staging->at(0);
  const uint64_t mark = copy(buffer);
  device_.inject_fault("cuEventRecord", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(staging->mark_copy(buffer, copies_->out()).code(), SPW_ERROR_DRIVER);
  EXPECT_TRUE(is_complete(mark));
  EXPECT_EQ(buffer.copying, nullptr);
}

TEST_F(StagingTest, ACopyWhoseMarkCannotBeWaitedForEndsWithItsStream) {
  std::unique_ptr<Staging> staging = create(kBuffer, 1);
  const uint64_t mark = copy(staging->at(0));
  SPW_EXPECT_OK(staging->mark_copy(staging->at(0), copies_->out()));
  device_.inject_fault("cuEventSynchronize", 1, CUDA_ERROR_UNKNOWN);
  staging.reset();
  EXPECT_TRUE(is_complete(mark));
  EXPECT_TRUE(all_free());
}

TEST_F(StagingTest, SettlesWhenCopiesAndDiskAreDone) {
  const std::unique_ptr<Staging> staging = create(2 * kBuffer, 2);
  uint64_t mark = 0;
  for (size_t i = 0; i < 2; ++i) {
    mark = copy(staging->at(i));
    SPW_EXPECT_OK(staging->mark_copy(staging->at(i), copies_->out()));
  }
  staging->at(1).disk.begin(1);
  std::thread disk([&] { staging->at(1).disk.end(Status::io("is the mover's to tell")); });
  EXPECT_TRUE(staging->settle());
  disk.join();
  EXPECT_TRUE(is_complete(mark));
  (void)copy(staging->at(0));
  SPW_EXPECT_OK(staging->mark_copy(staging->at(0), copies_->out()));
  fail_waits();
  EXPECT_FALSE(staging->settle());
  EXPECT_TRUE(staging->settle()) << "the next time it can be told";
}

TEST_F(StagingTest, BuffersAreFreeWhenTheirCopiesAreDone) {
  std::unique_ptr<Staging> staging = create(2 * kBuffer, 2);
  const uint64_t mark = copy(staging->at(1));
  SPW_EXPECT_OK(staging->mark_copy(staging->at(1), copies_->out()));
  EXPECT_FALSE(all_free());
  staging.reset();
  EXPECT_TRUE(is_complete(mark));
  EXPECT_TRUE(all_free());
  EXPECT_EQ(copies_->events().kept(), 2u) << "for the next ones";
}

// The device may still write to it: whoever got it would find other bytes.
TEST_F(StagingTest, ABufferWhoseCopyCannotBeWaitedForIsNeverUsedAgain) {
  std::unique_ptr<Staging> staging = create(2 * kBuffer, 2);
  (void)copy(staging->at(1));
  SPW_EXPECT_OK(staging->mark_copy(staging->at(1), copies_->out()));
  fail_waits();
  staging.reset();
  EXPECT_FALSE(all_free());
  EXPECT_EQ(pinned_.take(2 * kBuffer), nullptr);
  EXPECT_EQ(device_.driver->cuStreamSynchronize(copies_->out()), CUDA_SUCCESS);
}

// DeepSpeed#3506: what was larger than a buffer was refused. DeepSpeed#3062: so was what found none free.
TEST(Staging, FewBuffersAndPlainOnesDo) {
  const Folder directory;
  for (const size_t buffers : {1u, 3u}) {
    for (const bool pins : {true, false}) {
      DiskTierOptions options = disk_options(directory.path());
      options.buffers = buffers;
      options.pins_buffers = pins;
      Tiers tiers("capacity:128MiB,completion:late", options);
      const std::unique_ptr<Arena> arena = tiers.device.arena();
      TestRegion weights(tiers, *arena, {9, 1});
      weights.write(weights.allocate(50 * (1 << 20)), 1);
      SPW_EXPECT_OK(weights.evict(SpillTo::kDisk));
      EXPECT_EQ(tiers.pinned.reserved_bytes() > 0, pins);
      SPW_EXPECT_OK(weights.restore());
      EXPECT_TRUE(weights.all_intact());
      EXPECT_EQ(tiers.device.reports(), "");
    }
  }
}

}  // namespace
}  // namespace spillway::test
