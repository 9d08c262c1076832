#include "allocator/heap.h"

#include <iterator>
#include <map>
#include <vector>

#include "tests/support/heaps.h"
#include "tests/support/seeded.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

template <typename Kind>
class HeapKinds : public testing::Test {};
TYPED_TEST_SUITE(HeapKinds, StoreKinds, KindName);

uint64_t random_bytes(Random& random) {
  switch (random() % 3) {
    case 0:
      return 1 + random() % kLargestSmallBytes;
    case 1:
      return 1 + random() % kPageBytes;
    default:
      return 1 + random() % (3 * kPageBytes);
  }
}

// ---- Blocks

TYPED_TEST(HeapKinds, BlocksAgreeWithAModel) {
  constexpr uint32_t kPages = 8;
  for (const BlockGrain grain : {BlockGrain::kQuantum, BlockGrain::kPage}) {
    HeapOf<TypeParam> in(kPages, grain, "capacity:1GiB,backing:none,races:off");
    Random random(static_cast<uint32_t>(grain) + 1);
    std::map<uint64_t, uint64_t> blocks;
    int64_t requested = 0;
    int refused = 0;
    for (int step = 0; step < 4000; ++step) {
      const bool grows = step / 200 % 2 == 0;
      if (random() % 4 < (grows ? 3u : 1u)) {
        const uint64_t bytes = random_bytes(random);
        const uint64_t va = in.allocate(bytes);
        refused += va == 0;
        if (va == 0) continue;
        const auto [block, is_new] = blocks.insert({va, bytes});
        ASSERT_TRUE(is_new);
        ASSERT_EQ(va % kQuantumBytes, 0u);
        if (block != blocks.begin()) {
          ASSERT_LE(std::prev(block)->first + std::prev(block)->second, va);
        }
        if (std::next(block) != blocks.end()) {
          ASSERT_LE(va + bytes, std::next(block)->first);
        }
        requested += static_cast<int64_t>(bytes);
      } else if (!blocks.empty()) {
        const auto gone = std::next(blocks.begin(), static_cast<ptrdiff_t>(random() % blocks.size()));
        SPW_EXPECT_OK(in.free(gone->first));
        requested -= static_cast<int64_t>(gone->second);
        blocks.erase(gone);
      }
      ASSERT_EQ(in.stats().requested_bytes, requested);
      if (step % 20 == 0) SPW_EXPECT_OK(in.validate());
      if (this->HasFailure()) FAIL() << "step " << step;
    }
    EXPECT_GT(refused, 0) << "it never was full";
    for (const auto& [va, bytes] : blocks) SPW_EXPECT_OK(in.free(va));
    {
      const Lock lock(in.heap.mutex);
      in.heap.release_empty_slabs();
      EXPECT_EQ(in.heap.release_empty_slabs(), 0u);
    }
    EXPECT_EQ(in.free_pages(), kPages);
    EXPECT_EQ(in.stats().active_bytes, 0);
    SPW_EXPECT_OK(in.validate());
  }
}

TYPED_TEST(HeapKinds, ALargeBlockIsOfWhatItsGrainSays) {
  const auto quanta = [](BlockGrain grain, uint64_t bytes) {
    const HeapOf<TypeParam> in(0, grain);
    EXPECT_FALSE(in.heap.large_request(bytes).is_for_slab());
    EXPECT_EQ(in.heap.large_request(bytes).align_quanta, 1u);
    return in.heap.large_request(bytes).quanta;
  };
  constexpr uint32_t kGranuleQuanta = kGranuleBytes / kQuantumBytes;
  EXPECT_EQ(quanta(BlockGrain::kQuantum, 1), kGranuleQuanta) << "the address map has one entry for each";
  EXPECT_EQ(quanta(BlockGrain::kQuantum, kGranuleBytes + 1), kGranuleQuanta + 1);
  EXPECT_EQ(quanta(BlockGrain::kQuantum, kPageBytes + 1), kPageQuanta + 1);
  EXPECT_EQ(quanta(BlockGrain::kPage, kPageBytes - kQuantumBytes), kPageQuanta - 1);
  EXPECT_EQ(quanta(BlockGrain::kPage, kPageBytes - 1), kPageQuanta);
  EXPECT_EQ(quanta(BlockGrain::kPage, kPageBytes + 1), 2 * kPageQuanta);
  EXPECT_EQ(quanta(BlockGrain::kSegment, 1), kPageQuanta);
  EXPECT_EQ(quanta(BlockGrain::kSegment, 3 * kPageBytes), 3 * kPageQuanta);
}

