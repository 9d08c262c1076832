// Shows what a miss costs before a rung serves it: the program is looked for once, whatever the rungs are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "allocator/address_map.h"
#include "allocator/cached_range.h"
#include "tests/support/device.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

// Returns what was looked for while `request` ran.
template <typename Work>
Predictor::Looks looks_of(const Arena& arena, Work request) {
  const Predictor::Looks before = arena.looks();
  request();
  const Predictor::Looks after = arena.looks();
  return {after.guessed - before.guessed, after.searched - before.searched};
}

TEST(Ladder, AMissThatAViewServesLooksOnce) {
  Device device("capacity:64MiB,completion:late");
  const auto arena = device.arena();
  const CUstream stream = device.stream();
  std::vector<void*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(must_allocate(*arena, 10 * kMiB, stream));
  for (const size_t freed : {1u, 3u}) SPW_EXPECT_OK(Arena::free(blocks[freed]));
  void* view = nullptr;
  const Predictor::Looks looks = looks_of(*arena, [&] { view = must_allocate(*arena, 20 * kMiB, stream); });
  EXPECT_EQ(looks.guessed, 0);
  EXPECT_EQ(looks.searched, 1);
  EXPECT_EQ(arena->stats().rungs.view.hits, 1);
  for (const size_t live : {0u, 2u, 4u, 5u}) SPW_EXPECT_OK(Arena::free(blocks[live]));
  SPW_EXPECT_OK(Arena::free(view));
}

TEST(Ladder, AMissThatAnotherStreamServesLooksOnceMore) {
  Device device("capacity:64MiB,completion:late");
  const auto arena = device.arena();
  const CUstream stream = device.stream();
  void* other = must_allocate(*arena, 40 * kMiB, device.stream());
  SPW_EXPECT_OK(Arena::free(other));
  void* own = must_allocate(*arena, 10 * kMiB, stream);
  void* lent = nullptr;
  const Predictor::Looks looks = looks_of(*arena, [&] { lent = must_allocate(*arena, 30 * kMiB, stream); });
  EXPECT_EQ(looks.guessed, 1);
  EXPECT_EQ(looks.searched, 1);
  EXPECT_EQ(arena->stats().rungs.device_wait.hits, 1);
  for (void* block : {own, lent}) SPW_EXPECT_OK(Arena::free(block));
  EXPECT_EQ(device.reports(), "");
}

// Tells whether the host waited before a view showed pages of a block that work was enqueued on.
bool view_waits(const ArenaOptions& options) {
  Device device("capacity:64MiB,completion:late");
  const auto arena = device.arena(options);
  const CUstream stream = device.stream();
  std::vector<void*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(must_allocate(*arena, 10 * kMiB, stream));
  device.touch(stream, blocks[1], 10 * kMiB);
  for (const size_t freed : {1u, 3u}) SPW_EXPECT_OK(Arena::free(blocks[freed]));
  void* view = must_allocate(*arena, 20 * kMiB, stream);
  const bool has_waited = arena->stats().rungs.host_wait.hits == 1;
  EXPECT_EQ(arena->stats().rungs.view.hits, 1);
  if (device.simulated()) {  // elsewhere the work may be over by itself
    EXPECT_EQ(device.driver->cuStreamQuery(stream) == CUDA_SUCCESS, has_waited);
  }
  for (const size_t live : {0u, 2u, 4u, 5u}) SPW_EXPECT_OK(Arena::free(blocks[live]));
  SPW_EXPECT_OK(Arena::free(view));
  EXPECT_EQ(device.reports(), "");
  return has_waited;
}

TEST(Ladder, AViewIsMappedBehindRunningWorkUnlessTheArenaIsCareful) {
  EXPECT_FALSE(view_waits({}));
  EXPECT_TRUE(view_waits({.careful = true}));
}

TEST(Ladder, ACarefulArenaMapsAViewUnderCaptureAllTheSame) {
  Device device("capacity:64MiB,completion:late");
  const auto arena = device.arena({.careful = true});
  const CUstream stream = device.stream();
  std::vector<void*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(must_allocate(*arena, 10 * kMiB, stream));
  for (const size_t freed : {1u, 3u}) SPW_EXPECT_OK(Arena::free(blocks[freed]));
  device.begin_capture(stream);
  void* view = must_allocate(*arena, 20 * kMiB, stream);
  EXPECT_EQ(arena->stats().rungs.view.hits, 1);
  ASSERT_NE(device.end_capture(stream), nullptr) << "no wait ended it";
  for (const size_t live : {0u, 2u, 4u, 5u}) SPW_EXPECT_OK(Arena::free(blocks[live]));
  SPW_EXPECT_OK(Arena::free(view));
}

// How often an arena says that its counters are wrong, while a program misses a thousand times.
int complaints(bool careful) {
  static int heard = 0;
  heard = 0;
  Device device("capacity:4GiB,backing:none");
  const auto arena = device.arena({.careful = careful, .on_broken = [](const Status& found) {
                                     EXPECT_THAT(found.text(), testing::HasSubstr("requested bytes"));
                                     ++heard;
                                   }});
  const CUstream stream = device.stream();
  void* wrong = must_allocate(*arena, 4 * kMiB, stream);
  CachedRange* range = AddressMap::instance().find(reinterpret_cast<uint64_t>(wrong));
  range->requested_bytes += 512;
  std::vector<void*> blocks;
  for (int i = 0; i < 1000; ++i) blocks.push_back(must_allocate(*arena, 2 * kMiB, stream));
  range->requested_bytes -= 512;
  blocks.push_back(wrong);
  for (void* block : blocks) SPW_EXPECT_OK(Arena::free(block));
  return heard;
}

TEST(Ladder, ACarefulArenaChecksItselfAndComplainsOnce) {
  EXPECT_EQ(complaints(true), 1);
  EXPECT_EQ(complaints(false), 0);
}

}  // namespace
}  // namespace spillway::test
