// A program that repeats itself gets the same addresses in every pass: what a pass is served depends on what
// is live, never on what was.

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/support/device.h"

namespace spillway::test {
namespace {

// Only addresses: nothing here reads the memory.
constexpr const char* kNoBytes = "capacity:8GiB,backing:none,races:off";
constexpr int kPassesToLearn = 4;
constexpr int kPasses = 3;

struct Step {
  uint64_t bytes;  // 0: free
  size_t block;
};

// Small blocks of few classes, blocks of just a slab's size, and large ones, with lives that end at random.
std::vector<Step> random_program(uint64_t seed, int steps) {
  std::mt19937_64 random(seed);
  std::vector<Step> program;
  std::vector<size_t> live;
  size_t blocks = 0;
  const auto free_one = [&](size_t i) {
    program.push_back({0, live[i]});
    live[i] = live.back();
    live.pop_back();
  };
  for (int step = 0; step < steps; ++step) {
    if (live.size() > 30 || (!live.empty() && random() % 2 == 0)) {
      free_one(random() % live.size());
      continue;
    }
    const uint64_t kind = random() % 8;
    const uint64_t bytes = kind < 3   ? uint64_t{512} << random() % 7
                           : kind < 6 ? 64 * 1024 + 512
                                      : (1 + random() % 8000) * 1024;
    program.push_back({bytes, blocks});
    live.push_back(blocks++);
  }
  while (!live.empty()) free_one(live.size() - 1);
  return program;
}

std::vector<void*> addresses_of_pass(Arena& arena, const std::vector<Step>& program) {
  std::vector<void*> addresses;
  for (const Step& step : program) {
    if (step.bytes > 0) {
      addresses.push_back(must_allocate(arena, step.bytes, nullptr));
    } else {
      SPW_EXPECT_OK(Arena::free(addresses[step.block]));
    }
  }
  return addresses;
}

TEST(Repeats, EveryPassGetsTheAddressesOfTheOneBefore) {
  Device device(kNoBytes);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const auto arena = device.arena();
    const std::vector<Step> program = random_program(seed, 2000);
    for (int pass = 0; pass < kPassesToLearn; ++pass) addresses_of_pass(*arena, program);
    const std::vector<void*> learnt = addresses_of_pass(*arena, program);
    for (int pass = 0; pass < kPasses; ++pass) {
      EXPECT_EQ(addresses_of_pass(*arena, program), learnt) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace spillway::test