TYPED_TEST(HeapKinds, WrongFreesAreRefusedAndChangeNothing) {
  HeapOf<TypeParam> in(4);
  HeapOf<TypeParam> other(1);
  const uint64_t large = in.allocate(3 * kMiB);
  const uint64_t small = in.allocate(1000);
  const uint64_t freed = in.allocate(1000);
  SPW_EXPECT_OK(in.free(freed));
  const HeapStats before = in.stats();
  const auto expect_refused = [&](uint64_t va) {
    const auto code = [](const Status& status) { return status.code(); };
    EXPECT_EQ(code(in.free(va)), SPW_ERROR_INVALID_POINTER);
    EXPECT_EQ(code(in.record_stream(va, nullptr)), SPW_ERROR_INVALID_POINTER);
    const Lock lock(in.heap.mutex);
    uint64_t bytes = 7;
    EXPECT_EQ(code(in.heap.quarantine(in.range_of(va), va, &bytes)), SPW_ERROR_INVALID_POINTER);
    EXPECT_EQ(bytes, 7u);
    EXPECT_EQ(code(in.heap.release_quarantined(in.range_of(va), va)), SPW_ERROR_INVALID_POINTER);
  };
  for (const uint64_t va : {large + kQuantumBytes, small + 1, small + kQuantumBytes, freed})
    expect_refused(va);
  {
    const Lock lock(other.heap.mutex);
    EXPECT_FALSE(other.heap.free(in.range_of(large), large).ok()) << "another heap's";
    EXPECT_FALSE(other.heap.free(in.range_of(small), small).ok());
  }
  EXPECT_EQ(in.stats().active_bytes, before.active_bytes);
  SPW_EXPECT_OK(in.free(large));
  EXPECT_EQ(in.free(large).code(), SPW_ERROR_INVALID_POINTER);
  SPW_EXPECT_OK(in.free(small));
  SPW_EXPECT_OK(in.validate());
}

