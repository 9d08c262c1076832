// Shows what a miss costs before a rung serves it: the program is looked for once, whatever the rungs are.
#include <gtest/gtest.h>

#include <vector>

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

}  // namespace
}  // namespace spillway::test
