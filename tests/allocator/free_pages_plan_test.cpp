// Plans over free pages, and views that serve again.

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "allocator/free_pages.h"
#include "tests/support/free_ranges.h"

namespace spillway::test {
namespace {

TEST(FreePagesInViews, AViewJoinsScatteredPagesAndTheEndsOfOthers) {
  Row<VirtualMemory> row(6);
  row.use(0, 1);
  row.use_piece(2, 0, kPageQuanta - 300);  // its last 300 quanta are free
  row.use_piece(4, 500, kPageQuanta);      // its first 500
  const ArenaLock lock(row.of.mutex);
  // Pages 1, 3 and 5 are free, no two in a row.
  const Plan whole = row.pages.plan({3 * kPageQuanta, 1}, 0);
  EXPECT_EQ(whole.kind, Plan::Kind::kView);
  EXPECT_EQ(whole.new_pages, 0u);
  EXPECT_EQ(whole.full_pages, 3u);
  EXPECT_EQ(whole.head_page, kNoPage);
  const Plan with_ends = row.pages.plan({3 * kPageQuanta + 800, 1}, 0);
  EXPECT_EQ(with_ends.new_pages, 0u);
  EXPECT_EQ(with_ends.full_pages, 3u);
  EXPECT_EQ(with_ends.head_page, row.first + 2);
  EXPECT_EQ(with_ends.head_quanta, 300u);
  EXPECT_EQ(with_ends.tail_page, row.first + 4);
  EXPECT_EQ(with_ends.tail_quanta, 500u);
  EXPECT_EQ(row.pages.plan({3 * kPageQuanta + 801, 1}, 0).new_pages, 1u);
  // What begins at a multiple takes whole pages.
  EXPECT_EQ(row.pages.plan({3 * kPageQuanta + 800, 32}, 0).new_pages, 1u);
  Result<Layout> layout = row.pages.lay_out({3 * kPageQuanta + 800, 1}, with_ends, kNoPage);
  ASSERT_TRUE(layout.ok());
  ASSERT_NE(layout->view, nullptr);
  CachedRange range = range_at(3 * kPageQuanta + 800, layout.value());
  EXPECT_TRUE(row.pages.take(range));
  EXPECT_EQ(row.pages.free_count(), 0u);
  row.pages.give(range, 1);
  EXPECT_EQ(row.pages.free_count(), 3u);
  // The range is lost with a page of its view.
  row.pages.drop(row.first + 3, 1);
  SPW_EXPECT_OK(row.store.release_pages({row.first + 3}));
  row.of.must_give(1, row.owner.get());
  row.pages.add(row.first + 3, 1);
  EXPECT_FALSE(row.pages.fits(range));
  std::vector<PageId> missing = {0};
  row.pages.list_missing(range, missing);
  EXPECT_TRUE(missing.empty()) << "it could not be taken even so";
}

TEST(FreePagesInViews, ViewsThatThereAreServeAgain) {
  Row<VirtualMemory> row(8);
  const ArenaLock lock(row.of.mutex);
  std::vector<PageId> scattered;
  for (const uint32_t at : {7u, 5u, 3u, 1u}) scattered.push_back(row.first + at);
  Result<View*> view = row.store.map_view(scattered);
  ASSERT_TRUE(view.ok());
  const auto found = [&](uint32_t quanta, uint32_t most_pages, bool spare) SPW_REQUIRES(kArenaLock) {
    return row.pages.find_in_view({quanta, 1}, most_pages, spare);
  };
  EXPECT_EQ(found(3 * kPageQuanta, 100, false), std::nullopt) << "for a view of its own";
  EXPECT_EQ(found(kPageQuanta, 100, true), std::nullopt) << "for any free page";
  std::optional<Layout> layout = found(3 * kPageQuanta, 100, true);
  ASSERT_TRUE(layout.has_value());
  EXPECT_EQ(layout->view, view.value());
  EXPECT_TRUE(row.pages.fits(range_at(3 * kPageQuanta, *layout)));
  EXPECT_EQ(found(3 * kPageQuanta, 2, true), std::nullopt) << "too many pages";
  EXPECT_EQ(found(5 * kPageQuanta, 100, true), std::nullopt);
  // The second slot is used in part: its end and the slots behind it remain.
  row.use_piece(5, 0, 100);
  layout = found(3 * kPageQuanta - 100, 100, true);
  ASSERT_TRUE(layout.has_value());
  EXPECT_EQ(layout->head_page, row.first + 5);
  EXPECT_EQ(layout->va, view.value()->va + kPageBytes + 100 * kQuantumBytes);
  EXPECT_EQ(found(3 * kPageQuanta - 99, 100, true), std::nullopt);
  view.value()->retired = true;
  EXPECT_EQ(found(2 * kPageQuanta, 100, true), std::nullopt);
}

TEST(FreePagesInViews, ThePagesAtTheEndOfTheHomeViewAreExtended) {
  Row<VirtualMemory> row(6);
  row.use(0, 4);
  row.use_piece(4, 0, kPageQuanta - 50);
  const ArenaLock lock(row.of.mutex);
  // The last 50 quanta of a page, a free page, and new ones behind it.
  const Plan plan = row.pages.plan({3 * kPageQuanta + 50, 1}, 0);
  EXPECT_EQ(plan.kind, Plan::Kind::kExtend);
  EXPECT_EQ(plan.head_page, row.first + 4);
  EXPECT_EQ(plan.head_quanta, 50u);
  EXPECT_EQ(plan.first_page, row.first + 5);
  EXPECT_EQ(plan.first_new, row.first + 6);
  EXPECT_EQ(plan.new_pages, 2u);
  EXPECT_EQ(row.of.must_give(2, row.owner.get()), plan.first_new);
  row.pages.add(plan.first_new, 2);
  Result<Layout> layout = row.pages.lay_out({3 * kPageQuanta + 50, 1}, plan, plan.first_new);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->view, nullptr);
  CachedRange range = range_at(3 * kPageQuanta + 50, layout.value());
  EXPECT_TRUE(row.pages.take(range));
  EXPECT_EQ(row.pages.free_count(), 0u);
}

}  // namespace
}  // namespace spillway::test
