// The blocks of a heap at one moment, saved and put back (heap_state.cpp).
#include <map>
#include <vector>

#include "allocator/heap.h"
#include "tests/support/heaps.h"
#include "tests/support/seeded.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

using Sizes = std::map<uint64_t, uint64_t>;  // requested bytes by address

template <typename Kind>
class HeapStateKinds : public testing::Test {
 protected:
  HeapState save() {
    const Lock lock(in.heap.mutex);
    return in.heap.save();
  }
  Status prepare(const HeapState& state) {
    freed.clear();
    allocated.clear();
    const Lock lock(in.heap.mutex);
    return in.heap.prepare_restore(state, freed, allocated);
  }
  void restore(const HeapState& state) {
    SPW_EXPECT_OK(prepare(state));
    {
      const Lock lock(in.heap.mutex);
      SPW_EXPECT_OK(in.heap.restore(state));
    }
    SPW_EXPECT_OK(in.validate());
  }
  Sizes live() {
    std::vector<BlockRow> rows;
    {
      const Lock lock(in.heap.mutex);
      list_blocks(in.heap, rows);
    }
    Sizes sizes;
    for (const BlockRow& row : rows) {
      if (row.kind == BlockKind::kActiveAllocated) sizes[row.address] = row.requested_bytes;
    }
    return sizes;
  }
  static Sizes sizes_of(const std::vector<RestoredBlock>& blocks) {
    Sizes sizes;
    for (const RestoredBlock& block : blocks) sizes[block.row.address] = block.row.requested_bytes;
    return sizes;
  }

  HeapOf<Kind> in{12, BlockGrain::kQuantum, "capacity:256MiB,completion:run-ahead,backing:none"};
  std::vector<RestoredBlock> freed;
  std::vector<RestoredBlock> allocated;
};
TYPED_TEST_SUITE(HeapStateKinds, StoreKinds, KindName);

TYPED_TEST(HeapStateKinds, AgreeWithAModel) {
  struct Saved {
    HeapState state;
    Sizes sizes;
  };
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    Random random(seed);
    std::vector<Saved> states;
    for (int step = 0; step < 400; ++step) {
      const Sizes now = this->live();
      const uint32_t what = random() % 10;
      if (what < 5) {
        const uint64_t bytes =
            random() % 2 == 0 ? 1 + random() % kLargestSmallBytes : 1 + random() % (3 * kMiB);
        this->in.allocate(bytes);
      } else if (what < 8) {
        if (now.empty()) continue;
        SPW_EXPECT_OK(
            this->in.free(std::next(now.begin(), static_cast<ptrdiff_t>(random() % now.size()))->first));
      } else if (what == 8 || states.empty()) {
        if (states.size() == 4) states.erase(states.begin());
        states.push_back({this->save(), now});
      } else {
        const Saved& saved = states[random() % states.size()];
        this->restore(saved.state);
        ASSERT_EQ(this->live(), saved.sizes) << "seed " << seed << ", step " << step;
        ASSERT_EQ(this->sizes_of(this->freed), now);
        ASSERT_EQ(this->sizes_of(this->allocated), saved.sizes);
      }
      if (this->HasFailure()) FAIL() << "seed " << seed << ", step " << step;
    }
    this->restore({});
    EXPECT_TRUE(this->live().empty());
  }
}

TYPED_TEST(HeapStateKinds, WhatWasRequestedOfABlockComesBackToo) {
  const uint64_t large = this->in.allocate(3 * kMiB);
  const uint64_t small = this->in.allocate(700);
  const HeapState state = this->save();
  SPW_EXPECT_OK(this->in.free(large));
  SPW_EXPECT_OK(this->in.free(small));
  ASSERT_EQ(this->in.allocate(3 * kMiB - 100), large);
  ASSERT_EQ(this->in.allocate(800), small);
  this->restore(state);
  EXPECT_EQ(this->live(), (Sizes{{large, 3 * kMiB}, {small, 700}}));
  EXPECT_EQ(this->in.stats().requested_bytes, static_cast<int64_t>(3 * kMiB + 700));
}

TYPED_TEST(HeapStateKinds, AnotherSlabMayHaveTakenTheMemory) {
  const uint64_t block = this->in.allocate(700);
  const CachedRange& range = this->in.range_of(block);
  const HeapState state = this->save();
  SPW_EXPECT_OK(this->in.free(block));
  EXPECT_TRUE(this->save().empty()) << "of a slab without live slots nothing is saved";
  {
    const Lock lock(this->in.heap.mutex);
    EXPECT_EQ(this->in.heap.release_empty_slabs(), 1u);
  }
  ASSERT_TRUE(share_a_quantum(this->in.range_of(this->in.allocate(5000)), range));
  this->restore(state);
  EXPECT_EQ(this->live(), (Sizes{{block, 700}}));
  EXPECT_EQ(range.slab->slot_bytes(), 1024u);
}

TYPED_TEST(HeapStateKinds, TheRangesOfAStateAreKeptUntilThePoolIsReleased) {
  const uint64_t block = this->in.allocate(3 * kMiB);
  const CachedRange& range = this->in.range_of(block);
  EXPECT_FALSE(range.is_saved);
  const HeapState state = this->save();
  EXPECT_EQ(state.size(), 1u);
  EXPECT_TRUE(range.is_saved);
  const Lock lock(this->in.heap.mutex);
  this->in.heap.pool_released();
  EXPECT_FALSE(range.is_saved);
}

TYPED_TEST(HeapStateKinds, WhatAnotherStreamUsesIsInTheWayUntilItIsDone) {
  if (!this->in.of.device.simulated()) GTEST_SKIP() << "needs work that waits to be done";
  const CUstream other = this->in.of.device.stream();
  for (const uint64_t bytes : {3 * kMiB, uint64_t{700}}) {
    const uint64_t block = this->in.allocate(bytes);
    const HeapState state = this->save();
    this->in.of.device.order(nullptr, other);
    this->in.of.device.touch(other, reinterpret_cast<void*>(block), 700);
    SPW_EXPECT_OK(this->in.record_stream(block, other));
    this->restore(state);  // the block is in both, and stays as it is
    SPW_EXPECT_OK(this->in.free(block));
    const Status refused = this->prepare(state);
    EXPECT_EQ(refused.code(), SPW_ERROR_INVALID_STATE);
    EXPECT_NE(refused.text().find("another stream still uses it"), std::string::npos);
    EXPECT_EQ(this->in.of.device.driver->cuStreamSynchronize(other), CUDA_SUCCESS);
    EXPECT_EQ(this->in.complete_finished_frees(), 1u);
    this->restore(state);
    EXPECT_EQ(this->live(), (Sizes{{block, bytes}}));
    this->restore({});
  }
}

TYPED_TEST(HeapStateKinds, AUseElsewhereIsNotInTheWay) {
  const CUstream other = this->in.of.device.stream();
  const uint64_t saved = this->in.allocate(3 * kMiB);
  const HeapState state = this->save();
  const uint64_t block = this->in.allocate(3 * kMiB);
  SPW_EXPECT_OK(this->in.record_stream(block, other));
  SPW_EXPECT_OK(this->in.free(saved));
  this->restore(state);
  EXPECT_EQ(this->live(), (Sizes{{saved, 3 * kMiB}}));
}

}  // namespace
}  // namespace spillway::test
