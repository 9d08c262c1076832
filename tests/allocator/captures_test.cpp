// Streams that are captured, and memory that graphs are replayed over: a replay runs on any stream, so that
// what came before in its memory must be over when it is captured, and nothing else may come near it
// afterwards.

#include <thread>

#include "tests/support/device.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

constexpr size_t kBytes = 30 * kMiB;
constexpr PoolId kPool{1, 0};

// Room for one block.
class Captures : public testing::Test {
 protected:
  static ArenaOptions options() {
    ArenaOptions options;
    options.limit_bytes = kBytes;
    return options;
  }

  void* use(CUstream stream) {
    void* block = must_allocate(*arena_, kBytes, stream);
    device_.touch(stream, block, kBytes);
    return block;
  }
  // So often that the allocator expects it again.
  void use_and_free(CUstream stream) {
    for (int i = 0; i < 3; ++i) SPW_EXPECT_OK(Arena::free(use(stream)));
  }
  void pass_on_and_free(void* block, CUstream owner, CUstream user) {
    device_.order(owner, user);
    device_.touch(user, block, kBytes);
    SPW_EXPECT_OK(Arena::record_stream(block, user));
    SPW_EXPECT_OK(Arena::free(block));
  }
  void expect_out_of_memory(CUstream stream) {
    void* block = nullptr;
    EXPECT_EQ(arena_->allocate(kBytes, stream, &block).code(), SPW_ERROR_OUT_OF_MEMORY);
  }
  void open_pool() {
    SPW_EXPECT_OK(arena_->begin_pool(kPool, [this](CUstream on) { return on == captured_; }));
  }
  void begin() { device_.begin_capture(captured_); }
  CUgraph end() { return device_.end_capture(captured_); }
  // Memory is fetched and given back, and captured over.
  CUgraphExec fetch_and_capture() {
    SPW_EXPECT_OK(Arena::free(must_allocate(*arena_, kBytes, captured_)));
    begin();
    SPW_EXPECT_OK(Arena::free(use(captured_)));
    CUgraph graph = end();
    CUgraphExec exec = nullptr;
    EXPECT_EQ(device_.graph_instantiate(&exec, graph, 0), CUDA_SUCCESS);
    device_.driver->cuGraphDestroy(graph);
    return exec;
  }
  // On a stream that waits for nothing.
  void replay(CUgraphExec exec) {
    EXPECT_EQ(device_.graph_launch(exec, device_.stream()), CUDA_SUCCESS);
    EXPECT_EQ(device_.graph_exec_destroy(exec), CUDA_SUCCESS);
    EXPECT_EQ(device_.reports(), "");
  }
  void fetch_capture_and_replay() { replay(fetch_and_capture()); }
  void announce_and_destroy(CUstream stream) {
    SPW_EXPECT_OK(arena_->stream_destroyed(stream));
    device_.destroy(stream);
  }

  Device device_{"capacity:1GiB,completion:run-ahead"};
  std::unique_ptr<Arena> arena_ = device_.arena(options());
  const CUstream captured_ = device_.stream();
  const CUstream other_ = device_.stream();
  const CUstream third_ = device_.stream();
};

TEST_F(Captures, ACapturedStreamDoesNotGetItsPlaceBack) {
  use_and_free(captured_);
  use_and_free(other_);
  begin();
  expect_out_of_memory(captured_);
  device_.driver->cuGraphDestroy(end());
  EXPECT_EQ(device_.reports(), "");
}

TEST_F(Captures, ACapturedStreamDoesNotWaitForItsPendingFrees) {
  use_and_free(captured_);
  const Gate gate = device_.hold(other_);
  pass_on_and_free(use(captured_), captured_, other_);
  begin();
  expect_out_of_memory(captured_);
  device_.driver->cuGraphDestroy(end());
  EXPECT_EQ(device_.reports(), "");
}

