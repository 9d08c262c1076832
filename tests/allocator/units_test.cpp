#include "allocator/units.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "tests/support/seeded.h"

namespace spillway::test {
namespace {

// As many units as hold the bytes, and no more.
void expect_fewest(uint64_t units, uint64_t unit_bytes, uint64_t bytes) {
  EXPECT_GE(units * unit_bytes, bytes) << bytes;
  EXPECT_LT(units * unit_bytes, bytes + unit_bytes) << bytes;
}

TEST(Units, BytesTakeTheFewestThatHoldThem) {
  EXPECT_EQ(bytes_to_quanta(0), 0u);
  EXPECT_EQ(bytes_to_pages(0), 0u);
  for (const uint64_t unit : {kQuantumBytes, kPageBytes}) {
    for (uint64_t count = 1; count < 5; ++count) {
      for (const uint64_t bytes : {count * unit - 1, count * unit, count * unit + 1}) {
        expect_fewest(bytes_to_quanta(bytes), kQuantumBytes, bytes);
        expect_fewest(bytes_to_pages(bytes), kPageBytes, bytes);
      }
    }
  }
  Random random(1);
  for (int i = 0; i < 10'000; ++i) {
    const uint64_t bytes = (uint64_t{random()} << 24 | random()) % (kLargestRequestBytes + 1);
    expect_fewest(bytes_to_quanta(bytes), kQuantumBytes, bytes);
    expect_fewest(bytes_to_pages(bytes), kPageBytes, bytes);
  }
}

TEST(Units, EachConsistsOfWholeSmallerOnes) {
  EXPECT_EQ(kPageBytes % kSlabBytes, 0u);
  EXPECT_EQ(kSlabBytes % kGranuleBytes, 0u) << "no block but a slab's own begins in a slab's granules";
  EXPECT_EQ(kGranuleBytes % kQuantumBytes, 0u);
  EXPECT_EQ(kPageQuanta * kQuantumBytes, kPageBytes);
  EXPECT_EQ(kSlabQuanta * kQuantumBytes, kSlabBytes);
}

TEST(Units, NumbersOfTheLargestRequestFitWhereTheyAreKept) {
  EXPECT_LE(bytes_to_quanta(kLargestRequestBytes), uint64_t{UINT32_MAX});
  EXPECT_LT(bytes_to_pages(kLargestRequestBytes), uint64_t{kNoPage});
  EXPECT_LE(kPageQuanta, uint32_t{UINT16_MAX}) << "a range's first and last page keep 16 bits";
}

}  // namespace
}  // namespace spillway::test
