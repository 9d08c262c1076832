// Codecs give back what they were given, or say that they cannot.
#include "offload/spill/codec.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "offload/spill/block.h"
#include "tests/support/weights.h"

namespace spillway::test {
namespace {

std::vector<Packing> packings() {
  std::vector<Packing> all;
  for (const Codec codec : {Codec::kLz4, Codec::kZstd}) {
    for (const uint8_t width : {uint8_t{1}, uint8_t{2}, uint8_t{4}}) all.push_back({codec, width});
  }
  return all;
}

TEST(Codec, GivesBackWhatItWasGiven) {
  for (const Packing packing : packings()) {
    for (const size_t size : {size_t{1}, size_t{7}, size_t{4096}, size_t{100003}, kPieceBytes}) {
      Bytes in = random_bytes(size, static_cast<uint32_t>(size));
      for (size_t i = 0; i < size; ++i) in[i] &= std::byte{0x0f};
      Bytes out(2 * size + 100);
      const size_t packed = pack(packing, in, out);
      ASSERT_GT(packed, 0u);
      Bytes back(size);
      ASSERT_TRUE(unpack(packing, std::span(out).first(packed), back));
      EXPECT_TRUE(back == in) << size << " bytes, width " << int{packing.width};
    }
  }
}

TEST(Codec, WhatDoesNotFitIsNotPacked) {
  const Bytes in = random_bytes(100000, 1);
  for (const Packing packing : packings()) {
    Bytes out(in.size() - 1);
    EXPECT_EQ(pack(packing, in, out), 0u);
  }
}

// Whatever is read, nothing beyond the memory is written (the sanitizers look) and no length is wrong.
TEST(Codec, DamagedBytesAreNeverUnpackedBeyondTheirMemory) {
  const Bytes in = weights(50000);
  std::mt19937 random(5);
  for (const Packing packing : packings()) {
    Bytes out(2 * in.size());
    const size_t packed = pack(packing, in, out);
    ASSERT_GT(packed, 0u);
    Bytes half(in.size());
    EXPECT_FALSE(unpack(packing, std::span(out).first(packed / 2), half));
    for (int i = 0; i < 300; ++i) {
      Bytes damaged(out.begin(), out.begin() + static_cast<ptrdiff_t>(packed));
      for (int flips = 0; flips < 3; ++flips)
        damaged[random() % packed] ^= static_cast<std::byte>(1 + random() % 255);
      Bytes back(in.size());
      (void)unpack(packing, damaged, back);
    }
    Bytes too_small(in.size() / 2);
    EXPECT_FALSE(unpack(packing, std::span(out).first(packed), too_small));
  }
}

}  // namespace
}  // namespace spillway::test