TEST_F(Captures, WhatOthersDidWithABlockInTheSameGraphIsOverOnceTheyHaveJoined) {
  open_pool();
  begin();
  void* block = use(captured_);
  pass_on_and_free(block, captured_, other_);
  expect_out_of_memory(captured_);
  device_.order(other_, captured_);
  EXPECT_EQ(use(captured_), block);
  // By way of a third.
  pass_on_and_free(block, captured_, other_);
  device_.order(other_, third_);
  expect_out_of_memory(captured_);
  device_.order(third_, captured_);
  EXPECT_EQ(use(captured_), block);
  SPW_EXPECT_OK(Arena::free(block));
  CUgraph graph = end();
  CUgraphExec exec = nullptr;
  ASSERT_EQ(device_.graph_instantiate(&exec, graph, 0), CUDA_SUCCESS);
  device_.driver->cuGraphDestroy(graph);
  replay(exec);
  SPW_EXPECT_OK(arena_->validate());
}

TEST_F(Captures, WhatOthersDidWithABlockBeforeTheGraphIsNotInIt) {
  open_pool();
  void* block = use(captured_);
  device_.order(captured_, other_);
  device_.touch(other_, block, kBytes);
  SPW_EXPECT_OK(Arena::record_stream(block, other_));
  begin();
  pass_on_and_free(block, captured_, other_);
  device_.order(other_, captured_);
  expect_out_of_memory(captured_);
  device_.driver->cuGraphDestroy(end());
  EXPECT_EQ(device_.reports(), "");
}

TEST_F(Captures, ACapturedStreamDoesNotWaitForTheSakeOfOthers) {
  use_and_free(other_);
  pass_on_and_free(use(captured_), captured_, third_);
  begin();
  expect_out_of_memory(other_);
  device_.driver->cuGraphDestroy(end());
  SPW_EXPECT_OK(Arena::free(use(other_)));
  EXPECT_EQ(device_.reports(), "");
}

TEST_F(Captures, WhatOtherStreamsDidIsOverBeforeAPoolTakesTheirPages) {
  use_and_free(other_);
  open_pool();
  fetch_capture_and_replay();
}

TEST_F(Captures, WhatOtherStreamsDidToABlockOfAPoolIsOverBeforeItIsTakenAgain) {
  for (const bool expected : {false, true}) {
    EXPECT_EQ(device_.driver->cuCtxSynchronize(), CUDA_SUCCESS);
    arena_.reset();
    arena_ = device_.arena(options());
    open_pool();
    if (expected) {
      for (int i = 0; i < 3; ++i) SPW_EXPECT_OK(Arena::free(must_allocate(*arena_, kBytes, captured_)));
    }
    pass_on_and_free(must_allocate(*arena_, kBytes, captured_), captured_, other_);
    fetch_capture_and_replay();
  }
}

TEST_F(Captures, ReplaysAreOverBeforeAReleasedPoolLends) {
  open_pool();
  fetch_capture_and_replay();
  SPW_EXPECT_OK(arena_->end_pool(kPool));
  SPW_EXPECT_OK(arena_->release_pool(kPool));
  use_and_free(other_);
  EXPECT_EQ(device_.reports(), "");
}

// Elsewhere a thread may have a pool open, for as long as it likes, or have died in it.
TEST_F(Captures, APoolThatIsOpenForAThreadKeepsNothingOfDeletedGraphs) {
  arena_.reset();
  arena_ = device_.arena();
  const std::thread::id thread = std::this_thread::get_id();
  SPW_EXPECT_OK(arena_->begin_pool({9, 0}, [=](CUstream) { return std::this_thread::get_id() == thread; }));
  SPW_EXPECT_OK(Arena::free(must_allocate(*arena_, 2 * kMiB, other_)));
  open_pool();
  CUgraphExec exec = fetch_and_capture();
  SPW_EXPECT_OK(arena_->end_pool(kPool));
  replay(exec);
  SPW_EXPECT_OK(arena_->release_pool(kPool));
  SPW_EXPECT_OK(arena_->trim());
  EXPECT_EQ(arena_->stats().reserved_bytes.all.current, static_cast<int64_t>(2 * kMiB));
  SPW_EXPECT_OK(arena_->end_pool({9, 0}));
  EXPECT_EQ(device_.reports(), "");
}

