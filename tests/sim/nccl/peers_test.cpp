#include "sim/nccl/peers.h"

#include <gmock/gmock.h>

namespace spillway::nccl {
namespace {

using ::testing::ElementsAre;

TEST(PeersTest, TheNearestOfTwoAsNearIsTheLower) {
  const std::vector<int> real{0, 4, 7};
  std::vector<size_t> found;
  for (int rank = 0; rank < 10; ++rank) found.push_back(nearest(real, rank));
  EXPECT_THAT(found, ElementsAre(0, 0, 0, 1, 1, 1, 2, 2, 2, 2));
}

TEST(PeersTest, EachRankFollowsOne) {
  EXPECT_THAT(followers({0, 511}, 1024), ElementsAre(256, 768));
  EXPECT_THAT(followers({3}, 8), ElementsAre(8));
  EXPECT_THAT(followers({0, 1, 2}, 3), ElementsAre(1, 1, 1));
}

}  // namespace
}  // namespace spillway::nccl
