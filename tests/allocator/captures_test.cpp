// Streams that are captured, and memory that graphs are replayed over: a replay runs on any stream, so that
// what came before in its memory must be over when it is captured, and nothing else may come near it
// afterwards.

#include "tests/allocator/device.h"

namespace spillway::test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
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
  void begin() {
    EXPECT_EQ(device_.driver->cuStreamBeginCapture(captured_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  }
  CUgraph end() {
    CUgraph graph = nullptr;
    EXPECT_EQ(device_.driver->cuStreamEndCapture(captured_, &graph), CUDA_SUCCESS);
    return graph;
  }
  // Memory is fetched and given back; what is captured over it then runs on a stream that waits for nothing.
  void fetch_capture_and_replay() {
    SPW_EXPECT_OK(Arena::free(must_allocate(*arena_, kBytes, captured_)));
    begin();
    SPW_EXPECT_OK(Arena::free(use(captured_)));
    CUgraph graph = end();
    CUgraphExec exec = nullptr;
    ASSERT_EQ(device_.graph_instantiate(&exec, graph, 0), CUDA_SUCCESS);
    device_.driver->cuGraphDestroy(graph);
    EXPECT_EQ(device_.graph_launch(exec, device_.stream()), CUDA_SUCCESS);
    EXPECT_EQ(device_.graph_exec_destroy(exec), CUDA_SUCCESS);
    EXPECT_EQ(device_.reports(), "");
  }

  Device device_{"capacity:64MiB,completion:run-ahead"};
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
  pass_on_and_free(use(captured_), captured_, other_);
  begin();
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

TEST_F(Captures, AnOpenPoolGivesNoPlaceBack) {
  use_and_free(other_);
  open_pool();
  SPW_EXPECT_OK(Arena::free(must_allocate(*arena_, kBytes, captured_)));
  SPW_EXPECT_OK(arena_->trim());
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

}  // namespace
}  // namespace spillway::test
