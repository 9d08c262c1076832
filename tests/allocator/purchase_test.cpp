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
  purchase.note_request(4 * kPageQuanta, 20);
  purchase.note_request(1, 30);
  EXPECT_TRUE(purchase.spares_mappings(20));
  EXPECT_TRUE(purchase.spares_mappings(20 + 1023));
  EXPECT_FALSE(purchase.spares_mappings(20 + 1024));
}

TEST(Purchase, BeginsAnewWhenPagesHaveLeft) {
  Purchase purchase;
  purchase.note_need(100 * kPageBytes);
  purchase.forget_need();
  purchase.note_need(10 * kPageBytes);
  EXPECT_EQ(purchase.most_pages(50), 15u);
}

}  // namespace
}  // namespace spillway::test
