#include "allocator/slab.h"

#include <gtest/gtest.h>

#include <set>

namespace spillway::test {
namespace {

TEST(Slab, EverySlotOnceAndFoundAgain) {
  for (uint32_t size_class = 0; size_class < kClassCount; ++size_class) {
    CachedRange range;
    range.va = uint64_t{1} << 32;
    Slab slab;
    slab.open(&range, size_class);
    std::set<uint32_t> slots;
    while (!slab.full()) {
      const uint32_t slot = slab.take_slot(1);
      ASSERT_TRUE(slots.insert(slot).second);
      ASSERT_EQ(slab.slot_at(slab.va_of(slot)), slot);
      ASSERT_EQ(slab.slot_at(slab.va_of(slot) + 1), kMostSlots);
      ASSERT_LE(slab.va_of(slot) + slab.slot_bytes(), range.va + kSlabBytes);
    }
    EXPECT_EQ(slots.size(), slots_of_class(size_class));
    EXPECT_EQ(slab.slot_at(range.va - kQuantumBytes), kMostSlots);
  }
}

}  // namespace
}  // namespace spillway::test