TYPED_TEST(HeapKinds, ARepeatedProgramGetsItsAddressesAgainWithoutASearch) {
  HeapOf<TypeParam> in(20);
  std::vector<uint64_t> expected;
  for (int pass = 0; pass < 4; ++pass) {
    std::vector<uint64_t> blocks;
    for (uint64_t i = 0; i < 12; ++i) blocks.push_back(in.allocate((i + 1) * 200'000 + 17'000));
    for (const uint64_t va : blocks) {
      ASSERT_NE(va, 0u);
      SPW_EXPECT_OK(in.free(va));
    }
    if (pass == 1) expected = blocks;
    if (pass < 2) continue;
    EXPECT_EQ(blocks, expected) << pass;
    const Lock lock(in.heap.mutex);
    const Request first = in.heap.large_request(217'000);
    CachedRange* range = in.heap.take_predicted(first);
    ASSERT_NE(range, nullptr);
    EXPECT_EQ(range->va, expected[0]);
    EXPECT_EQ(in.heap.take_predicted(first), nullptr) << "it is taken";
    void* out = nullptr;
    ASSERT_TRUE(in.heap.make_live(*range, 217'000, &out));
    SPW_EXPECT_OK(in.heap.free(*range, range->va));
    break;
  }
}

TYPED_TEST(HeapKinds, ASlabWithRoomServesItsClassAndNoOther) {
  HeapOf<TypeParam> in(2);
  const uint64_t first = in.allocate(1000);
  const uint64_t second = in.allocate(1000);
  EXPECT_EQ(&in.range_of(first), &in.range_of(second));
  EXPECT_NE(&in.range_of(in.allocate(5000)), &in.range_of(first));
  const Lock lock(in.heap.mutex);
  const uint32_t size_class = kClassOfQuanta[2];
  EXPECT_EQ(in.heap.slab_with_room(Request::for_slab(size_class)), &in.range_of(first));
  EXPECT_EQ(in.heap.slab_with_room(Request::for_slab(size_class + 1)), nullptr);
  EXPECT_EQ(in.heap.slab_with_room(in.heap.large_request(kSlabBytes)), nullptr);
  EXPECT_EQ(in.heap.allocate_small(size_class + 1, 1200), nullptr) << "a slab has to be opened first";
}

TYPED_TEST(HeapKinds, WithoutRoomItAnswersNoneAndNothingChanges) {
  HeapOf<TypeParam> in(2);
  const uint64_t all = in.allocate(2 * kPageBytes);
  ASSERT_NE(all, 0u);
  EXPECT_EQ(in.allocate(20'000), 0u);
  EXPECT_EQ(in.allocate(1), 0u);
  EXPECT_EQ(in.allocate(5 * kPageBytes), 0u);
  SPW_EXPECT_OK(in.validate());
  SPW_EXPECT_OK(in.free(all));
  EXPECT_NE(in.allocate(1), 0u);
}

TYPED_TEST(HeapKinds, WithoutSlabsABlockOfAnySizeIsASegment) {
  HeapOf<TypeParam> in(2, BlockGrain::kSegment);
  EXPECT_TRUE(in.heap.has_no_slabs());
  EXPECT_FALSE(HeapOf<TypeParam>(0).heap.has_no_slabs());
  if (TypeParam::kHasViews) return;  // there are no segments
  const uint64_t block = in.allocate(100);
  ASSERT_NE(block, 0u);
  EXPECT_EQ(in.free_pages(), 0u);
  EXPECT_EQ(in.allocate(100), 0u);
  SPW_EXPECT_OK(in.free(block));
  EXPECT_EQ(in.allocate(2 * kPageBytes), block);
}

// ---- Frees that wait

template <typename Kind>
class HeapFrees : public testing::Test {
 protected:
  void SetUp() override {
    if (!in.of.device.simulated()) GTEST_SKIP() << "needs work that waits to be done";
  }
  uint64_t used_block(uint64_t bytes) {
    const uint64_t va = in.allocate(bytes);
    in.of.device.order(nullptr, other);
    in.of.device.touch(other, reinterpret_cast<void*>(va), bytes);
    SPW_EXPECT_OK(in.record_stream(va, other));
    return va;
  }
  void finish() const { EXPECT_EQ(in.of.device.driver->cuStreamSynchronize(other), CUDA_SUCCESS); }

  HeapOf<Kind> in{6, BlockGrain::kQuantum, "capacity:256MiB,completion:run-ahead"};
  const CUstream other = in.of.device.stream();
};
TYPED_TEST_SUITE(HeapFrees, StoreKinds, KindName);

TYPED_TEST(HeapFrees, ABlockThatAnotherStreamUsesIsPendingUntilThatIsDone) {
  for (const uint64_t bytes : {3 * kMiB, uint64_t{700}}) {
    const uint64_t va = this->used_block(bytes);
    SPW_EXPECT_OK(this->in.free(va));
    EXPECT_GT(this->in.stats().pending_bytes, 0);
    EXPECT_EQ(this->in.free(va).code(), SPW_ERROR_INVALID_POINTER) << "it was freed";
    EXPECT_NE(this->in.allocate(bytes), va);
    EXPECT_EQ(this->in.complete_finished_frees(), 0u);
    SPW_EXPECT_OK(this->in.validate());
    this->finish();
    EXPECT_EQ(this->in.complete_finished_frees(), 1u);
    EXPECT_EQ(this->in.stats().pending_bytes, 0);
    SPW_EXPECT_OK(this->in.validate());
    EXPECT_EQ(this->in.allocate(bytes), va);
  }
}

TYPED_TEST(HeapFrees, AUseOnItsOwnStreamIsNone) {
  const uint64_t va = this->in.allocate(3 * kMiB);
  SPW_EXPECT_OK(this->in.record_stream(va, nullptr));
  SPW_EXPECT_OK(this->in.free(va));
  EXPECT_EQ(this->in.stats().pending_bytes, 0);
}

TYPED_TEST(HeapFrees, ABlockInQuarantineIsHeldUntilItIsReleased) {
  Heap& heap = this->in.heap;
  for (const uint64_t bytes : {3 * kMiB, uint64_t{700}}) {
    for (const bool is_used : {false, true}) {
      const uint64_t va = is_used ? this->used_block(bytes) : this->in.allocate(bytes);
      CachedRange& range = this->in.range_of(va);
      {
        const Lock lock(heap.mutex);
        uint64_t held = 0;
        SPW_EXPECT_OK(heap.quarantine(range, va, &held));
        EXPECT_EQ(held, bytes == 700 ? 1024 : bytes);
        EXPECT_FALSE(heap.quarantine(range, va, nullptr).ok());
        EXPECT_FALSE(heap.free(range, va).ok());
      }
      EXPECT_GT(this->in.stats().pending_bytes, 0);
      this->finish();
      EXPECT_EQ(this->in.complete_finished_frees(), 0u) << "it is not to be freed yet";
      if (is_used) this->in.of.device.touch(this->other, reinterpret_cast<void*>(va), bytes);
      {
        const Lock lock(heap.mutex);
        SPW_EXPECT_OK(heap.release_quarantined(range, va));
      }
      EXPECT_EQ(this->in.stats().pending_bytes > 0, is_used) << "its uses are waited for from now on";
      this->finish();
      EXPECT_EQ(this->in.complete_finished_frees(), is_used ? 1u : 0u);
      EXPECT_EQ(this->in.stats().active_bytes, 0);
      SPW_EXPECT_OK(this->in.validate());
    }
  }
}

TYPED_TEST(HeapFrees, EventsMarkAllUsesUnlessGraphsReplayThem) {
  const auto marked = [&] {
    const Lock lock(this->in.heap.mutex);
    return this->in.heap.events_mark_all_uses();
  };
  EXPECT_TRUE(marked());
  const uint64_t va = this->used_block(3 * kMiB);
  this->in.of.device.inject_fault("cuEventRecord", 1, CUDA_ERROR_OUT_OF_MEMORY);
  SPW_EXPECT_OK(this->in.free(va));
  EXPECT_FALSE(marked());
  this->in.complete_finished_frees();
  EXPECT_TRUE(marked()) << "the event was tried again";
  this->in.heap.use.is_replayed = true;
  EXPECT_FALSE(marked());
}

}  // namespace
}  // namespace spillway::test