// A stream that is not captured yet may be later on.
TEST_F(Captures, APoolThatIsOpenForAStreamIsTakenForACapture) {
  open_pool();
  SPW_EXPECT_OK(Arena::free(must_allocate(*arena_, 2 * kMiB, captured_)));
  EXPECT_FALSE(arena_->is_quiet());
  SPW_EXPECT_OK(arena_->end_pool(kPool));
  EXPECT_TRUE(arena_->is_quiet());
}

TEST_F(Captures, ReplaysAreOverBeforeAReleasedPoolWhoseStreamIsGoneLends) {
  open_pool();
  CUgraphExec exec = fetch_and_capture();
  SPW_EXPECT_OK(arena_->end_pool(kPool));
  announce_and_destroy(captured_);
  SPW_EXPECT_OK(arena_->trim());  // after which the stream is over, but not what its graph will do
  replay(exec);
  SPW_EXPECT_OK(arena_->release_pool(kPool));
  use_and_free(other_);
  EXPECT_EQ(device_.reports(), "");
}

TEST_F(Captures, ReplaysAreOverBeforeAReleasedPoolWhoseStreamIsGoneServesAnother) {
  open_pool();
  fetch_capture_and_replay();
  SPW_EXPECT_OK(arena_->end_pool(kPool));
  announce_and_destroy(captured_);
  SPW_EXPECT_OK(arena_->release_pool(kPool));
  use_and_free(device_.stream());
  EXPECT_EQ(device_.reports(), "");
}

// A program that makes a stream for every graph, too.
TEST_F(Captures, PoolsThatComeAndGoWithTheirStreamsLeaveNothingBehind) {
  for (uint64_t number = 1; number <= 5; ++number) {
    const CUstream stream = device_.stream();
    SPW_EXPECT_OK(arena_->begin_pool({number, 7}, [=](CUstream on) { return on == stream; }));
    SPW_EXPECT_OK(Arena::free(use(stream)));
    SPW_EXPECT_OK(arena_->end_pool({number, 7}));
    announce_and_destroy(stream);
    SPW_EXPECT_OK(arena_->release_pool({number, 7}));
    SPW_EXPECT_OK(arena_->trim());
    EXPECT_EQ(arena_->stats().heaps, 1);
  }
  // Nor does the last of them.
  SPW_EXPECT_OK(Arena::free(use(other_)));
  EXPECT_EQ(arena_->stats().heaps, 1);
  SPW_EXPECT_OK(arena_->validate());
  EXPECT_EQ(device_.reports(), "");
}

