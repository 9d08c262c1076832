#include "allocator/zeroed_array.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

namespace spillway::test {
namespace {

TEST(ZeroedArray, HoldsZerosUntilItIsWrittenTo) {
  ZeroedArray<uint32_t> array(100'000);
  ASSERT_EQ(array.size(), 100'000u);
  EXPECT_EQ(array[0], 0u);
  EXPECT_EQ(array[99'999], 0u);
  array[99'999] = 7;
  EXPECT_EQ(std::as_const(array)[99'999], 7u);
  EXPECT_EQ(array[99'998], 0u);
}

TEST(ZeroedArray, MovesWithWhatIsInIt) {
  ZeroedArray<uint32_t> array(10);
  array[3] = 5;
  ZeroedArray<uint32_t> moved(std::move(array));
  EXPECT_TRUE(array.empty());  // NOLINT(bugprone-use-after-move): what a move leaves is told
  EXPECT_EQ(moved[3], 5u);
  ZeroedArray<uint32_t> assigned(20);
  assigned = std::move(moved);
  EXPECT_EQ(assigned.size(), 10u);
  EXPECT_EQ(assigned[3], 5u);
}

TEST(ZeroedArray, IsEmptyWhereThereIsNoMemory) {
  EXPECT_TRUE(ZeroedArray<uint64_t>().empty());
  EXPECT_TRUE(ZeroedArray<uint64_t>(uint64_t{1} << 58).empty());
}

}  // namespace
}  // namespace spillway::test
