#include "allocator/view_budget.h"

#include <numeric>
#include <vector>

#include "tests/support/arena_parts.h"

namespace spillway::test {
namespace {

ArenaOptions with_mappings(uint32_t most) {
  ArenaOptions options;
  options.most_mappings = most;
  return options;
}

class ViewBudgetTest : public testing::Test {
 protected:
  // A view of the heap's pages from `first` on, last page first.
  View* map(PageId first, uint32_t count) {
    std::vector<PageId> pages(count);
    std::iota(pages.rbegin(), pages.rend(), first);
    const ArenaLock lock(made.parts.mutex);
    Result<View*> view = made.parts.store->map_view(pages);
    EXPECT_TRUE(view.ok()) << view.status().text();
    return view.value();
  }
  bool is_strained() {
    const ArenaLock lock(made.parts.mutex);
    return made.views.is_strained();
  }
  bool has_room(uint32_t mappings) {
    const ArenaLock lock(made.parts.mutex);
    return made.views.has_room(mappings);
  }
  uint32_t pages_to_spend() {
    const ArenaLock lock(made.parts.mutex);
    return made.views.pages_to_spend();
  }
  uint32_t mappings() {
    const ArenaLock lock(made.parts.mutex);
    return made.parts.store->live_mappings();
  }

  AllParts made{"capacity:1GiB,backing:none,races:off", with_mappings(160)};
  Heap& heap = made.heap(made.device.stream());
  const PageId first = made.give(heap, 80);
};

TEST_F(ViewBudgetTest, ViewsAreManyFromANinthOfWhatIsLeftOnBesideTheHomeView) {
  map(first, 8);
  EXPECT_FALSE(is_strained());
  map(first, 1);
  EXPECT_TRUE(is_strained());
}

TEST_F(ViewBudgetTest, TellsHowManyMoreMayLive) {
  EXPECT_TRUE(has_room(80));
  EXPECT_FALSE(has_room(81));
  map(first, 30);
  EXPECT_TRUE(has_room(50));
  EXPECT_FALSE(has_room(51));
}

// Nobody knows of a bound for each device: those in whose memory views are mapped share that of the process.
TEST_F(ViewBudgetTest, ArenasWithViewsShareWhatThereMayBe) {
  EXPECT_TRUE(has_room(80));
  {
    ViewBudget other(made.parts, made.heaps, made.waits);
    EXPECT_TRUE(has_room(80)) << "it has not asked for a view";
    {
      const ArenaLock lock(made.parts.mutex);
      EXPECT_FALSE(other.has_room(1));
    }
    EXPECT_FALSE(has_room(1)) << "the home view alone has the half";
  }
  EXPECT_TRUE(has_room(80)) << "the other has gone";
}

TEST_F(ViewBudgetTest, TheMoreViewsThereAreTheMorePagesMayBeSpent) {
  map(first, 30);
  const uint32_t few = pages_to_spend();
  EXPECT_GT(few, 0u);
  map(first, 40);
  const uint32_t more = pages_to_spend();
  EXPECT_GT(more, few);
  EXPECT_LE(more, 80u / 4);
  {
    const ArenaLock lock(made.parts.mutex);
    made.views.on_spent(more);
  }
  EXPECT_EQ(pages_to_spend(), 0u);
  {
    const ArenaLock lock(made.parts.mutex);
    made.views.on_pages_released();
  }
  EXPECT_EQ(pages_to_spend(), more);
  // Near the limit every page is needed.
  made.parts.store->set_most_pages(82);
  EXPECT_EQ(pages_to_spend(), 0u);
}

TEST_F(ViewBudgetTest, OnlyViewsThatLieUnusedAreRetired) {
  // The first view is in use, the second has been.
  View* const used = map(first, 24);
  const auto take_in_view = [&](uint32_t pages) {
    const ArenaLock lock(made.parts.mutex);
    const Lock heap_lock(heap.mutex);
    CachedRange* range = heap.reuse_view({pages * kPageQuanta, 1}, pages, true);
    void* out = nullptr;
    EXPECT_TRUE(range != nullptr && heap.make_live(*range, range->bytes(), &out));
    return range;
  };
  const CachedRange* block = take_in_view(24);
  ASSERT_EQ(block->view, used);
  View* const unused = map(first + 30, 24);
  CachedRange* freed = take_in_view(24);
  ASSERT_EQ(freed->view, unused);
  made.free(*freed);
  map(first + 60, 20);
  ASSERT_EQ(mappings(), 148u);
  EXPECT_TRUE(made.views.retire_views());
  EXPECT_EQ(mappings(), 80u + 24) << "all that is unused lies in a row";
  EXPECT_FALSE(is_lost(*block));
  EXPECT_TRUE(is_lost(*freed));
  EXPECT_EQ(used->mapped, 24u);
}

// A program that repeats itself wants the views that it used last; to one that does not all are alike, and
// what lies in a row goes in one call.
TEST_F(ViewBudgetTest, ThoseUsedLastStayUnlessTheProgramDoesNotRepeatItself) {
  const auto retire = [&] {
    for (int i = 0; i < 10; ++i) map(first + 20 * (i % 4), 20);
    {
      const ArenaLock lock(made.parts.mutex);
      const Lock heap_lock(heap.mutex);
      CachedRange* range = heap.reuse_view({20 * kPageQuanta, 1}, 20, true);
      void* out = nullptr;
      ASSERT_TRUE(range != nullptr && heap.make_live(*range, range->bytes(), &out));
      made.free(*range);
    }
    ASSERT_EQ(mappings(), 80u + 200);
    EXPECT_TRUE(made.views.retire_views());
  };
  retire();
  EXPECT_EQ(mappings(), 80u + 200 - 80) << "half of what may live";
  ASSERT_TRUE(made.views.retire_views(true) && made.views.retire_views(true));
  ASSERT_EQ(mappings(), 80u);
  {
    const Lock lock(heap.mutex);
    for (uint32_t quanta = 100; quanta < 1200; ++quanta) {
      CachedRange* range = heap.take_found({quanta, 1}, false);
      void* out = nullptr;
      ASSERT_TRUE(range != nullptr && heap.make_live(*range, range->bytes(), &out));
      made.free(*range);
    }
    ASSERT_TRUE(heap.predictor().is_asleep());
  }
  retire();
  EXPECT_EQ(mappings(), 80u);
}

TEST_F(ViewBudgetTest, AViewThatCannotBeUnmappedServesNobodyAllTheSame) {
  if (!made.device.simulated()) GTEST_SKIP() << "a real driver makes no faults on demand";
  View* const view = map(first, 70);
  const uint32_t generation = view->generation;
  made.device.inject_fault("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(made.views.retire_views());
  EXPECT_EQ(mappings(), 150u);
  EXPECT_TRUE(view->retired);
  EXPECT_NE(view->generation, generation) << "its ranges are lost";
  EXPECT_TRUE(made.views.retire_views());
  EXPECT_EQ(mappings(), 80u);
}

TEST_F(ViewBudgetTest, NothingIsRetiredWhileAStreamIsCaptured) {
  const CUstream stream = heap.key.stream;
  map(first, 70);
  made.device.begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_FALSE(made.views.retire_views());
  EXPECT_EQ(mappings(), 150u);
  made.device.discard_capture(stream);
  EXPECT_TRUE(made.views.retire_views());
  EXPECT_EQ(mappings(), 80u);
}

}  // namespace
}  // namespace spillway::test
