// Streams that go, and handles that come again: the next stream takes over what is free, in order. The
// simulated driver gives a destroyed stream's handle to the next one at once, and runs what was enqueued on
// it only when the host waits; the race detector reports any reuse that was not ordered.

#include <thread>

#include "tests/support/device.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

const char* const kRunAhead = "capacity:64MiB,completion:run-ahead,devices:2";

class StreamIdentity : public testing::Test {
 protected:
  CUstream make() const {
    CUstream stream = nullptr;
    EXPECT_EQ(device_.driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return stream;
  }
  void destroy(CUstream stream) const { EXPECT_EQ(device_.driver->cuStreamDestroy(stream), CUDA_SUCCESS); }
  void announce_and_destroy(Arena& arena, CUstream stream) const {
    SPW_EXPECT_OK(arena.stream_destroyed(stream));
    destroy(stream);
  }
  // A block that is used on the stream, and freed.
  void* use(Arena& arena, size_t bytes, CUstream stream) const {
    void* block = must_allocate(arena, bytes, stream);
    device_.touch(stream, block, bytes);
    SPW_EXPECT_OK(Arena::free(block));
    return block;
  }

  Device device_{kRunAhead};
};

TEST_F(StreamIdentity, AnAnnouncedStreamLendsBehindAWaitOnTheDevice) {
  const auto arena = device_.arena({.limit_bytes = 60 * kMiB});
  const CUstream first = make();
  use(*arena, 60 * kMiB, first);
  announce_and_destroy(*arena, first);
  const CUstream second = make();
  if (device_.simulated()) {
    EXPECT_EQ(second, first) << "handles must come again, or this proves nothing";
  }
  use(*arena, 60 * kMiB, second);
  EXPECT_EQ(arena->stats().host_waits, 0);
  EXPECT_EQ(arena->stats().reserved_bytes.all.peak, static_cast<int64_t>(60 * kMiB));
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(device_.reports(), "");
  announce_and_destroy(*arena, second);
}

TEST_F(StreamIdentity, ABlockFreedAfterItsStreamHasGoneIsOrderedToo) {
  const auto arena = device_.arena();
  const CUstream first = make();
  void* block = must_allocate(*arena, 60 * kMiB, first);
  device_.touch(first, block, 60 * kMiB);
  announce_and_destroy(*arena, first);
  const CUstream second = make();
  void* small = must_allocate(*arena, kMiB, second);
  SPW_EXPECT_OK(Arena::free(block));
  use(*arena, 58 * kMiB, second);
  SPW_EXPECT_OK(Arena::free(small));
  EXPECT_EQ(arena->stats().host_waits, 0);
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(device_.reports(), "");
  announce_and_destroy(*arena, second);
}

TEST_F(StreamIdentity, AnAnnouncedUserOfABlockThatLivesOnIsWaitedForOnTheDevice) {
  const auto arena = device_.arena({.limit_bytes = 60 * kMiB});
  const CUstream owner = make();
  const CUstream other = make();
  const CUstream user = make();
  void* block = must_allocate(*arena, 60 * kMiB, owner);
  for (const CUstream stream : {user, other}) {
    device_.order(owner, stream);
    SPW_EXPECT_OK(Arena::record_stream(block, stream));
    device_.touch(stream, static_cast<char*>(block) + (stream == other ? kMiB : 0), kMiB);
  }
  announce_and_destroy(*arena, user);
  make();  // by the same handle
  device_.touch(other, static_cast<char*>(block) + 2 * kMiB, kMiB);
  SPW_EXPECT_OK(Arena::free(block));
  use(*arena, 60 * kMiB, owner);
  EXPECT_EQ(arena->stats().host_waits, 0);
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(device_.reports(), "");
}

TEST_F(StreamIdentity, StreamsThatComeAndGoHoldNoMoreThanOne) {
  const auto arena = device_.arena();
  int64_t tables = 0;
  void* place = nullptr;
  for (int round = 0; round < 20; ++round) {
    const CUstream stream = make();
    void* block = use(*arena, 20 * kMiB, stream);
    if (round > 0) {
      EXPECT_EQ(block, place);
    }
    place = block;
    SPW_EXPECT_OK(arena->stream_destroyed(stream));
    EXPECT_EQ(device_.driver->cuStreamSynchronize(stream), CUDA_SUCCESS);
    destroy(stream);
    if (round == 1) tables = arena->stats().metadata_bytes;
  }
  const DeviceStats stats = arena->stats();
  EXPECT_EQ(stats.reserved_bytes.all.peak, static_cast<int64_t>(20 * kMiB));
  EXPECT_EQ(stats.metadata_bytes, tables);
  EXPECT_EQ(stats.host_waits, 0);
  EXPECT_EQ(stats.stream_waits, 0);
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(device_.reports(), "");
}

TEST_F(StreamIdentity, AHeapTakenOverKeepsWaitingForOthersUses) {
  const auto arena = device_.arena();
  const CUstream user = device_.stream();
  const CUstream first = make();
  void* block = must_allocate(*arena, 40 * kMiB, first);
  device_.order(first, user);
  const Gate gate = device_.hold(user);
  device_.touch(user, block, 40 * kMiB);
  SPW_EXPECT_OK(Arena::record_stream(block, user));
  SPW_EXPECT_OK(Arena::free(block));
  SPW_EXPECT_OK(arena->stream_destroyed(first));
  EXPECT_EQ(device_.driver->cuStreamSynchronize(first), CUDA_SUCCESS);
  destroy(first);
  const CUstream second = make();
  use(*arena, 10 * kMiB, second);
  EXPECT_EQ(arena->stats().pending_bytes, static_cast<int64_t>(40 * kMiB));
  gate.open();
  use(*arena, 50 * kMiB, second);
  EXPECT_EQ(device_.reports(), "");
  SPW_EXPECT_OK(arena->validate());
  announce_and_destroy(*arena, second);
}

TEST_F(StreamIdentity, AHandleThatComesAgainUnannouncedIsFoundOutWhenItIsAskedFor) {
  const auto arena = device_.arena({.check_streams = true});
  for (int round = 0; round < 4; ++round) {
    const CUstream stream = make();
    use(*arena, 40 * kMiB, stream);
    SPW_EXPECT_OK(arena->validate());
    destroy(stream);
  }
  // What nothing else orders waits for the device, once for each stream that went.
  EXPECT_EQ(arena->stats().host_waits, 3);
  EXPECT_EQ(device_.reports(), "");
}

TEST_F(StreamIdentity, AHandleThatComesAgainUnannouncedIsFoundOutBeforeTheDriverIsCalled) {
  const auto arena = device_.arena();
  const CUstream first = make();
  use(*arena, 20 * kMiB, first);
  destroy(first);
  const CUstream second = make();
  use(*arena, 40 * kMiB, second);  // does not fit the first one's, so that pages must be created
  use(*arena, 20 * kMiB, second);
  use(*arena, 60 * kMiB, second);
  EXPECT_EQ(arena->stats().host_waits, 1);
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(device_.reports(), "");
  announce_and_destroy(*arena, second);
}

TEST_F(StreamIdentity, ALenderWhoseHandleCameAgainIsNotMistakenForTheNewStream) {
  const auto arena = device_.arena({.check_streams = true});
  const CUstream lender = make();
  const CUstream borrower = device_.stream();
  use(*arena, 60 * kMiB, lender);
  destroy(lender);
  const CUstream other = make();
  use(*arena, 60 * kMiB, borrower);
  EXPECT_EQ(arena->stats().host_waits, 1);
  EXPECT_EQ(device_.reports(), "");
  destroy(other);
}

TEST_F(StreamIdentity, AUserWhoseHandleCameAgainIsNotMistakenForTheNewStream) {
  const auto arena = device_.arena({.check_streams = true});
  const CUstream owner = device_.stream();
  const CUstream user = make();
  void* block = must_allocate(*arena, 60 * kMiB, owner);
  device_.order(owner, user);
  device_.touch(user, block, 60 * kMiB);
  SPW_EXPECT_OK(Arena::record_stream(block, user));
  destroy(user);
  const CUstream other = make();
  SPW_EXPECT_OK(Arena::free(block));
  use(*arena, 60 * kMiB, owner);
  EXPECT_EQ(arena->stats().host_waits, 1);
  EXPECT_EQ(device_.reports(), "");
  destroy(other);
}

TEST_F(StreamIdentity, AStreamWithTheOwnersOldHandleIsAnotherUser) {
  const auto arena = device_.arena();
  const CUstream owner = make();
  void* block = must_allocate(*arena, 60 * kMiB, owner);
  announce_and_destroy(*arena, owner);
  const CUstream user = make();
  device_.touch(user, block, 60 * kMiB);
  SPW_EXPECT_OK(Arena::record_stream(block, user));
  SPW_EXPECT_OK(Arena::free(block));
  EXPECT_EQ(arena->stats().pending_bytes, static_cast<int64_t>(60 * kMiB));
  use(*arena, 60 * kMiB, device_.stream());
  EXPECT_EQ(device_.reports(), "");
  announce_and_destroy(*arena, user);
}

TEST_F(StreamIdentity, ADestroyedStreamDoesNotStopATrim) {
  for (const bool announced : {true, false}) {
    const auto arena = device_.arena({.check_streams = !announced});
    const CUstream stream = make();
    use(*arena, 60 * kMiB, stream);
    if (announced) SPW_EXPECT_OK(arena->stream_destroyed(stream));
    destroy(stream);
    SPW_EXPECT_OK(arena->trim());
    EXPECT_EQ(arena->stats().reserved_bytes.all.current, 0);
    SPW_EXPECT_OK(arena->validate());
  }
  EXPECT_EQ(device_.reports(), "");
}

TEST_F(StreamIdentity, AStreamWhoseEndMayBeUnseenIsNamedToTheDriverOnlyByWhoeverNamesIt) {
  const auto arena = device_.arena();
  const CUstream other = device_.stream();
  for (int round = 0; round < 3; ++round) {
    const CUstream stream = make();
    arena->expect_unseen_end(stream);
    void* block = must_allocate(*arena, 40 * kMiB, stream);
    device_.touch(stream, block, 40 * kMiB);
    SPW_EXPECT_OK(Arena::free(block));
    SPW_EXPECT_OK(Arena::free(must_allocate(*arena, 20 * kMiB, stream)));
    destroy(stream);  // from here on the driver faults where it is named
    (void)arena->is_quiet();
    use(*arena, 50 * kMiB, other);
    SPW_EXPECT_OK(arena->settle());
    SPW_EXPECT_OK(arena->trim());
    SPW_EXPECT_OK(arena->validate());
  }
  EXPECT_GT(arena->stats().host_waits, 0) << "nothing else orders what it freed";
  EXPECT_EQ(device_.reports(), "");
}

class CapturedStreams : public StreamIdentity, public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(OfAnyEnd, CapturedStreams, testing::Bool());

TEST_P(CapturedStreams, AreAskedForNoNumber) {
  const auto arena = device_.arena();
  const CUstream captured = make();
  const CUstream joined = make();
  if (GetParam()) {
    for (const CUstream stream : {captured, joined}) arena->expect_unseen_end(stream);
  }
  SPW_EXPECT_OK(arena->begin_pool({0, 3}, [](CUstream) { return true; }));
  device_.begin_capture(captured);
  void* block = must_allocate(*arena, 4 * kMiB, captured);  // a stream that is seen for the first time
  device_.touch(captured, block, 4 * kMiB);
  device_.order(captured, joined);
  SPW_EXPECT_OK(Arena::record_stream(block, joined));
  device_.touch(joined, block, 4 * kMiB);
  device_.order(joined, captured);
  SPW_EXPECT_OK(Arena::free(block));
  void* second = must_allocate(*arena, 8 * kMiB, captured);  // which needs the driver
  device_.touch(captured, second, 8 * kMiB);
  SPW_EXPECT_OK(Arena::record_stream(second, captured));
  SPW_EXPECT_OK(Arena::free(second));
  CUgraph graph = nullptr;
  EXPECT_EQ(device_.driver->cuStreamEndCapture(captured, &graph), CUDA_SUCCESS)
      << "the capture is not disturbed";
  SPW_EXPECT_OK(arena->end_pool({0, 3}));
  use(*arena, 4 * kMiB, captured);
  SPW_EXPECT_OK(arena->release_pool({0, 3}));
  SPW_EXPECT_OK(arena->validate());
  EXPECT_EQ(device_.reports(), "");
  for (const CUstream stream : {captured, joined}) announce_and_destroy(*arena, stream);
}

TEST_F(StreamIdentity, AnnouncingAStreamThatHoldsNothingIsFine) {
  const auto arena = device_.arena();
  SPW_EXPECT_OK(arena->stream_destroyed(nullptr));
  SPW_EXPECT_OK(arena->stream_destroyed(CU_STREAM_PER_THREAD));
  SPW_EXPECT_OK(arena->stream_destroyed(device_.stream()));
  const CUstream stream = make();
  use(*arena, kMiB, stream);
  announce_and_destroy(*arena, stream);
  SPW_EXPECT_OK(arena->stream_destroyed(stream));
}

TEST_F(StreamIdentity, TheMemoryOfAThreadThatEndedServesOthers) {
  const auto arena = device_.arena();
  int64_t tables = 0;
  for (int round = 0; round < 5; ++round) {
    std::thread([&] {
      device_.driver->cuCtxSetCurrent(device_.context);
      use(*arena, 40 * kMiB, CU_STREAM_PER_THREAD);
    }).join();
    SPW_EXPECT_OK(arena->validate());
    if (round == 1) tables = arena->stats().metadata_bytes;
  }
  EXPECT_LE(arena->stats().metadata_bytes, tables);
  EXPECT_EQ(arena->stats().host_waits, 4);
  EXPECT_EQ(device_.reports(), "");
}

TEST_F(StreamIdentity, BothNamesOfTheDefaultStreamAreOneStream) {
  const auto arena = device_.arena();
  void* block = use(*arena, 20 * kMiB, nullptr);
  EXPECT_EQ(use(*arena, 20 * kMiB, CU_STREAM_LEGACY), block);
  EXPECT_EQ(arena->stats().reserved_bytes.all.peak, static_cast<int64_t>(20 * kMiB));
  EXPECT_EQ(device_.reports(), "");
}

TEST_F(StreamIdentity, AStreamOfAnotherDeviceIsRefused) {
  if (!device_.simulated()) GTEST_SKIP() << "two devices are simulated: a machine need not have them";
  const auto arena = device_.arena();
  void* block = must_allocate(*arena, kMiB, nullptr);
  CUcontext other = nullptr;
  ASSERT_EQ(device_.driver->cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(device_.driver->cuCtxPushCurrent(other), CUDA_SUCCESS);
  const CUstream foreign = make();
  CUcontext popped = nullptr;
  ASSERT_EQ(device_.driver->cuCtxPopCurrent(&popped), CUDA_SUCCESS);
  const DeviceStats before = arena->stats();
  void* refused = &refused;
  const Status allocated = arena->allocate(kMiB, foreign, &refused);
  EXPECT_EQ(allocated.code(), SPW_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(allocated.text().find("another context than the memory of device 0"), std::string::npos);
  EXPECT_EQ(refused, nullptr);
  EXPECT_EQ(Arena::record_stream(block, foreign).code(), SPW_ERROR_INVALID_ARGUMENT);
  SPW_EXPECT_OK(Arena::free(block));
  EXPECT_EQ(arena->stats().pending_bytes, 0) << "the refused use must not be waited for";
  EXPECT_EQ(arena->stats().allocation.all.allocated, before.allocation.all.allocated);
  destroy(foreign);
  device_.driver->cuDevicePrimaryCtxRelease(1);
}

// A part of the device's multiprocessors, with a context of its own.
class GreenStreams : public StreamIdentity {
 protected:
  void SetUp() override {
    const auto get = find<decltype(&cuDeviceGetDevResource)>("cuDeviceGetDevResource");
    const auto split = find<decltype(&cuDevSmResourceSplitByCount)>("cuDevSmResourceSplitByCount");
    const auto describe = find<decltype(&cuDevResourceGenerateDesc)>("cuDevResourceGenerateDesc");
    const auto create = find<decltype(&cuGreenCtxCreate)>("cuGreenCtxCreate");
    if (get == nullptr || split == nullptr || describe == nullptr || create == nullptr) {
      GTEST_SKIP() << "the driver has no green contexts";
    }
    CUdevResource all{};
    CUdevResource group{};
    CUdevResourceDesc described = nullptr;
    unsigned groups = 1;
    ASSERT_EQ(get(0, &all, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
    ASSERT_EQ(split(&group, &groups, &all, nullptr, 0, 8), CUDA_SUCCESS);
    ASSERT_EQ(describe(&described, &group, 1), CUDA_SUCCESS);
    ASSERT_EQ(create(&green_, described, 0, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_SUCCESS);
  }
  void TearDown() override {
    if (green_ != nullptr) find<decltype(&cuGreenCtxDestroy)>("cuGreenCtxDestroy")(green_);
  }
  CUstream make_green() {
    CUstream made = nullptr;
    const auto create = find<decltype(&cuGreenCtxStreamCreate)>("cuGreenCtxStreamCreate");
    EXPECT_EQ(create(&made, green_, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    return made;
  }
  template <typename Function>
  Function find(const char* name) {
    return reinterpret_cast<Function>(device_.driver->find(name));
  }

  CUgreenCtx green_ = nullptr;
};

TEST_F(GreenStreams, AreServedAndTheirMemoryServesOthersInOrder) {
  const auto arena = device_.arena();
  const CUstream green = make_green();
  const CUstream other = make();
  for (int round = 0; round < 3; ++round) {
    for (const CUstream on : {green, other}) use(*arena, 50 * kMiB, on);
    void* block = must_allocate(*arena, 20 * kMiB, other);
    device_.order(other, green);
    device_.touch(green, block, 20 * kMiB);
    SPW_EXPECT_OK(Arena::record_stream(block, green));
    SPW_EXPECT_OK(Arena::free(block));
  }
  SPW_EXPECT_OK(arena->validate());
  SPW_EXPECT_OK(arena->stream_destroyed(green));
  EXPECT_EQ(device_.driver->cuStreamDestroy(green), CUDA_SUCCESS);
  use(*arena, 60 * kMiB, other);
  announce_and_destroy(*arena, other);
  EXPECT_EQ(device_.reports(), "");
}

}  // namespace
}  // namespace spillway::test
