#include "allocator/host_blocks.h"

#include <map>
#include <memory>
#include <stdexcept>
#include <vector>

#include "allocator/address_map.h"
#include "tests/support/device.h"
#include "tests/support/placement.h"
#include "tests/support/seeded.h"

namespace spillway::test {
namespace {

Status unknown() {
  return Status::invalid_pointer("no block");
}
CUstream stream(uint64_t number) {
  return reinterpret_cast<CUstream>(number);
}

class HostBlocksTest : public testing::Test {
 protected:
  uint64_t place(uint64_t bytes, CUstream on = nullptr) {
    return reinterpret_cast<uint64_t>(blocks.place(placement.functions(), bytes, on, counters));
  }
  void expect_counted(int64_t count, int64_t bytes) const {
    const DeviceStats stats = counters.snapshot();
    EXPECT_EQ(stats.host_placed_blocks, count);
    EXPECT_EQ(stats.host_placed_bytes, bytes);
  }

  Placement placement;
  DeviceCounters counters;
  HostBlocks blocks;
};

TEST_F(HostBlocksTest, ABlockIsCountedUntilItIsFreed) {
  const uint64_t first = place(1000, stream(1));
  const uint64_t second = place(512, stream(2));
  ASSERT_NE(first, 0u);
  EXPECT_EQ(placement.held(), 2u);
  expect_counted(2, 1512);
  SPW_EXPECT_OK(blocks.free(first, unknown()));
  expect_counted(1, 512);
  EXPECT_EQ(placement.last_streams, std::vector<CUstream>{stream(1)}) << "the one it was asked for on";
  SPW_EXPECT_OK(blocks.free(second, unknown()));
  expect_counted(0, 0);
  EXPECT_EQ(placement.held(), 0u);
}

TEST_F(HostBlocksTest, WhereThereIsNoneNothingChanges) {
  placement.is_empty = true;
  EXPECT_EQ(place(1000), 0u);
  expect_counted(0, 0);
  placement.is_empty = false;
  placement.throws = true;
  EXPECT_THROW(place(1000), std::runtime_error);
  expect_counted(0, 0);
  placement.throws = false;
  EXPECT_NE(place(1000), 0u);
  blocks.release_all(counters);
}

TEST_F(HostBlocksTest, WhereNoneBeginsTheAnswerIsTheCallers) {
  const uint64_t va = place(1000);
  for (const uint64_t wrong : {va + 512, va - 512, uint64_t{0}}) {
    EXPECT_EQ(blocks.free(wrong, unknown()).text(), "no block");
    EXPECT_EQ(blocks.record_stream(wrong, nullptr, unknown()).text(), "no block");
    EXPECT_EQ(blocks.quarantine(wrong, unknown()).text(), "no block");
    EXPECT_EQ(blocks.release_quarantined(wrong, unknown()).text(), "no block");
  }
  EXPECT_EQ(blocks.release_quarantined(va, unknown()).text(), "no block") << "it is not in quarantine";
  expect_counted(1, 1000);
  SPW_EXPECT_OK(blocks.free(va, unknown()));
  EXPECT_FALSE(blocks.free(va, unknown()).ok());
  SPW_EXPECT_OK(blocks.free(va, Status()));
}

TEST_F(HostBlocksTest, EachStreamThatUsedItIsNamedOnceAtItsEnd) {
  const uint64_t va = place(1000, stream(1));
  for (const CUstream user : {stream(2), stream(3), stream(2), stream(1)})
    SPW_EXPECT_OK(blocks.record_stream(va, user, unknown()));
  SPW_EXPECT_OK(blocks.free(va, unknown()));
  EXPECT_EQ(placement.last_streams, (std::vector<CUstream>{stream(1), stream(2), stream(3)}));
}

TEST_F(HostBlocksTest, InQuarantineItIsHeldAndNobodys) {
  const uint64_t va = place(1000, stream(1));
  SPW_EXPECT_OK(blocks.quarantine(va, unknown()));
  EXPECT_FALSE(blocks.quarantine(va, unknown()).ok());
  EXPECT_FALSE(blocks.free(va, unknown()).ok());
  EXPECT_FALSE(blocks.record_stream(va, stream(2), unknown()).ok());
  EXPECT_EQ(placement.held(), 1u);
  expect_counted(1, 1000);
  SPW_EXPECT_OK(blocks.release_quarantined(va, unknown()));
  EXPECT_EQ(placement.last_streams, std::vector<CUstream>{stream(1)});
  expect_counted(0, 0);
  EXPECT_FALSE(blocks.release_quarantined(va, unknown()).ok());
}

TEST_F(HostBlocksTest, TheEndOfADeviceGivesBackItsOwn) {
  DeviceCounters others;
  const uint64_t mine = place(1000);
  SPW_EXPECT_OK(blocks.quarantine(place(700), unknown()));
  const auto kept = reinterpret_cast<uint64_t>(blocks.place(placement.functions(), 300, nullptr, others));
  blocks.release_all(counters);
  EXPECT_EQ(placement.held(), 1u);
  expect_counted(0, 0);
  EXPECT_EQ(others.snapshot().host_placed_bytes, 300);
  EXPECT_FALSE(blocks.free(mine, unknown()).ok());
  SPW_EXPECT_OK(blocks.free(kept, unknown()));
}

TEST_F(HostBlocksTest, APlacementLivesAsLongAsOneOfItsBlocks) {
  std::shared_ptr<const HostPlacement> functions = placement.functions();
  const std::weak_ptr<const HostPlacement> alive = functions;
  void* const block = blocks.place(functions, 100, nullptr, counters);
  functions.reset();
  EXPECT_FALSE(alive.expired());
  SPW_EXPECT_OK(blocks.free(reinterpret_cast<uint64_t>(block), unknown()));
  EXPECT_TRUE(alive.expired());
}

// The address map is asked first.
TEST_F(HostBlocksTest, ABlockOfTheDeviceThatWasThereOnceIsNotFound) {
  CachedRange range;
  AddressMap& map = AddressMap::instance();
  const uint64_t next = placement.next_address();
  ASSERT_TRUE(map.set(next, 1, &range));
  ASSERT_EQ(place(1000), next);
  EXPECT_EQ(map.find(next), nullptr);
  blocks.release_all(counters);
}

TEST_F(HostBlocksTest, ThePlacementMayUseThemWhileItIsCalled) {
  const uint64_t first = place(100);
  placement.inside = [&] { EXPECT_FALSE(blocks.quarantine(1, unknown()).ok()); };
  const uint64_t second = place(100);
  SPW_EXPECT_OK(blocks.free(second, unknown()));
  blocks.release_all(counters);
  EXPECT_FALSE(blocks.free(first, unknown()).ok());
}

TEST_F(HostBlocksTest, AgreeWithAModel) {
  struct Row {
    int64_t bytes;
    bool quarantined;
  };
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    Random random(seed);
    std::map<uint64_t, Row> model;
    for (int step = 0; step < 500; ++step) {
      const auto row = model.empty()
                           ? model.end()
                           : std::next(model.begin(), static_cast<ptrdiff_t>(random() % model.size()));
      const bool live = row != model.end() && !row->second.quarantined;
      const uint64_t va = row == model.end() ? 0 : row->first;
      const uint32_t what = random() % 8;
      if (what < 3) {
        const uint64_t bytes = 1 + random() % 5000;
        model[place(bytes)] = {static_cast<int64_t>(bytes), false};
      } else if (what < 5) {
        ASSERT_EQ(blocks.free(va, unknown()).ok(), live);
        if (live) model.erase(row);
      } else if (what == 5) {
        ASSERT_EQ(blocks.quarantine(va, unknown()).ok(), live);
        if (live) row->second.quarantined = true;
      } else if (what == 6) {
        const bool quarantined = row != model.end() && !live;
        ASSERT_EQ(blocks.release_quarantined(va, unknown()).ok(), quarantined);
        if (quarantined) model.erase(row);
      } else {
        ASSERT_EQ(blocks.record_stream(va, nullptr, unknown()).ok(), live);
      }
      int64_t bytes = 0;
      for (const auto& [at, each] : model) bytes += each.bytes;
      expect_counted(static_cast<int64_t>(model.size()), bytes);
      ASSERT_EQ(placement.held(), model.size()) << "seed " << seed << ", step " << step;
    }
    blocks.release_all(counters);
    ASSERT_EQ(placement.held(), 0u);
  }
}

}  // namespace
}  // namespace spillway::test
