#include "allocator/guarded_block.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tests/support/seeded.h"

namespace spillway::test {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using Finding = GuardedBlock::Finding;
using State = GuardedBlock::State;

// 100 bytes whose program begins at 0x10200.
GuardedBlock block() {
  GuardedBlock made;
  made.base = 0x10000;
  made.bytes = 100;
  made.total_bytes = 512 + 512 + 512;
  made.stream = reinterpret_cast<CUstream>(0x77);
  made.has_zones = true;
  made.allocated.number = 4;
  made.allocated.thread = 41;
  return made;
}

TEST(GuardedBlock, ConsistsOfItsZonesAndTheProgramsBytes) {
  const GuardedBlock one = block();
  EXPECT_EQ(one.user(), 0x10200u);
  EXPECT_EQ(one.user_end(), 0x10264u);
  EXPECT_EQ(one.end(), 0x10600u);
  EXPECT_FALSE(one.contains(0xffff));
  EXPECT_TRUE(one.contains(0x10000));
  EXPECT_TRUE(one.contains(0x105ff));
  EXPECT_FALSE(one.contains(0x10600));
}

// ---- Damage

constexpr uint64_t kStart = 0x5000;
constexpr uint8_t kExpected = 0xfb;

TEST(Damage, IsNoneWhereAllIsAsExpected) {
  Damage damage;
  const std::vector<uint8_t> right(3000, kExpected);
  damage.compare(kStart, right.data(), right.size(), kExpected);
  damage.compare(kStart, right.data(), 1, kExpected);
  damage.compare(kStart, nullptr, 0, kExpected);
  EXPECT_EQ(damage.count, 0u);
  EXPECT_EQ(damage.sampled, 0u);
}

TEST(Damage, AllBytesMayBeTheSameAndWrong) {
  Damage damage;
  const std::vector<uint8_t> wrong(40, 7);
  damage.compare(kStart, wrong.data(), wrong.size(), kExpected);
  EXPECT_EQ(damage.count, 40u);
  EXPECT_EQ(damage.first, kStart);
  EXPECT_EQ(damage.last, kStart + 39);
  EXPECT_EQ(damage.sampled, damage.sample.size());
}

TEST(Damage, OneByteIsSeenWhereverItIs) {
  std::vector<uint8_t> found(700, kExpected);
  for (size_t at = 0; at < found.size(); ++at) {
    found[at] = 9;
    Damage damage;
    damage.compare(kStart, found.data(), found.size(), kExpected);
    ASSERT_EQ(damage.count, 1u);
    ASSERT_EQ(damage.first, kStart + at);
    ASSERT_EQ(damage.last, kStart + at);
    ASSERT_EQ(damage.sample[0], 9);
    found[at] = kExpected;
  }
}

TEST(Damage, AgreesWithABytewiseComparisonHoweverItIsDivided) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    Random random(seed);
    std::vector<uint8_t> found(1 + random() % 300, kExpected);
    for (uint32_t i = random() % 40; i > 0; --i)
      found[random() % found.size()] = static_cast<uint8_t>(random());
    uint64_t count = 0;
    uint64_t first = 0;
    uint64_t last = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i] == kExpected) continue;
      if (count++ == 0) first = kStart + i;
      last = kStart + i;
    }
    Damage damage;
    for (size_t at = 0; at < found.size();) {
      const size_t bytes = std::min<size_t>(1 + random() % (seed % 2 == 0 ? 100 : 8), found.size() - at);
      damage.compare(kStart + at, found.data() + at, bytes, kExpected);
      at += bytes;
    }
    ASSERT_EQ(damage.count, count) << "seed " << seed;
    if (count == 0) continue;
    ASSERT_EQ(damage.first, first);
    ASSERT_EQ(damage.last, last);
    ASSERT_GE(damage.sampled, 1u);
    ASSERT_LE(damage.sampled, damage.sample.size());
    for (uint32_t i = 0; i < damage.sampled; ++i)
      ASSERT_EQ(damage.sample[i], found[first - kStart + i]) << "seed " << seed << ", byte " << i;
  }
}

TEST(Damage, TheSampleIsOfAllPiecesThoseThatAreRightToo) {
  const std::vector<uint8_t> found = {1, kExpected, kExpected, 2};
  Damage damage;
  for (size_t i = 0; i < found.size(); ++i) damage.compare(kStart + i, &found[i], 1, kExpected);
  EXPECT_EQ(damage.count, 2u);
  ASSERT_EQ(damage.sampled, 4u);
  for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(damage.sample[i], found[i]);
}

// ---- Reports

