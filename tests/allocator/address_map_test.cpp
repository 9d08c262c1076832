#include "allocator/address_map.h"

#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/cached_range.h"
#include "allocator/units.h"

namespace spillway::test {
namespace {

TEST(AddressMap, AnswersNullForWhatWasNeverEntered) {
  const AddressMap& map = AddressMap::instance();
  EXPECT_EQ(map.find(0), nullptr);
  EXPECT_EQ(map.find(~uint64_t{0}), nullptr);
  EXPECT_EQ(map.find(uint64_t{1} << 47), nullptr);
}

TEST(AddressMap, EntersAndClearsUnits) {
  AddressMap& map = AddressMap::instance();
  CachedRange range;
  const uint64_t va = uint64_t{77} << 33;
  ASSERT_TRUE(map.set(va, 4, &range));
  EXPECT_EQ(map.find(va + 4 * kGranuleBytes - 1), &range);
  EXPECT_EQ(map.find(va + 4 * kGranuleBytes), nullptr);
  const CachedRange other;
  map.clear_if(va, &other);
  EXPECT_EQ(map.find(va), &range);
  for (uint64_t unit = 0; unit < 4; ++unit) map.clear_if(va + unit * kGranuleBytes, &range);
  EXPECT_EQ(map.find(va), nullptr);
}

// The nearest entry at or before an address, against a map that is searched; dense, sparse, and over the
// borders of words, groups and tables.
TEST(AddressMap, FindsWhatLiesBefore) {
  AddressMap& map = AddressMap::instance();
  std::mt19937_64 random(7);
  const uint64_t base = uint64_t{91} << 33;
  std::vector<CachedRange> ranges(400);
  std::map<uint64_t, CachedRange*> entered;
  const auto nearest = [&](uint64_t va, uint64_t most_bytes) {
    CachedRange* found = nullptr;
    map.find_before(va, most_bytes, [&](CachedRange& range, uint64_t) {
      found = &range;
      return true;
    });
    return found;
  };
  for (int step = 0; step < 20000; ++step) {
    const uint64_t spread =
        random() % 3 == 0 ? uint64_t{40} << 30 : (random() % 2 == 0 ? 80 * kGranuleBytes : kPageBytes * 64);
    const uint64_t va = base + random() % spread / kGranuleBytes * kGranuleBytes;
    if (entered.size() < ranges.size() / 2 || random() % 2 == 0) {
      CachedRange* range = &ranges[random() % ranges.size()];
      ASSERT_TRUE(map.set(va, 1, range));
      entered[va] = range;
    } else {
      const auto gone = std::next(entered.begin(), static_cast<ptrdiff_t>(random() % entered.size()));
      map.clear_if(gone->first, gone->second);
      entered.erase(gone);
    }
    const uint64_t asked = base + random() % (uint64_t{41} << 30);
    const auto after = entered.upper_bound(asked);
    CachedRange* expected = after == entered.begin() ? nullptr : std::prev(after)->second;
    ASSERT_EQ(nearest(asked, uint64_t{64} << 30), expected) << step;
  }
  // In order, and no further than asked for.
  std::vector<std::pair<uint64_t, CachedRange*>> all;
  map.find_before(base + (uint64_t{41} << 30), uint64_t{41} << 30, [&](CachedRange& range, uint64_t va) {
    all.emplace_back(va, &range);
    return false;
  });
  const std::vector<std::pair<uint64_t, CachedRange*>> backwards(entered.rbegin(), entered.rend());
  EXPECT_EQ(all, backwards);
  for (const auto& [va, range] : entered) map.clear_if(va, range);
  EXPECT_EQ(nearest(base + (uint64_t{41} << 30), uint64_t{1} << 40), nullptr);
}

// 32 million entries lie between; one after the other they would take minutes.
TEST(AddressMap, FindsWhatLiesFarBefore) {
  AddressMap& map = AddressMap::instance();
  CachedRange range;
  const uint64_t va = uint64_t{101} << 33;
  ASSERT_TRUE(map.set(va, 1, &range));
  CachedRange guide;
  for (uint64_t gib = 4; gib <= 512; gib += 4) {  // tables that are there, with nothing in them
    ASSERT_TRUE(map.set(va + (gib << 30), 1, &guide));
    map.clear_if(va + (gib << 30), &guide);
  }
  int found = 0;
  for (int i = 0; i < 10000; ++i)
    map.find_before(va + (uint64_t{512} << 30), uint64_t{1} << 40,
                    [&](CachedRange& at, uint64_t) { return found += &at == &range, true; });
  EXPECT_EQ(found, 10000);
  map.clear_if(va, &range);
}

// A heap that recycles a range clears its entry while another enters a block of its own at the same address.
TEST(AddressMap, AnEntryThatIsClearedByAnotherWhileItIsEnteredStays) {
  AddressMap& map = AddressMap::instance();
  const uint64_t va = (uint64_t{111} << 33) + 5 * kGranuleBytes;
  CachedRange old;
  CachedRange fresh;
  for (int round = 0; round < 2000; ++round) {
    ASSERT_TRUE(map.set(va, 1, &old));
    std::thread clearing([&] { map.clear_if(va, &old); });
    ASSERT_TRUE(map.set(va, 1, &fresh));
    clearing.join();
    const CachedRange* found = nullptr;
    map.find_before(va + kPageBytes, uint64_t{1} << 30,
                    [&](CachedRange& range, uint64_t) { return found = &range, true; });
    ASSERT_EQ(found, &fresh) << round;
    map.clear_if(va, &fresh);
  }
}

}  // namespace
}  // namespace spillway::test
