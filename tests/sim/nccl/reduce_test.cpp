#include "sim/nccl/reduce.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace spillway::nccl {
namespace {

template <typename Item>
Part part_of(const std::vector<Item>& items, uint64_t times = 1, double scalar = 1) {
  return {reinterpret_cast<const char*>(items.data()), times, scalar};
}

template <typename Item>
std::vector<Item> reduced(int type, int reduction, const std::vector<Part>& parts, uint64_t count,
                          uint64_t ranks) {
  const std::vector<char> bytes = reduce(type, reduction, count, parts, ranks);
  std::vector<Item> items(count);
  std::memcpy(items.data(), bytes.data(), bytes.size());
  return items;
}

TEST(ReduceTest, EveryReduction) {
  const std::vector<float> one{1, -4};
  const std::vector<float> other{3, 2};
  const std::vector<Part> parts{part_of(one), part_of(other)};
  using Items = std::vector<float>;
  EXPECT_EQ(reduced<float>(kFloat32, kSum, parts, 2, 2), (Items{4, -2}));
  EXPECT_EQ(reduced<float>(kFloat32, kProduct, parts, 2, 2), (Items{3, -8}));
  EXPECT_EQ(reduced<float>(kFloat32, kMaximum, parts, 2, 2), (Items{3, 2}));
  EXPECT_EQ(reduced<float>(kFloat32, kMinimum, parts, 2, 2), (Items{1, -4}));
  EXPECT_EQ(reduced<float>(kFloat32, kAverage, parts, 2, 2), (Items{2, -1}));
  EXPECT_EQ(reduced<float>(kFloat32, kPreMulSum, {part_of(one, 1, 0.5), part_of(other, 1, 2)}, 2, 2),
            (Items{6.5, 2}));
}

TEST(ReduceTest, WhatOthersGiveTooCountsSoOften) {
  const std::vector<int64_t> one{3};
  EXPECT_EQ(reduced<int64_t>(kInt64, kSum, {part_of(one, 1024)}, 1, 1024)[0], 3072);
  EXPECT_EQ(reduced<int64_t>(kInt64, kProduct, {part_of(one, 5)}, 1, 5)[0], 243);
  EXPECT_EQ(reduced<int64_t>(kInt64, kAverage, {part_of(one, 1024)}, 1, 1024)[0], 3);
}

TEST(ReduceTest, IntegersWrap) {
  const std::vector<uint8_t> one{200};
  EXPECT_EQ(reduced<uint8_t>(kUint8, kSum, {part_of(one, 2)}, 1, 2)[0], 144);
  const std::vector<int32_t> most{std::numeric_limits<int32_t>::max()};
  EXPECT_EQ(reduced<int32_t>(kInt32, kSum, {part_of(most, 2)}, 1, 2)[0], -2);
}

// Known encodings: of 1, the largest, the smallest subnormal, and one that is rounded to even.
TEST(ReduceTest, NarrowNumbers) {
  const auto sum_of = [](int type, uint16_t one, uint16_t other) {
    const std::vector<uint16_t> wide{one, other};
    const std::vector<uint8_t> narrow{static_cast<uint8_t>(one), static_cast<uint8_t>(other)};
    const bool is_wide = item_bytes(type) == 2;
    const auto* bytes =
        is_wide ? reinterpret_cast<const char*>(wide.data()) : reinterpret_cast<const char*>(narrow.data());
    const std::vector<char> out = reduce(type, kSum, 1, {{bytes, 1, 1}, {bytes + item_bytes(type), 1, 1}}, 2);
    uint16_t result = 0;
    std::memcpy(&result, out.data(), out.size());
    return result;
  };
  EXPECT_EQ(sum_of(kFloat16, 0x3c00, 0x3c00), 0x4000);      // 1 + 1
  EXPECT_EQ(sum_of(kFloat16, 0x7bff, 0x7bff), 0x7c00);      // infinity
  EXPECT_EQ(sum_of(kFloat16, 0x0001, 0x0001), 0x0002);      // subnormal
  EXPECT_EQ(sum_of(kFloat16, 0x03ff, 0x0001), 0x0400);      // the first normal one
  EXPECT_EQ(sum_of(kFloat16, 0x6400, 0x3800), 0x6400);      // 1024.5 to even
  EXPECT_EQ(sum_of(kFloat16, 0x6401, 0x3800), 0x6402);      // 1025.5 to even
  EXPECT_EQ(sum_of(kBfloat16, 0x3f80, 0xbf80), 0x0000);     // 1 - 1
  EXPECT_EQ(sum_of(kBfloat16, 0x7f80, 0x3f80), 0x7f80);     // infinity
  EXPECT_EQ(sum_of(kFloat8E4m3, 0x38, 0x38), 0x40);         // 1 + 1
  EXPECT_EQ(sum_of(kFloat8E5m2, 0x3c, 0x3c), 0x40);         // 1 + 1
  EXPECT_EQ(sum_of(kFloat8E4m3, 0x7e, 0x7e) & 0x7f, 0x7f);  // beyond 448
}

TEST(ReduceTest, NumbersAreRead) {
  const int32_t integer = -7;
  EXPECT_EQ(read_number(kInt32, reinterpret_cast<const char*>(&integer)), -7);
  const uint16_t half = 0xc100;
  EXPECT_EQ(read_number(kFloat16, reinterpret_cast<const char*>(&half)), -2.5);
}

}  // namespace
}  // namespace spillway::nccl
