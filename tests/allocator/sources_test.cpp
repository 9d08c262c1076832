// Pools whose memory comes from a source of their own.

#include <memory>
#include <random>

#include "tests/support/segment_source.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

constexpr PoolId kPool{0, 7};

class SourcesTest : public testing::Test {
 protected:
  void open(Source& source, PoolId pool = kPool) {
    SPW_EXPECT_OK(arena_->retain_pool(pool));
    SPW_EXPECT_OK(arena_->set_pool_source(pool, source.functions()));
    SPW_EXPECT_OK(arena_->begin_pool(pool, nullptr));
  }
  void release(PoolId pool = kPool) {
    SPW_EXPECT_OK(arena_->end_pool(pool));
    SPW_EXPECT_OK(arena_->release_pool(pool));
    SPW_EXPECT_OK(arena_->release_pool(pool));
  }
  void expect_sound() {
    SPW_EXPECT_OK(arena_->validate());
    EXPECT_EQ(device_.reports(), "");
  }
  int64_t reserved() const { return arena_->stats().reserved_bytes.all.current; }

  Device device_{"capacity:256MiB,completion:late"};
  std::unique_ptr<Arena> arena_ = device_.arena();
  Source source_{*device_.driver};
};

TEST_F(SourcesTest, ManyBlocksAreOfOneSegment) {
  open(source_);
  std::vector<void*> blocks;
  for (const size_t bytes : {size_t{600}, 300 * size_t{1024}, 2 * kMiB, 3 * kMiB + 100, 4 * kMiB}) {
    blocks.push_back(must_allocate(*arena_, bytes, nullptr));
    EXPECT_TRUE(source_.holds(blocks.back()));
    device_.touch(nullptr, blocks.back(), bytes);
  }
  EXPECT_EQ(source_.asked, 2) << "2 MiB for what is small, 20 MiB for the rest";
  EXPECT_EQ(reserved(), static_cast<int64_t>(22 * kMiB));
  for (void* block : blocks) SPW_EXPECT_OK(Arena::free(block));
  SPW_EXPECT_OK(arena_->trim());
  EXPECT_EQ(source_.held(), 2u) << "a pool keeps its memory";
  EXPECT_EQ(must_allocate(*arena_, 4 * kMiB, nullptr), blocks.back());
  SPW_EXPECT_OK(Arena::free(blocks.back()));
  EXPECT_EQ(source_.asked, 2);
  release();
  EXPECT_EQ(source_.held(), 0u);
  EXPECT_EQ(reserved(), 0);
  expect_sound();
}

TEST_F(SourcesTest, EachBlockOfAPoolThatSplitsNothingIsOfOneSegment) {
  SPW_EXPECT_OK(arena_->retain_pool(kPool));
  SPW_EXPECT_OK(arena_->set_pool_source(kPool, source_.functions()));
  SPW_EXPECT_OK(arena_->set_pool_no_split(kPool));
  SPW_EXPECT_OK(arena_->begin_pool(kPool, nullptr));
  std::vector<void*> blocks;
  for (const size_t bytes : {size_t{600}, 300 * size_t{1024}, 2 * kMiB, 3 * kMiB + 100, 4 * kMiB}) {
    blocks.push_back(must_allocate(*arena_, bytes, nullptr));
    device_.touch(nullptr, blocks.back(), bytes);
    EXPECT_EQ(source_.held(), blocks.size());
    EXPECT_TRUE(source_.begins_at(blocks.back()));
  }
  EXPECT_EQ(reserved(), static_cast<int64_t>(14 * kMiB)) << "no more than each needs";
  // What is free serves what it is not much too large for, whole.
  SPW_EXPECT_OK(Arena::free(blocks[4]));
  void* const half = must_allocate(*arena_, kMiB, nullptr);
  EXPECT_EQ(half, blocks[4]);
  void* const more = must_allocate(*arena_, kMiB, nullptr);
  EXPECT_TRUE(source_.begins_at(more));
  EXPECT_EQ(source_.held(), 6u);
  SPW_EXPECT_OK(Arena::free(half));
  blocks[4] = must_allocate(*arena_, 5 * kMiB, nullptr);
  EXPECT_EQ(source_.held(), 7u);
  for (void* block : blocks) SPW_EXPECT_OK(Arena::free(block));
  SPW_EXPECT_OK(Arena::free(more));
  EXPECT_EQ(arena_->set_pool_no_split({5, 5}).code(), SPW_ERROR_INVALID_STATE);
  release();
  EXPECT_EQ(source_.held(), 0u);
  expect_sound();
}

