#include "allocator/pending_frees.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "driver/memory.h"
#include "tests/support/device.h"

namespace spillway::test {
namespace {

constexpr uint64_t kBlockBytes = kPageBytes;

// Blocks of a heap whose stream is `owner`. Work on the device is done only when the host waits for it.
class PendingFreesTest : public testing::Test {
 protected:
  struct Completed {
    CachedRange* range;
    uint32_t slot;
    bool operator==(const Completed&) const = default;
  };

  void SetUp() override {
    if (!device.simulated()) GTEST_SKIP() << "needs work that waits to be done";
  }

  // A block of a page, used by work on these streams after the owner's.
  CachedRange& block(const std::vector<CUstream>& users, bool notes_captures = false) {
    Result<DeviceBlock> memory = DeviceBlock::allocate(*device.driver, kBlockBytes);
    EXPECT_TRUE(memory.ok());
    const auto number = static_cast<PageId>(ranges_.size());
    ranges_.push_back(std::make_unique<CachedRange>());
    CachedRange& range = *ranges_.back();
    range.va = memory->base();
    range.quanta = kPageQuanta;
    range.runs = RunList(PageRun{number, 1});
    memory_.push_back(std::move(memory.value()));
    touch(owner, range);
    for (const CUstream user : users) use(range, user, notes_captures);
    return range;
  }
  void use(CachedRange& range, CUstream user, bool notes_captures = false) {
    device.order(owner, user);
    touch(user, range);
    const Result<StreamIdentity> identity = pending.identify_user(user);
    ASSERT_TRUE(identity.ok());
    SPW_EXPECT_OK(pending.add_use(range.va, identity.value(), user, notes_captures));
  }
  void touch(CUstream stream, const CachedRange& range) {
    device.touch(stream, reinterpret_cast<void*>(range.va), kBlockBytes);
  }
  void free(CachedRange& range, uint32_t slot = kMostSlots) {
    pending.add(range, slot, range.va, timeline.epoch());
  }
  void finish(CUstream stream) const { EXPECT_EQ(device.driver->cuStreamSynchronize(stream), CUDA_SUCCESS); }
  size_t complete_finished() { return pending.complete_finished(timeline, owner); }
  size_t complete_behind(uint32_t enough_quanta) {
    Result<size_t> count = pending.complete_behind(owner, enough_quanta);
    EXPECT_TRUE(count.ok()) << count.status().text();
    return count.ok() ? count.value() : 0;
  }
  std::vector<CUevent> events() const {
    std::vector<CUevent> listed;
    pending.list_events(listed);
    return listed;
  }
  void begin_capture(CUstream stream) const { device.begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED); }
  void end_capture(CUstream stream) const { device.discard_capture(stream); }

  Device device{"capacity:256MiB,completion:run-ahead"};
  DeviceCounters counters;
  EventPool pool{*device.driver};
  std::vector<Completed> completed;
  PendingFrees pending{
      *device.driver, device.context, 0, pool, counters, [this](CachedRange& range, uint32_t slot) {
        completed.push_back({&range, slot});
      }};
  Timeline timeline;
  const CUstream owner = device.stream();
  const CUstream first = device.stream();
  const CUstream second = device.stream();