// A graph may be replayed over the place of a block that was freed under capture: its view stays, however
// many others are wanted.
TEST_F(Captures, ViewsOfAPoolOutliveTheirBlocks) {
  constexpr size_t kPage = 2 * kMiB;
  constexpr size_t kViewPages = 4;
  ArenaOptions narrow;
  narrow.most_mappings = 40;
  arena_.reset();
  arena_ = device_.arena(narrow);
  const auto scatter = [&](CUstream stream, size_t vacant_pages) {
    std::vector<void*> pages;
    for (size_t i = 0; i < 2 * vacant_pages; ++i) pages.push_back(must_allocate(*arena_, kPage, stream));
    for (size_t i = 1; i < pages.size(); i += 2) SPW_EXPECT_OK(Arena::free(pages[i]));
  };
  open_pool();
  scatter(captured_, kViewPages);
  const int64_t before = arena_->stats().live_mappings;
  begin();
  void* block = must_allocate(*arena_, kViewPages * kPage, captured_);
  device_.touch(captured_, block, kViewPages * kPage);
  SPW_EXPECT_OK(Arena::free(block));
  CUgraph graph = end();
  ASSERT_EQ(arena_->stats().live_mappings - before, static_cast<int64_t>(kViewPages)) << "a view was needed";
  CUgraphExec exec = nullptr;
  EXPECT_EQ(device_.graph_instantiate(&exec, graph, 0), CUDA_SUCCESS);
  device_.driver->cuGraphDestroy(graph);
  SPW_EXPECT_OK(
      Arena::free(must_allocate(*arena_, kPage, captured_)));  // it is not what the pool served last
  SPW_EXPECT_OK(arena_->end_pool(kPool));
  const int64_t waits = arena_->stats().host_waits;
  scatter(other_, 6);
  for (size_t pages = 2; pages <= 6; ++pages) {
    void* other = must_allocate(*arena_, pages * kPage, other_);
    device_.touch(other_, other, pages * kPage);
    SPW_EXPECT_OK(Arena::free(other));
  }
  EXPECT_GT(arena_->stats().host_waits, waits) << "no view was retired";
  replay(exec);
  EXPECT_EQ(device_.driver->cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(device_.reports(), "");
}

TEST_F(Captures, AnOpenPoolGivesNoPlaceBack) {
  use_and_free(other_);
  open_pool();
  SPW_EXPECT_OK(Arena::free(must_allocate(*arena_, kBytes, captured_)));
  SPW_EXPECT_OK(arena_->end_pool(kPool));
  SPW_EXPECT_OK(arena_->trim());  // a wait after which nothing is in use
  expect_out_of_memory(other_);
  EXPECT_EQ(arena_->stats().reserved_bytes.all.current, static_cast<int64_t>(kBytes));
}

// No event marks what a thread's default stream does for others.
TEST_F(Captures, NoUseOnAThreadsDefaultStreamIsForgotten) {
  use_and_free(other_);
  pass_on_and_free(use(other_), other_, CU_STREAM_PER_THREAD);
  use(other_);
  EXPECT_EQ(device_.reports(), "");
}

TEST_F(Captures, NoUseOnAThreadsDefaultStreamIsForgottenByALender) {
  use_and_free(other_);
  pass_on_and_free(use(third_), third_, CU_STREAM_PER_THREAD);
  use(other_);
  EXPECT_EQ(device_.reports(), "");
}

// The arena was never asked for memory on a stream, and cannot ask whether it captures.
TEST_F(Captures, TheCaptureOfAStreamThatTheArenaDoesNotKnowGoesOn) {
  const auto expect_capture_survives = [&](const auto& body) {
    begin();
    body();
    device_.driver->cuGraphDestroy(end());
    EXPECT_EQ(device_.reports(), "");
  };
  SPW_EXPECT_OK(Arena::free(use(other_)));
  expect_capture_survives([&] { SPW_EXPECT_OK(arena_->trim()); });
  EXPECT_EQ(arena_->stats().reserved_bytes.all.current, 0);
  // The last wait before memory has run out.
  pass_on_and_free(use(other_), other_, third_);
  expect_capture_survives([&] { SPW_EXPECT_OK(Arena::free(use(third_))); });
  // With pages that only a wait for the whole context could free.
  SPW_EXPECT_OK(arena_->trim());
  SPW_EXPECT_OK(arena_->begin_pool({2, 0}, [&](CUstream on) { return on == other_; }));
  SPW_EXPECT_OK(Arena::free(use(other_)));
  SPW_EXPECT_OK(arena_->end_pool({2, 0}));
  SPW_EXPECT_OK(arena_->release_pool({2, 0}));
  open_pool();
  expect_capture_survives([&] { SPW_EXPECT_OK(arena_->trim()); });
  EXPECT_EQ(arena_->stats().reserved_bytes.all.current, static_cast<int64_t>(kBytes));
  SPW_EXPECT_OK(arena_->end_pool(kPool));
  SPW_EXPECT_OK(arena_->trim());
  EXPECT_EQ(arena_->stats().reserved_bytes.all.current, 0);
}

// What the event of its end is after can be waited for; without one, only the whole context can.
TEST_F(Captures, AWaitReachesStreamsThatAreGone) {
  for (const bool announced : {true, false}) {
    const CUstream gone = device_.stream();
    if (!announced) arena_->expect_unseen_end(gone);
    SPW_EXPECT_OK(Arena::free(use(gone)));
    if (announced) SPW_EXPECT_OK(arena_->stream_destroyed(gone));
    device_.destroy(gone);
    open_pool();
    begin();
    SPW_EXPECT_OK(arena_->trim());
    device_.driver->cuGraphDestroy(end());
    EXPECT_EQ(arena_->stats().reserved_bytes.all.current, announced ? 0 : static_cast<int64_t>(kBytes));
    SPW_EXPECT_OK(arena_->end_pool(kPool));
    SPW_EXPECT_OK(arena_->trim());
    EXPECT_EQ(arena_->stats().reserved_bytes.all.current, 0);
    EXPECT_EQ(device_.reports(), "");
    SPW_EXPECT_OK(arena_->release_pool(kPool));
  }
}

TEST_F(Captures, ABlockingStreamsCaptureGoesOn) {
  CUstream blocking = nullptr;
  EXPECT_EQ(device_.driver->cuStreamCreate(&blocking, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  pass_on_and_free(use(other_), other_, CU_STREAM_PER_THREAD);  // which no event marks
  device_.begin_capture(blocking);
  SPW_EXPECT_OK(arena_->trim());
  device_.discard_capture(blocking);
  SPW_EXPECT_OK(arena_->trim());
  EXPECT_EQ(arena_->stats().reserved_bytes.all.current, 0);
  EXPECT_EQ(device_.reports(), "");
  device_.driver->cuStreamDestroy(blocking);
}

TEST_F(Captures, TheEndOfAnArenaWaitsForWhatIsEnqueued) {
  pass_on_and_free(use(other_), other_, third_);
  use(captured_);
  arena_.reset();
  device_.driver->cuCtxSynchronize();
  EXPECT_EQ(device_.reports(), "");
  if (device_.simulated()) {
    EXPECT_EQ(device_.live_mappings(), 0u);
  }
}

TEST_F(Captures, TheEndOfAnArenaEndsNoCapture) {
  void* block = use(captured_);
  begin();
  device_.touch(captured_, block, kBytes);
  arena_.reset();
  CUgraph graph = end();
  CUgraphExec exec = nullptr;
  ASSERT_EQ(device_.graph_instantiate(&exec, graph, 0), CUDA_SUCCESS);
  device_.driver->cuGraphDestroy(graph);
  device_.order(captured_, other_);
  EXPECT_EQ(device_.graph_launch(exec, other_), CUDA_SUCCESS);
  EXPECT_EQ(device_.graph_exec_destroy(exec), CUDA_SUCCESS);
  device_.driver->cuCtxSynchronize();
  EXPECT_EQ(device_.reports(), "");
}

// A program that serves requests by graphs which it captures, replays and drops.
TEST_F(Captures, PoolsThatComeAndGoLeaveNothingBehind) {
  constexpr size_t kSmall = 1000;
  arena_ = device_.arena({});
  const auto serve = [&](uint64_t number) {
    const PoolId pool{number, 7};
    SPW_EXPECT_OK(arena_->begin_pool(pool, [this](CUstream on) { return on == captured_; }));
    begin();
    for (const size_t bytes : {3 * kMiB, kSmall}) {
      void* block = must_allocate(*arena_, bytes, captured_);
      device_.touch(captured_, block, bytes);
      SPW_EXPECT_OK(Arena::free(block));
    }
    SPW_EXPECT_OK(arena_->end_pool(pool));
    CUgraph graph = end();
    CUgraphExec exec = nullptr;
    ASSERT_EQ(device_.graph_instantiate(&exec, graph, 0), CUDA_SUCCESS);
    device_.driver->cuGraphDestroy(graph);
    EXPECT_EQ(device_.graph_launch(exec, number % 2 == 0 ? other_ : third_), CUDA_SUCCESS);
    EXPECT_EQ(device_.graph_exec_destroy(exec), CUDA_SUCCESS);
    SPW_EXPECT_OK(arena_->release_pool(pool));
  };
  DeviceStats early;
  for (uint64_t number = 1; number <= 1000; ++number) {
    serve(number);
    if (number == 300) early = arena_->stats();
  }
  const DeviceStats late = arena_->stats();
  EXPECT_LE(late.heaps, 70);
  EXPECT_EQ(late.heaps, early.heaps);
  EXPECT_EQ(late.reserved_bytes.all.current, early.reserved_bytes.all.current);
  EXPECT_LE(late.metadata_bytes, early.metadata_bytes + early.metadata_bytes / 10);
  SPW_EXPECT_OK(arena_->validate());
  device_.driver->cuCtxSynchronize();
  EXPECT_EQ(device_.reports(), "");
}

}  // namespace
}  // namespace spillway::test
