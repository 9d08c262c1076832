// Codecs give back what they were given, or say that they cannot; packing goes on only where it pays. And the
// threads that do such work.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <vector>

#include "offload/spill/packer.h"
#include "offload/spill/workers.h"

namespace spillway::test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr double kSlowDisk = 1e-9;  // bytes per ns
constexpr double kFastDisk = 1e9;
constexpr size_t kPieceBytes = size_t{2} << 20;

Bytes random_bytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Numbers of a normal distribution in bfloat16, as weights are.
Bytes weights(size_t size) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 0.02f);
  Bytes bytes(size);
  for (size_t at = 0; at + 2 <= size; at += 2) {
    const float value = normal(random);
    std::byte number[4];
    std::memcpy(number, &value, 4);
    std::memcpy(&bytes[at], number + 2, 2);
  }
  return bytes;
}

// Numbers of 4 bytes that say little: tokens, say.
Bytes tokens(size_t size) {
  Bytes bytes = random_bytes(size, 11);
  for (size_t i = 0; i < size; ++i) {
    if (i % 4 != 0) bytes[i] = std::byte{0};
  }
  return bytes;
}

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

TEST(Packer, FindsTheWidthOfNumbers) {
  struct Case {
    Bytes in;
    size_t width;
    double ratio;
  };
  for (const Case& each : {Case{weights(kPieceBytes), 2, 1.3}, Case{tokens(kPieceBytes), 4, 3.5}}) {
    Packer packer(Codec::kZstd);
    Bytes out(each.in.size());
    const auto packed = packer.pack(each.in, out, kSlowDisk);
    ASSERT_TRUE(packed.has_value());
    EXPECT_EQ(packed->packing.width, each.width);
    EXPECT_GT(static_cast<double>(each.in.size()) / static_cast<double>(packed->bytes), each.ratio);
  }
}

TEST(Packer, WhatCannotBePackedIsTriedEverMoreRarely) {
  Packer packer(Codec::kLz4);
  const Bytes in = random_bytes(kPieceBytes, 7);
  Bytes out(in.size());
  for (int i = 0; i < 400; ++i) EXPECT_FALSE(packer.pack(in, out, kSlowDisk).has_value());
  EXPECT_LT(packer.trials(), 14u);
  // And not given up for good.
  const Bytes zeros(kPieceBytes);
  int pieces = 0;
  while (!packer.pack(zeros, out, kSlowDisk).has_value()) ASSERT_LT(++pieces, 70);
  EXPECT_TRUE(packer.pack(zeros, out, kSlowDisk).has_value());
}

TEST(Packer, OnlyWhatIsFasterThanTheDiskPays) {
  const Bytes in = weights(kPieceBytes);
  Bytes out(in.size());
  EXPECT_FALSE(Packer(Codec::kZstd).pack(in, out, kFastDisk).has_value());
  EXPECT_TRUE(Packer(Codec::kZstd).pack(in, out, 0).has_value()) << "fewer bytes are what is wanted";
  EXPECT_FALSE(Packer(Codec::kNone).pack(in, out, 0).has_value());
}

TEST(Workers, EverythingIsDoneBeforeTheyEnd) {
  std::atomic<int> done{0};
  for (const unsigned threads : {0u, 1u, 4u}) {
    Workers workers(threads);
    for (int i = 0; i < 200; ++i) {
      workers.run([&] {
        workers.run([&] { ++done; });
        ++done;
      });
    }
  }
  EXPECT_EQ(done, 3 * 400);
}

}  // namespace
}  // namespace spillway::test
