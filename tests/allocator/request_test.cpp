#include "allocator/request.h"

#include <gtest/gtest.h>

#include <optional>

#include "allocator/free_pages.h"
#include "tests/support/free_ranges.h"

namespace spillway::test {
namespace {

template <typename Kind>
class RequestKinds : public testing::Test {};
TYPED_TEST_SUITE(RequestKinds, StoreKinds, KindName);

TEST(Request, IsForASlabOnlyWhereItNamesAClass) {
  EXPECT_FALSE(Request{}.is_for_slab());
  EXPECT_FALSE((Request{kSlabQuanta, 32}.is_for_slab()));
  for (uint32_t size_class = 0; size_class < kClassCount; ++size_class) {
    const Request request = Request::for_slab(size_class);
    EXPECT_TRUE(request.is_for_slab());
    EXPECT_EQ(request.size_class, size_class);
    EXPECT_EQ(request.quanta * kQuantumBytes, kSlabBytes);
  }
}

// Wherever it is served from, no other block begins in a slab's granules.
TYPED_TEST(RequestKinds, ASlabsLayoutConsistsOfWholeGranules) {
  const Request request = Request::for_slab(0);
  Row<TypeParam> row(3);
  const auto expect_whole_granules = [](const std::optional<Layout>& layout) {
    ASSERT_TRUE(layout.has_value());
    EXPECT_EQ(layout->va % kGranuleBytes, 0u);
  };
  expect_whole_granules(row.pages.find_hole(request, false));
  // What is left of the pages begins and ends inside a granule.
  row.use_piece(0, 5, kPageQuanta);
  row.use_piece(1, 0, 7);
  row.use_piece(2, 3, kPageQuanta - kSlabQuanta - 9);
  expect_whole_granules(row.pages.find_fragment(request));
  row.use_piece(1, 8, kPageQuanta);
  expect_whole_granules(row.pages.find_fragment(request));
}

TEST(Plan, IsForNothingAtFirst) {
  const Plan plan;
  EXPECT_EQ(plan.kind, Plan::Kind::kNone);
  EXPECT_EQ(plan.new_pages, 0u);
  const Layout layout;
  EXPECT_EQ(layout.view, nullptr);
  EXPECT_EQ(layout.runs.pages(), 0u);
  EXPECT_EQ(layout.head_page, kNoPage);
  EXPECT_EQ(layout.tail_page, kNoPage);
}

}  // namespace
}  // namespace spillway::test