Damage damage_at(uint64_t va, const std::vector<uint8_t>& found, uint8_t expected) {
  Damage damage;
  damage.compare(va, found.data(), found.size(), expected);
  return damage;
}

TEST(DamageReport, SaysWhereInTheBlockItIsAndWhatIsKnownOfTheBlock) {
  const Damage damage = damage_at(0x10264 + 3, {0xfb, 1, 0xfb, 2}, kZonePattern);
  EXPECT_EQ(damage_report(block(), 2, Finding::kAfter, damage),
            "spillway: guard: write of 2 bytes after the end of block 0x10200 of 100 bytes: first at offset "
            "104, found 0x01, expected 0xfb\n"
            "  offsets 104 to 106; from the first on: 01 fb 02\n"
            "  block: 0x10200, 100 bytes, device 2, stream 0x77; it is live\n"
            "  allocated: step 4, thread 41\n");
}

TEST(DamageReport, OffsetsBeforeTheBlockAreNegative) {
  const Damage damage = damage_at(0x10200 - 2, {5, 6}, kZonePattern);
  EXPECT_THAT(damage_report(block(), 0, Finding::kBefore, damage),
              StartsWith("spillway: guard: write of 2 bytes before the beginning of block 0x10200 of 100 "
                         "bytes: first at offset -2, found 0x05, expected 0xfb\n"
                         "  offsets -2 to -1; from the first on: 05 06\n"));
}

TEST(DamageReport, AfterAFreeAnotherPatternIsExpectedAndTheFreeIsTold) {
  GuardedBlock freed = block();
  freed.bytes = 1;
  freed.state = State::kQuarantined;
  freed.freed.number = 9;
  freed.freed.thread = 42;
  const std::string text =
      damage_report(freed, 0, Finding::kAfterFree, damage_at(0x10200, {8}, kFreedPattern));
  EXPECT_THAT(text, StartsWith("spillway: guard: write of 1 byte into block 0x10200 of 1 byte after its "
                               "free: first at offset 0, found 0x08, expected 0xdd\n"));
  EXPECT_THAT(text, EndsWith("it lies in quarantine\n  allocated: step 4, thread 41\n"
                             "  freed: step 9, thread 42\n"));
}

TEST(DamageReport, CallsAreShownBelowTheirStep) {
  GuardedBlock one = block();
  one.allocated.trace.count = 1;
  one.allocated.trace.frames[0] = reinterpret_cast<void*>(0x10);
  EXPECT_THAT(damage_report(one, 0, Finding::kAfter, damage_at(0x10300, {1}, kZonePattern)),
              EndsWith("  allocated: step 4, thread 41\n    #0 0x10\n"));
}

TEST(FreeReport, ASecondFreeNamesBothFreesAndTheBlock) {
  GuardedBlock freed = block();
  freed.state = State::kGone;
  freed.freed.number = 9;
  GuardStep now;
  now.number = 11;
  now.thread = 43;
  EXPECT_EQ(free_report(freed, 1, Finding::kDoubleFree, 0x10200, now),
            "spillway: guard: second free of block 0x10200 of 100 bytes\n"
            "  this free: step 11, thread 43\n"
            "  block: 0x10200, 100 bytes, device 1, stream 0x77; it has left the quarantine\n"
            "  allocated: step 4, thread 41\n"
            "  freed: step 9, thread 0\n");
}

TEST(FreeReport, AFreeInsideABlockSaysHowFar) {
  EXPECT_THAT(free_report(block(), 0, Finding::kInside, 0x10210, {}),
              StartsWith("spillway: guard: free of 0x10210, at offset 16 of block 0x10200 of 100 bytes\n"));
  EXPECT_THAT(free_report(block(), 0, Finding::kInside, 0x10000, {}), HasSubstr(", at offset -512 of block"));
}

TEST(FreeReport, TellsOfABlockThatCouldNotBeChecked) {
  GuardedBlock unchecked = block();
  EXPECT_THAT(free_report(unchecked, 0, Finding::kInside, 0x10210, {}), Not(HasSubstr("no red zones")));
  unchecked.has_zones = false;
  EXPECT_THAT(free_report(unchecked, 0, Finding::kInside, 0x10210, {}), HasSubstr("it has no red zones"));
}

TEST(Whereabouts, ABlockThatIsBeingFreedIsInQuarantineToTheProgram) {
  EXPECT_STREQ(whereabouts(State::kLive), "is live");
  EXPECT_STREQ(whereabouts(State::kFreeing), "lies in quarantine");
  EXPECT_STREQ(whereabouts(State::kQuarantined), "lies in quarantine");
  EXPECT_STREQ(whereabouts(State::kGone), "has left the quarantine");
}

}  // namespace
}  // namespace spillway::test
