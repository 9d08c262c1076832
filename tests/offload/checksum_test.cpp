// Checksums are XXH3's, whatever instructions made them: this file has those of every processor.
#include "offload/spill/checksum.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace spillway::test {
namespace {

TEST(Checksum, IsTheSameWithAllInstructions) {
  std::mt19937 random(1);
  std::vector<std::byte> memory((size_t{1} << 20) + 64);
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
  for (int round = 0; round < 2000; ++round) {
    const size_t begin = random() % 64;
    const size_t most = round % 50 == 0 ? memory.size() - begin : 5000;
    const std::span<const std::byte> part = std::span(memory).subspan(begin, random() % (most + 1));
    ASSERT_EQ(checksum(part), XXH3_64bits(part.data(), part.size())) << begin << " " << part.size();
  }
}

TEST(Checksum, OfNothingIsTheOneOfTheSpecification) {
  EXPECT_EQ(checksum({}), 0x2D06800538D394C2u);
}

}  // namespace
}  // namespace spillway::test
