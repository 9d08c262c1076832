// Programs that never ask for the same sizes in the same order again: what they cost in driver calls, and
// what they may hold for that.
#include <algorithm>
#include <vector>

#include "tests/support/device.h"
#include "tests/support/seeded.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

// Replaces one of its blocks after the other by one of another size.
class Replacing {
 public:
  Replacing(Device& device, Arena& arena, size_t blocks, uint64_t most_bytes)
      : arena_(arena), stream_(device.stream()), blocks_(blocks), most_bytes_(most_bytes) {}
  ~Replacing() {
    for (const Block& block : blocks_) SPW_EXPECT_OK(Arena::free(block.at));
  }

  void run(int requests) {
    for (int i = 0; i < requests; ++i) {
      Block& block = blocks_[random_() % blocks_.size()];
      SPW_EXPECT_OK(Arena::free(block.at));
      live_bytes_ -= block.bytes;
      // About as many of each power of two.
      block.bytes =
          std::max<uint64_t>((most_bytes_ >> (random_() % 12)) / 256 * (128 + random_() % 128), 512);
      block.at = must_allocate(arena_, block.bytes, stream_);
      live_bytes_ += block.bytes;
      most_live_bytes_ = std::max(most_live_bytes_, live_bytes_);
    }
  }
  uint64_t most_live_bytes() const { return most_live_bytes_; }

 private:
  struct Block {
    void* at = nullptr;
    uint64_t bytes = 0;
  };
  Arena& arena_;
  const CUstream stream_;
  std::vector<Block> blocks_;
  const uint64_t most_bytes_;
  Random random_{11};
  uint64_t live_bytes_ = 0;
  uint64_t most_live_bytes_ = 0;
};

uint64_t reserved_bytes(const Arena& arena) {
  return static_cast<uint64_t>(arena.stats().reserved_bytes.all.peak);
}

