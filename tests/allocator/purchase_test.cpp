#include "allocator/purchase.h"

#include <gtest/gtest.h>

namespace spillway::test {
namespace {

TEST(Purchase, AllowsAShareMoreThanWasEverNeededAtOnce) {
  Purchase purchase;
  EXPECT_EQ(purchase.most_pages(100), 0u);
  purchase.note_need(100 * kPageBytes);
  purchase.note_need(30 * kPageBytes);
  EXPECT_EQ(purchase.most_pages(0), 100u);
  EXPECT_EQ(purchase.most_pages(25), 125u);
  EXPECT_EQ(purchase.most_pages(25.5), 126u) << "a page that is begun is one";
}

TEST(Purchase, IsMadeWhereViewsOfManyPagesWereAskedForLately) {
  Purchase purchase;
  EXPECT_FALSE(purchase.spares_mappings(0));
  purchase.note_request(4 * kPageQuanta - 1, 10);
  EXPECT_FALSE(purchase.spares_mappings(10));
  EXPECT_FALSE(purchase.spared_mappings());
  purchase.note_request(4 * kPageQuanta, 20);
  purchase.note_request(1, 30);
  EXPECT_TRUE(purchase.spares_mappings(20));
  EXPECT_TRUE(purchase.spares_mappings(20 + 1023));
  EXPECT_FALSE(purchase.spares_mappings(20 + 1024));
  EXPECT_TRUE(purchase.spared_mappings()) << "once";
}

TEST(Purchase, BeginsAnewWhenPagesHaveLeft) {
  Purchase purchase;
  purchase.note_need(100 * kPageBytes);
  purchase.forget_need();
  purchase.note_need(10 * kPageBytes);
  EXPECT_EQ(purchase.most_pages(50), 15u);
}

TEST(Purchase, IsUpToTheShare) {
  Purchase purchase;
  purchase.note_need(100 * kPageBytes);
  EXPECT_EQ(purchase.pages_to_buy(10, 14, 100, 4), 10u);
  EXPECT_EQ(purchase.pages_to_buy(10, 14, 108, 4), 2u) << "no views were made";
  EXPECT_EQ(purchase.pages_to_buy(10, 14, 120, 4), 0u);
}

TEST(Purchase, TheLastExceedsTheShareOnceViewsHaveBeenMadeOfAQuarterOfTheNeed) {
  Purchase purchase;
  purchase.note_need(100 * kPageBytes);
  purchase.note_view(25);
  EXPECT_EQ(purchase.pages_to_buy(10, 14, 108, 6), 2u);
  purchase.note_view(1);
  EXPECT_EQ(purchase.pages_to_buy(10, 14, 108, 6), 6u);
  EXPECT_EQ(purchase.pages_to_buy(10, 14, 110, 4), 4u) << "also where nothing of the share is left";
  EXPECT_EQ(purchase.pages_to_buy(10, 14, 108, 7), 2u) << "more than may be";
  EXPECT_EQ(purchase.pages_to_buy(0, 0, 100, 1), 0u);
  // Views that a smaller need led to say nothing of a larger.
  purchase.note_need(101 * kPageBytes);
  EXPECT_EQ(purchase.pages_to_buy(10, 14, 110, 4), 2u);
  purchase.note_view(90);
  purchase.forget_need();
  EXPECT_EQ(purchase.pages_to_buy(10, 14, 0, 4), 0u);
}

TEST(Purchase, RunsEndInAnExtentWithWhatIsLeftOfTheShare) {
  Purchase purchase;
  purchase.note_need(100 * kPageBytes);
  EXPECT_EQ(purchase.spare_pages(12, 100, 3), 12u);
  EXPECT_EQ(purchase.spare_pages(12, 111, 3), 3u) << "what is needed grows";
  purchase.note_view(1);
  EXPECT_EQ(purchase.spare_pages(12, 111, 3), 1u);
  EXPECT_EQ(purchase.spare_pages(12, 113, 3), 0u);
}

}  // namespace
}  // namespace spillway::test