TEST_F(SourcesTest, APoolThatLendsServesItsStreamInsteadOfRunningOut) {
  const CUstream stream = device_.stream();
  open(source_);
  SPW_EXPECT_OK(arena_->set_pool_lends(kPool, true));
  SPW_EXPECT_OK(arena_->set_pool_lends(kPool, true));
  void* inside = must_allocate(*arena_, 128 * kMiB, stream);
  device_.touch(stream, inside, 128 * kMiB);
  SPW_EXPECT_OK(arena_->end_pool(kPool));
  SPW_EXPECT_OK(Arena::free(inside));
  std::vector<void*> blocks;
  // Not before it is needed.
  blocks.push_back(must_allocate(*arena_, 100 * kMiB, stream));
  EXPECT_FALSE(source_.holds(blocks.back()));
  for (const size_t bytes : {100 * kMiB, 20 * kMiB, 40 * kMiB}) {
    void* outside = nullptr;
    if (bytes == 40 * kMiB) {
      EXPECT_EQ(arena_->allocate(bytes, stream, &outside).code(), SPW_ERROR_OUT_OF_MEMORY);
      continue;
    }
    outside = must_allocate(*arena_, bytes, stream);
    device_.touch(stream, outside, bytes);
    blocks.push_back(outside);
  }
  EXPECT_TRUE(source_.holds(blocks[1]));
  // Others' streams are not ordered behind the pool's.
  void* other = nullptr;
  EXPECT_EQ(arena_->allocate(20 * kMiB, device_.stream(), &other).code(), SPW_ERROR_OUT_OF_MEMORY);
  expect_sound();
  for (void* block : blocks) SPW_EXPECT_OK(Arena::free(block));
  // It is the pool's again.
  SPW_EXPECT_OK(arena_->begin_pool(kPool, nullptr));
  inside = must_allocate(*arena_, 128 * kMiB, stream);
  EXPECT_TRUE(source_.holds(inside));
  SPW_EXPECT_OK(Arena::free(inside));
  EXPECT_EQ(source_.asked, 1);
  // A small request finds a slot there too.
  SPW_EXPECT_OK(arena_->end_pool(kPool));
  SPW_EXPECT_OK(arena_->trim());
  SPW_EXPECT_OK(arena_->set_limit(static_cast<uint64_t>(reserved())));
  void* small = must_allocate(*arena_, 600, stream);
  EXPECT_TRUE(source_.holds(small));
  SPW_EXPECT_OK(arena_->set_pool_lends(kPool, false));
  EXPECT_EQ(arena_->allocate(64 * kMiB, stream, &other).code(), SPW_ERROR_OUT_OF_MEMORY);
  SPW_EXPECT_OK(Arena::free(small));
  for (int claim = 0; claim < 3; ++claim) SPW_EXPECT_OK(arena_->release_pool(kPool));
  EXPECT_EQ(source_.held(), 0u);
  expect_sound();
}

TEST_F(SourcesTest, ASegmentGoesBackWhenNothingUsesIt) {
  const CUstream owner = device_.stream();
  const CUstream user = device_.stream();
  open(source_);
  void* block = must_allocate(*arena_, 4 * kMiB, owner);
  device_.touch(owner, block, 4 * kMiB);
  device_.order(owner, user);
  device_.touch(user, block, 4 * kMiB);
  SPW_EXPECT_OK(Arena::record_stream(block, user));
  SPW_EXPECT_OK(Arena::free(block));
  release();
  SPW_EXPECT_OK(arena_->trim());
  EXPECT_EQ(source_.held(), 0u);
  expect_sound();
}