TEST(Unrepeated, IsServedFromHolesAfterAWhile) {
  Device device("capacity:16GiB,backing:none,completion:instant");
  const auto arena = device.arena();
  {
    Replacing program(device, *arena, 256, 32 * kMiB);
    program.run(50'000);
    if (device.simulated()) {
      const uint64_t calls = device.total_calls();
      program.run(20'000);
      EXPECT_LT(device.total_calls() - calls, 20'000u / 200);
      EXPECT_EQ(device.host_waits(), 0u);
    }
    EXPECT_LT(static_cast<double>(reserved_bytes(*arena)),
              1.15 * static_cast<double>(program.most_live_bytes()));
  }
  SPW_EXPECT_OK(arena->validate());
}

TEST(Unrepeated, HoldsWhatTheOptionSays) {
  std::vector<uint64_t> reserved;
  std::vector<uint64_t> mappings;
  for (const double slack_percent : {0.0, 30.0}) {
    Device device("capacity:16GiB,backing:none,completion:instant");
    const auto arena = device.arena({.slack_percent = slack_percent});
    Replacing program(device, *arena, 256, 32 * kMiB);
    program.run(12'000);
    reserved.push_back(reserved_bytes(*arena));
    mappings.push_back(static_cast<uint64_t>(arena->stats().driver_calls.map));
    EXPECT_LT(static_cast<double>(reserved.back()),
              (1.03 + slack_percent / 100) * static_cast<double>(program.most_live_bytes()));
  }
  EXPECT_LT(reserved[0], reserved[1]);
  EXPECT_GT(mappings[0], mappings[1] * 3 / 2);
}

// Nearly every size of such a program is a new one, which tells it from one that repeats itself at once: then
// nothing is looked for, and memory is spent.
TEST(Unrepeated, IsNoticedFromTheFirstRequestsOn) {
  Device device("capacity:16GiB,backing:none,completion:instant");
  const auto arena = device.arena();
  const CUstream stream = device.stream();
  Random random(3);
  std::vector<void*> blocks;
  const auto run = [&](int requests) {
    for (int i = 0; i < requests; ++i) {
      if (blocks.size() == 40) {
        const size_t at = random() % blocks.size();
        SPW_EXPECT_OK(Arena::free(blocks[at]));
        blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(at));
      }
      blocks.push_back(must_allocate(*arena, kMiB + random() % (31 * kMiB), stream));
    }
  };
  run(100);
  const Predictor::Looks before = arena->looks();
  const uint64_t mapped = static_cast<uint64_t>(arena->stats().driver_calls.map);
  run(400);
  EXPECT_LE(arena->looks().searched - before.searched, 400u / 64 + 1);
  EXPECT_LT(static_cast<uint64_t>(arena->stats().driver_calls.map) - mapped, 400u);
  for (void* block : blocks) SPW_EXPECT_OK(Arena::free(block));
}

// Where every page counts, and large blocks are asked for: the pages that small ones break are few.
TEST(Unrepeated, SmallBlocksLieLowWhereNothingIsSpent) {
  Device device("capacity:16GiB,backing:none,completion:instant");
  const auto arena = device.arena({.slack_percent = 0});
  const CUstream stream = device.stream();
  Random random(3);
  const auto allocate = [&](uint64_t bytes) {
    return reinterpret_cast<uint64_t>(must_allocate(*arena, bytes, stream));
  };
  for (int i = 0; i < 200; ++i) {
    void* const large = must_allocate(*arena, 9 * kMiB + 512 * (random() % 9999), stream);
    SPW_EXPECT_OK(Arena::free(large));
  }
  const uint64_t low = allocate(kPageBytes - 512 * kKiB);
  const uint64_t high = allocate(kPageBytes - 200 * kKiB);
  ASSERT_LT(low, high);
  const uint64_t small = allocate(100 * kKiB);
  EXPECT_EQ(small / kPageBytes, low / kPageBytes) << "not where least would be left";
  for (const uint64_t block : {low, high, small}) SPW_EXPECT_OK(Arena::free(reinterpret_cast<void*>(block)));
}

TEST(Unrepeated, GivesBackWhatWasBoughtBeyondALowerOption) {
  Device device("capacity:16GiB,backing:none,completion:instant");
  const auto arena = device.arena({.slack_percent = 50});
  Replacing program(device, *arena, 256, 32 * kMiB);
  program.run(6'000);
  const int64_t before = arena->stats().reserved_bytes.all.current;
  SPW_EXPECT_OK(arena->set_slack(0));
  SPW_EXPECT_OK(arena->trim());
  const auto after = arena->stats().reserved_bytes.all.current;
  EXPECT_LT(after, before);
  program.run(200);
  const auto live = static_cast<double>(program.most_live_bytes());
  EXPECT_LT(static_cast<double>(arena->stats().reserved_bytes.all.current), 1.03 * live);
}

TEST(Unrepeated, NearALimitEveryPageCounts) {
  Device device("capacity:16GiB,backing:none,completion:instant");
  const auto arena = device.arena();
  uint64_t needed = 0;
  {
    Replacing program(device, *arena, 256, 32 * kMiB);
    program.run(12'000);
    needed = program.most_live_bytes();
  }
  SPW_EXPECT_OK(arena->trim());
  SPW_EXPECT_OK(arena->set_limit(needed + needed / 20));
  Replacing program(device, *arena, 256, 32 * kMiB);
  program.run(12'000);
  EXPECT_EQ(program.most_live_bytes(), needed);
  SPW_EXPECT_OK(arena->validate());
}

// Equal layers, whose sizes are others in each step: what is asked for is as the predictor says, and what it
// names is in use. After some ten thousand misses they are searched for no more, and served from holes.
TEST(Unrepeated, LayersOfAnotherSizeInEachStepAreServedFromHoles) {
  Device device("capacity:16GiB,backing:none,completion:instant");
  const auto arena = device.arena();
  const CUstream stream = device.stream();
  Random random(7);
  const auto step = [&](uint64_t bytes) {
    std::vector<void*> kept;
    for (int layer = 0; layer < 40; ++layer) {
      void* const temporary = must_allocate(*arena, 4 * bytes, stream);
      for (uint64_t i = 1; i <= 5; ++i) kept.push_back(must_allocate(*arena, i * bytes, stream));
      SPW_EXPECT_OK(Arena::free(temporary));
    }
    for (; !kept.empty(); kept.pop_back()) SPW_EXPECT_OK(Arena::free(kept.back()));
  };
  const auto steps = [&](int count) {
    for (int i = 0; i < count; ++i) step((128 + random() % 512) * 8 * kKiB);
  };
  steps(300);
  const Predictor::Looks before = arena->looks();
  const uint64_t calls = device.simulated() ? device.total_calls() : 0;
  steps(100);
  EXPECT_LT(arena->looks().searched - before.searched, 100u * 240 / 8);
  if (device.simulated()) {
    EXPECT_LT(device.total_calls() - calls, 100u * 240 / 200);
  }
  SPW_EXPECT_OK(arena->validate());
  // One size from now on: it costs nothing more after a few steps.
  for (int i = 0; i < 10; ++i) step(3 * kMiB + 512);
  const Predictor::Looks after = arena->looks();
  for (int i = 0; i < 5; ++i) step(3 * kMiB + 512);
  EXPECT_EQ(arena->looks().guessed, after.guessed) << "every request is served at once";
}

// What never repeated itself for long comes around from now on: it costs nothing more after a few passes.
TEST(Unrepeated, IsNoticedWhenItBeginsToRepeatItself) {
  Device device("capacity:16GiB,backing:none,completion:instant");
  const auto arena = device.arena();
  Replacing program(device, *arena, 64, 32 * kMiB);
  program.run(5'000);
  const CUstream stream = device.stream();
  const auto pass = [&] {
    Random random(5);
    std::vector<void*> blocks;
    for (int i = 0; i < 60; ++i) {
      blocks.push_back(must_allocate(*arena, (1 + random() % 40) * kMiB + 512 * (random() % 9), stream));
      if (i % 3 == 2) {
        SPW_EXPECT_OK(Arena::free(blocks[blocks.size() - 2]));
        blocks.erase(blocks.end() - 2);
      }
    }
    for (void* block : blocks) SPW_EXPECT_OK(Arena::free(block));
  };
  for (int i = 0; i < 20; ++i) pass();
  const Predictor::Looks before = arena->looks();
  const uint64_t calls = device.simulated() ? device.total_calls() : 0;
  for (int i = 0; i < 5; ++i) pass();
  EXPECT_EQ(arena->looks().searched, before.searched);
  if (device.simulated()) {
    EXPECT_EQ(device.total_calls(), calls);
  }
}

}  // namespace
}  // namespace spillway::test
