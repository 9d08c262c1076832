#include "allocator/size_classes.h"

#include <gtest/gtest.h>

namespace spillway::test {
namespace {

TEST(SizeClasses, EachRequestGetsTheSmallestClassThatHoldsIt) {
  for (uint64_t bytes = 1; bytes <= kLargestSmallBytes; ++bytes) {
    const uint32_t size_class = kClassOfQuanta[bytes_to_quanta(bytes)];
    ASSERT_GE(kClassBytes[size_class], bytes);
    if (size_class > 0) {
      ASSERT_LT(kClassBytes[size_class - 1], bytes);
    }
  }
}

}  // namespace
}  // namespace spillway::test