TEST_F(SourcesTest, ABlockOutlivesItsPool) {
  open(source_);
  void* block = must_allocate(*arena_, 4 * kMiB, nullptr);
  release();
  EXPECT_EQ(source_.held(), 1u);
  void* other = must_allocate(*arena_, 4 * kMiB, nullptr);
  EXPECT_FALSE(source_.holds(other)) << "the pool is gone";
  device_.touch(nullptr, block, 4 * kMiB);
  SPW_EXPECT_OK(arena_->trim());
  EXPECT_EQ(source_.held(), 1u);
  SPW_EXPECT_OK(Arena::free(block));
  SPW_EXPECT_OK(Arena::free(other));
  SPW_EXPECT_OK(arena_->trim());
  EXPECT_EQ(source_.held(), 0u);
  EXPECT_EQ(reserved(), 0);
  expect_sound();
}

TEST_F(SourcesTest, NoPageGoesFromOrToOtherHeaps) {
  ArenaOptions options;
  options.limit_bytes = 40 * kMiB;
  arena_ = device_.arena(options);
  open(source_);
  void* inside = must_allocate(*arena_, 20 * kMiB, nullptr);
  SPW_EXPECT_OK(Arena::free(inside));
  SPW_EXPECT_OK(arena_->end_pool(kPool));
  void* outside = nullptr;
  EXPECT_EQ(arena_->allocate(24 * kMiB, nullptr, &outside).code(), SPW_ERROR_OUT_OF_MEMORY);
  outside = must_allocate(*arena_, 18 * kMiB, nullptr);
  SPW_EXPECT_OK(Arena::free(outside));
  SPW_EXPECT_OK(arena_->begin_pool(kPool, nullptr));
  // Of the 38 MiB that are held, what the device gave makes room for the source, within the limit.
  void* more = must_allocate(*arena_, 20 * kMiB, nullptr);
  void* yet_more = must_allocate(*arena_, 20 * kMiB, nullptr);
  EXPECT_TRUE(source_.holds(more) && source_.holds(yet_more));
  EXPECT_EQ(reserved(), static_cast<int64_t>(40 * kMiB));
  void* none = nullptr;
  EXPECT_EQ(arena_->allocate(kMiB, nullptr, &none).code(), SPW_ERROR_OUT_OF_MEMORY);
  for (void* block : {more, yet_more}) SPW_EXPECT_OK(Arena::free(block));
  SPW_EXPECT_OK(arena_->release_pool(kPool));
  release();
  EXPECT_EQ(source_.held(), 0u);
  expect_sound();
}

