#include "estimator/inputs/nearest.h"

#include <gtest/gtest.h>

namespace spillway::estimator {
namespace {

TEST(Nearest, FindsWhatWasMeant) {
  const std::vector<std::string_view> names = {"micro_batch", "sequence", "recompute", "gpus"};
  EXPECT_EQ(nearest("microbatch", names), "micro_batch");
  EXPECT_EQ(nearest("sequnce", names), "sequence");
  EXPECT_EQ(nearest("gpu", names), "gpus");
  EXPECT_EQ(nearest("spug", names), "gpus") << "letters that changed places are one mistake each";
  EXPECT_EQ(did_you_mean("recompte", names), "; did you mean 'recompute'?");
}

TEST(Nearest, SaysNothingOfWhatIsFarFromAll) {
  EXPECT_EQ(nearest("banana", {"micro_batch", "gpus"}), "");
  EXPECT_EQ(nearest("", {"gpus"}), "");
  EXPECT_EQ(nearest(std::string(1 << 20, 'x'), {"gpus"}), "");
  EXPECT_EQ(did_you_mean("banana", {}), "");
}

}  // namespace
}  // namespace spillway::estimator