 private:
  std::vector<std::unique_ptr<CachedRange>> ranges_;
  std::vector<DeviceBlock> memory_;
};

TEST_F(PendingFreesTest, AFreeWaitsForEveryStreamThatUsesTheBlock) {
  CachedRange& range = block({first, second});
  EXPECT_TRUE(pending.empty());
  free(range, 7);
  EXPECT_FALSE(pending.empty());
  EXPECT_TRUE(pending.have_events());
  EXPECT_EQ(events().size(), 2u);
  EXPECT_EQ(complete_finished(), 0u);
  finish(first);
  EXPECT_EQ(complete_finished(), 0u);
  EXPECT_TRUE(completed.empty());
  finish(second);
  EXPECT_EQ(complete_finished(), 1u);
  EXPECT_EQ(completed, (std::vector<Completed>{{&range, 7}}));
  EXPECT_TRUE(pending.empty());
}

TEST_F(PendingFreesTest, AStreamThatIsNamedTwiceIsWaitedForOnce) {
  CachedRange& range = block({first, first});
  free(range);
  EXPECT_EQ(events().size(), 1u);
}

TEST_F(PendingFreesTest, OnlyWorkBeforeTheFreeIsWaitedFor) {
  CachedRange& range = block({first});
  free(range);
  finish(first);
  CachedRange& other = block({first});
  EXPECT_EQ(complete_finished(), 1u);
  free(other);
  EXPECT_EQ(complete_finished(), 0u);
  // Each block has its own users: the next one at an address begins anew.
  free(range);
  EXPECT_EQ(complete_finished(), 1u);
  EXPECT_EQ(completed.back().range, &range);
}

TEST_F(PendingFreesTest, WhoUsesABlockIsKnownUntilItsFreeIsComplete) {
  CachedRange& range = block({first});
  EXPECT_TRUE(pending.is_used_by(first));
  EXPECT_FALSE(pending.is_used_by(second));
  begin_capture(first);
  free(range);
  EXPECT_TRUE(pending.is_used_by(first)) << "it takes no event while it is captured";
  end_capture(first);
  finish(first);
  EXPECT_EQ(complete_finished(), 1u);
  EXPECT_FALSE(pending.is_used_by(first));
}

TEST_F(PendingFreesTest, AWaitOfTheHostForTheDeviceCompletesWhatWasFreedBefore) {
  CachedRange& before = block({first});
  CachedRange& behind = block({first});
  free(before);
  const uint64_t awaited = timeline.begin_wait();
  free(behind);
  timeline.end_wait(awaited);
  EXPECT_EQ(complete_finished(), 1u);
  EXPECT_EQ(completed, (std::vector<Completed>{{&before, kMostSlots}}));
  EXPECT_EQ(pool.kept(), 1u) << "its event serves again";
}

TEST_F(PendingFreesTest, WhatAnotherStreamTakesOverGoesOnWaiting) {
  CachedRange& range = block({first});
  free(range);
  timeline.seal(true);
  timeline.end_wait(timeline.begin_wait());
  timeline.reopen();
  pending.restart(timeline.epoch());
  EXPECT_EQ(complete_finished(), 0u);
  finish(first);
  EXPECT_EQ(complete_finished(), 1u);
}

// ---- Waits on the device

TEST_F(PendingFreesTest, TheOwnersStreamWaitsOldestFirstUntilItHasEnough) {
  std::vector<CachedRange*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(&block({first}));
  for (CachedRange* range : blocks) free(*range, range == blocks[0] ? 5 : kMostSlots);
  const uint64_t waits = counters.stream_waits();
  // A slot of a slab does not count.
  EXPECT_EQ(complete_behind(kPageQuanta + 1), 3u);
  EXPECT_EQ(completed,
            (std::vector<Completed>{{blocks[0], 5}, {blocks[1], kMostSlots}, {blocks[2], kMostSlots}}));
  EXPECT_EQ(counters.stream_waits() - waits, 3u);
  EXPECT_EQ(device.host_waits(), 0u);
  for (int i = 0; i < 3; ++i) touch(owner, *blocks[static_cast<size_t>(i)]);
  EXPECT_EQ(device.reports(), "");
  EXPECT_FALSE(pending.empty());
}

TEST_F(PendingFreesTest, TheFreeOfOneRangeIsCompleteBehindAWait) {
  CachedRange& one = block({first});
  CachedRange& other = block({second});
  CachedRange& never_freed = block({first});
  free(one);
  free(other);
  EXPECT_FALSE(pending.complete_range_behind(owner, never_freed));
  EXPECT_TRUE(pending.complete_range_behind(owner, other));
  EXPECT_FALSE(pending.complete_range_behind(owner, other));
  EXPECT_EQ(completed, (std::vector<Completed>{{&other, kMostSlots}}));
  touch(owner, other);
  EXPECT_EQ(device.reports(), "");
}

TEST_F(PendingFreesTest, FreesOnSomePagesAreCompleteBehindAWait) {
  std::vector<CachedRange*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(&block({first}));
  blocks[0]->runs.assign({{10, 3}});
  blocks[1]->runs.assign({{20, 1}, {30, 5}});
  blocks[2]->runs.assign({});
  blocks[2]->head_page = 14;
  blocks[3]->runs.assign({{40, 1}});
  blocks[3]->tail_page = 13;
  for (CachedRange* range : blocks) free(*range);
  pending.complete_pages_behind(owner, {13, 34});
  EXPECT_EQ(completed, (std::vector<Completed>{{blocks[1], kMostSlots}, {blocks[3], kMostSlots}}));
  pending.complete_pages_behind(owner, {12, 14});
  EXPECT_EQ(completed.size(), 4u);
}

TEST_F(PendingFreesTest, AWaitThatFailsCompletesNothing) {
  CachedRange& range = block({first});
  free(range);
  device.inject_fault("cuStreamWaitEvent", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_FALSE(pending.complete_behind(owner, 1).ok());
  device.inject_fault("cuStreamWaitEvent", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_FALSE(pending.complete_range_behind(owner, range));
  EXPECT_TRUE(completed.empty());
  EXPECT_FALSE(pending.empty());
  EXPECT_TRUE(pending.complete_range_behind(owner, range));
}

// ---- Streams that take no event

TEST_F(PendingFreesTest, AnEventThatCannotBeRecordedIsTriedAgain) {
  CachedRange& range = block({first});
  device.inject_fault("cuEventRecord", 1, CUDA_ERROR_OUT_OF_MEMORY);
  free(range);
  EXPECT_FALSE(pending.have_events());
  EXPECT_TRUE(events().empty());
  EXPECT_EQ(complete_behind(1), 0u);
  EXPECT_FALSE(pending.complete_range_behind(owner, range));
  pending.complete_pages_behind(owner, {range.runs.begin()->first});
  EXPECT_TRUE(completed.empty());
  EXPECT_EQ(complete_finished(), 0u);
  EXPECT_TRUE(pending.have_events());
  finish(first);
  EXPECT_EQ(complete_finished(), 1u);
}

TEST_F(PendingFreesTest, AStreamThatGoesLeavesItsEventsBehind) {
  const CUstream gone = device.stream();
  CachedRange& live = block({gone});
  CachedRange& freed = block({gone});
  begin_capture(gone);
  free(freed);
  end_capture(gone);
  EXPECT_FALSE(pending.have_events());
  pending.stream_goes(pending.identify_user(gone).value());
  EXPECT_TRUE(pending.have_events());
  EXPECT_FALSE(pending.is_used_by(gone));
  device.destroy(gone);
  free(live);
  EXPECT_EQ(events().size(), 2u);
  EXPECT_TRUE(pending.have_events());
  EXPECT_EQ(complete_finished(), 0u);
  EXPECT_EQ(complete_behind(2 * kPageQuanta), 2u);
  touch(owner, live);
  touch(owner, freed);
  EXPECT_EQ(device.reports(), "");
}

TEST_F(PendingFreesTest, AStreamThatWentUnannouncedIsDoneAfterAWaitOfTheHost) {
  const CUstream gone = device.stream();
  CachedRange& range = block({});
  StreamIdentity user = pending.identify_user(gone).value();
  user.ends_unseen = true;
  SPW_EXPECT_OK(pending.add_use(range.va, user, gone, false));
  device.destroy(gone);
  free(range);
  EXPECT_FALSE(pending.have_events());
  EXPECT_EQ(complete_finished(), 0u);
  timeline.end_wait(timeline.begin_wait());
  EXPECT_EQ(complete_finished(), 1u);
}

TEST_F(PendingFreesTest, AStreamOfAnotherContextIsRefused) {
  const auto create =
      reinterpret_cast<CUresult (*)(CUcontext*, unsigned, CUdevice)>(device.driver->find("cuCtxCreate_v2"));
  const auto destroy = reinterpret_cast<CUresult (*)(CUcontext)>(device.driver->find("cuCtxDestroy_v2"));
  ASSERT_NE(create, nullptr);
  ASSERT_NE(destroy, nullptr);
  CachedRange& range = block({});
  CUcontext other = nullptr;
  ASSERT_EQ(create(&other, 0, 0), CUDA_SUCCESS);
  CUstream foreign = nullptr;
  device.driver->cuStreamCreate(&foreign, CU_STREAM_NON_BLOCKING);
  device.driver->cuCtxSetCurrent(device.context);
  const Result<StreamIdentity> identity = pending.identify_user(foreign);
  ASSERT_TRUE(identity.ok());
  EXPECT_EQ(pending.add_use(range.va, identity.value(), foreign, false).code(), SPW_ERROR_INVALID_ARGUMENT);
  EXPECT_FALSE(pending.is_used_by(foreign));
  EXPECT_EQ(destroy(other), CUDA_SUCCESS);
  device.driver->cuCtxSetCurrent(device.context);
}

// ---- Captures

class PendingFreesInCaptures : public PendingFreesTest {};

TEST_F(PendingFreesInCaptures, AFreeIsCompleteOnceTheOwnersStreamComesAfterItsUsers) {
  begin_capture(owner);
  CachedRange& range = block({first}, true);
  free(range);
  EXPECT_EQ(complete_finished(), 0u);
  device.order(first, owner);
  EXPECT_EQ(complete_finished(), 1u);
  end_capture(owner);
  EXPECT_EQ(device.reports(), "");
}

TEST_F(PendingFreesInCaptures, WorkBehindTheFreeNeedNotBeJoined) {
  begin_capture(owner);
  CachedRange& one = block({first}, true);
  CachedRange& another = block({second}, true);
  free(one);
  device.order(first, owner);
  touch(first, another);
  EXPECT_EQ(complete_finished(), 1u);
  free(another);
  EXPECT_EQ(complete_finished(), 0u) << "the second stream has not joined";
  device.order(first, owner);
  device.order(second, owner);
  EXPECT_EQ(complete_finished(), 1u);
  end_capture(owner);
}

TEST_F(PendingFreesInCaptures, UsesBeforeTheCaptureAreNotTakenForCaptured) {
  CachedRange& range = block({first}, true);
  begin_capture(owner);
  use(range, first, true);
  free(range);
  device.order(first, owner);
  EXPECT_EQ(complete_finished(), 0u) << "what it did before may still be at work";
  end_capture(owner);
  finish(first);
  EXPECT_EQ(complete_finished(), 1u);
}

TEST_F(PendingFreesInCaptures, WhereCapturesAreNotNotedTheFreeWaitsForTheirEnd) {
  begin_capture(owner);
  CachedRange& range = block({first});
  free(range);
  device.order(first, owner);
  EXPECT_EQ(complete_finished(), 0u);
  end_capture(owner);
  EXPECT_EQ(complete_finished(), 1u);
}

}  // namespace
}  // namespace spillway::test