TEST_F(SourcesTest, WhatIsLeftOfAReleasedPoolServesNobody) {
  ArenaOptions options;
  options.limit_bytes = 40 * kMiB;
  arena_ = device_.arena(options);
  open(source_);
  void* inside = must_allocate(*arena_, 3 * kMiB, nullptr);
  release();
  void* outside = nullptr;
  EXPECT_EQ(arena_->allocate(24 * kMiB, nullptr, &outside).code(), SPW_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(arena_->allocate(24 * kMiB, device_.stream(), &outside).code(), SPW_ERROR_OUT_OF_MEMORY);
  SPW_EXPECT_OK(Arena::free(inside));
  outside = must_allocate(*arena_, 24 * kMiB, nullptr);
  EXPECT_EQ(source_.held(), 0u) << "it went back to make room";
  SPW_EXPECT_OK(Arena::free(outside));
  expect_sound();
}

TEST_F(SourcesTest, APoolByTheSameIdTakesNothingOfAReleasedSource) {
  open(source_);
  void* inside = must_allocate(*arena_, 3 * kMiB, nullptr);
  release();
  SPW_EXPECT_OK(arena_->begin_pool(kPool, nullptr));
  void* again = must_allocate(*arena_, 3 * kMiB, nullptr);
  EXPECT_FALSE(source_.holds(again)) << "this pool has no source";
  SPW_EXPECT_OK(Arena::free(again));
  SPW_EXPECT_OK(arena_->end_pool(kPool));
  SPW_EXPECT_OK(arena_->release_pool(kPool));
  SPW_EXPECT_OK(Arena::free(inside));
  SPW_EXPECT_OK(arena_->trim());
  EXPECT_EQ(source_.held(), 0u);
  expect_sound();
}

TEST_F(SourcesTest, ASourceThatHasLittle) {
  source_.most_bytes = 4 * kMiB;
  open(source_);
  void* block = must_allocate(*arena_, 3 * kMiB, nullptr);
  void* none = nullptr;
  EXPECT_EQ(arena_->allocate(5 * kMiB, nullptr, &none).code(), SPW_ERROR_OUT_OF_MEMORY);
  SPW_EXPECT_OK(Arena::free(block));
  release();
  EXPECT_EQ(source_.held(), 0u);
  expect_sound();
}

TEST_F(SourcesTest, MemoryThatBeginsAnywhere) {
  Source source(*device_.driver, 4096 + 256);
  open(source);
  std::vector<void*> blocks;
  for (size_t i = 0; i < 300; ++i) blocks.push_back(must_allocate(*arena_, 600 + 997 * i, nullptr));
  for (void* block : blocks) {
    EXPECT_TRUE(source.holds(block));
    EXPECT_EQ(reinterpret_cast<uint64_t>(block) % 512, 0u);
  }
  SPW_EXPECT_OK(arena_->validate());
  for (void* block : blocks) SPW_EXPECT_OK(Arena::free(block));
  release();
  EXPECT_EQ(source.held(), 0u);
  expect_sound();
}

TEST_F(SourcesTest, ASourceMayUseTheAllocator) {
  void* scratch = nullptr;
  source_.inside = [&] {
    if (scratch == nullptr) scratch = must_allocate(*arena_, kMiB, nullptr);
  };
  open(source_);
  void* block = must_allocate(*arena_, kMiB, nullptr);
  EXPECT_TRUE(source_.holds(block));
  EXPECT_FALSE(source_.holds(scratch)) << "or it would ask itself";
  for (void* each : {block, scratch}) SPW_EXPECT_OK(Arena::free(each));
  release();
  expect_sound();
}

TEST_F(SourcesTest, UnderCapture) {
  const CUstream stream = device_.stream();
  open(source_);
  void* before = must_allocate(*arena_, 4 * kMiB, stream);
  SPW_EXPECT_OK(Arena::free(before));
  device_.begin_capture(stream);
  void* block = must_allocate(*arena_, 30 * kMiB, stream);
  device_.touch(stream, block, 30 * kMiB);
  SPW_EXPECT_OK(Arena::free(block));
  const CUgraph graph = device_.end_capture(stream);
  SPW_EXPECT_OK(arena_->end_pool(kPool));
  SPW_EXPECT_OK(arena_->trim());
  EXPECT_EQ(source_.held(), 2u);
  CUgraphExec replayed = nullptr;
  const CUstream other = device_.stream();
  ASSERT_EQ(device_.graph_instantiate(&replayed, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(device_.graph_launch(replayed, other), CUDA_SUCCESS);
  SPW_EXPECT_OK(arena_->release_pool(kPool));
  SPW_EXPECT_OK(arena_->release_pool(kPool));  // the replay may still be at work
  EXPECT_EQ(source_.held(), 0u);
  EXPECT_EQ(device_.graph_exec_destroy(replayed), CUDA_SUCCESS);
  EXPECT_EQ(device_.driver->cuGraphDestroy(graph), CUDA_SUCCESS);
  expect_sound();
}

TEST_F(SourcesTest, Mistakes) {
  EXPECT_EQ(arena_->set_pool_source(kPool, source_.functions()).code(), SPW_ERROR_INVALID_STATE);
  SPW_EXPECT_OK(arena_->begin_pool({1, 1}, nullptr));
  void* block = must_allocate(*arena_, kMiB, nullptr);
  EXPECT_EQ(arena_->set_pool_source({1, 1}, source_.functions()).code(), SPW_ERROR_INVALID_STATE);
  SPW_EXPECT_OK(arena_->end_pool({1, 1}));
  open(source_);
  EXPECT_EQ(arena_->set_pool_source(kPool, source_.functions()).code(), SPW_ERROR_INVALID_STATE);
  void* const divided = must_allocate(*arena_, kMiB, nullptr);
  EXPECT_EQ(arena_->set_pool_no_split(kPool).code(), SPW_ERROR_INVALID_STATE);
  SPW_EXPECT_OK(Arena::free(divided));
  release();
  // A source must not give memory of the allocator itself.
  SPW_EXPECT_OK(arena_->retain_pool({2, 2}));
  SPW_EXPECT_OK(arena_->set_pool_source(
      {2, 2}, {[&](uint64_t bytes, CUstream stream) { return must_allocate(*arena_, bytes, stream); },
               [](const SegmentMemory& memory) { SPW_EXPECT_OK(Arena::free(memory.pointer)); }}));
  SPW_EXPECT_OK(arena_->begin_pool({2, 2}, nullptr));
  void* none = nullptr;
  EXPECT_EQ(arena_->allocate(kMiB, nullptr, &none).code(), SPW_ERROR_INVALID_ARGUMENT);
  SPW_EXPECT_OK(arena_->end_pool({2, 2}));
  SPW_EXPECT_OK(Arena::free(block));
  expect_sound();
}

// Two pools and the default one, on several streams, in turn, with pools that come and go.
TEST_F(SourcesTest, AtRandom) {
  std::mt19937_64 random(20);
  const std::vector<CUstream> streams{device_.stream(), device_.stream(), nullptr};
  const auto draw = [&](uint64_t count) { return random() % count; };
  for (uint64_t generation = 0; generation < 6; ++generation) {
    Source sources[2] = {Source(*device_.driver), Source(*device_.driver, 512)};
    const PoolId pools[2] = {{1, generation + 1}, {2, generation + 1}};
    for (int i = 0; i < 2; ++i) {
      SPW_EXPECT_OK(arena_->retain_pool(pools[i]));
      SPW_EXPECT_OK(arena_->set_pool_source(pools[i], sources[i].functions()));
      const bool splits = (generation >> i) % 2 == 0;
      if (!splits) SPW_EXPECT_OK(arena_->set_pool_no_split(pools[i]));
    }
    struct Block {
      void* at;
      size_t bytes;
    };
    std::vector<Block> live;
    for (int step = 0; step < 400; ++step) {
      const CUstream stream = streams[draw(streams.size())];
      if (live.empty() || draw(2) == 0) {
        const uint64_t where = draw(3);
        const size_t bytes = draw(3) == 0 ? 1 + draw(20'000) : 1 + draw(3 * kMiB);
        if (where < 2) SPW_EXPECT_OK(arena_->begin_pool(pools[where], nullptr));
        void* block = nullptr;
        const Status status = arena_->allocate(bytes, stream, &block);
        if (where < 2) {
          SPW_EXPECT_OK(arena_->end_pool(pools[where]));
          SPW_EXPECT_OK(arena_->release_pool(pools[where]));
        }
        ASSERT_TRUE(status.ok() || status.code() == SPW_ERROR_OUT_OF_MEMORY) << status.text();
        if (!status.ok()) continue;
        for (int i = 0; i < 2; ++i) {
          EXPECT_EQ(sources[i].holds(block), where == static_cast<uint64_t>(i));
        }
        device_.touch(stream, block, bytes);
        live.push_back({block, bytes});
      } else {
        const size_t chosen = draw(live.size());
        SPW_EXPECT_OK(Arena::free(live[chosen].at));
        live[chosen] = live.back();
        live.pop_back();
      }
      if (step % 50 == 0) SPW_EXPECT_OK(arena_->validate());
      if (draw(100) == 0) SPW_EXPECT_OK(arena_->trim());
    }
    for (const PoolId& pool : pools) SPW_EXPECT_OK(arena_->release_pool(pool));
    for (const Block& block : live) SPW_EXPECT_OK(Arena::free(block.at));
    SPW_EXPECT_OK(arena_->trim());
    for (const Source& source : sources) EXPECT_EQ(source.held(), 0u);
    EXPECT_EQ(reserved(), 0);
    expect_sound();
  }
}

}  // namespace
}  // namespace spillway::test
