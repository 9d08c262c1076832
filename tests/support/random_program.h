// Holds what random programs share: dice, the model of what is live, the driver calls that may fail, and how
// often and how long they run.
#pragma once

#include <map>
#include <random>

#include "tests/support/device.h"
#include "tests/support/sizes.h"
#include "tests/support/thorough.h"

namespace spillway::test {

class Dice {
 public:
  explicit Dice(uint32_t seed) : random_(seed) {}

  uint32_t pick(uint32_t below) { return static_cast<uint32_t>(random_() % below); }
  bool one_in(uint32_t odds) { return pick(odds) == 0; }
  template <typename Item>
  Item& pick(std::vector<Item>& items) {
    return items[pick(static_cast<uint32_t>(items.size()))];
  }
  // Picks the size of a request: slots, parts of pages, whole pages, and blocks of several pages and a part.
  size_t pick_size() {
    switch (pick(6)) {
      case 0:
        return 1 + pick(2048);
      case 1:
        return 1 + pick(64 << 10);
      case 2:
        return 1 + pick(2 * kMiB);
      case 3:
        return (1 + pick(8)) * 2 * kMiB;
      default:
        return 1 + pick(24 * kMiB);
    }
  }
  // One of the next calls of some entry point fails.
  void inject_fault(Device& device) {
    static const char* const kNames[] = {
        "cuMemCreate",  "cuMemMap",          "cuMemSetAccess", "cuMemUnmap",       "cuEventRecord",
        "cuEventQuery", "cuStreamWaitEvent", "cuEventCreate",  "cuCtxSynchronize", "cuEventSynchronize"};
    device.inject_fault(kNames[pick(std::size(kNames))], 1 + pick(5),
                        one_in(2) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN);
  }

 private:
  std::mt19937 random_;
};

struct Block {
  uint64_t va;
  size_t bytes;
  CUstream stream;
  CUstream used_on;      // where its last use was enqueued
  uint32_t pool = 0;     // the program's number of it; 0 for none
  uint64_t capture = 0;  // of the stream's work that it was allocated in; 0 for none
  size_t index = 0;      // of LiveBlocks

  void* pointer() const { return reinterpret_cast<void*>(va); }
};

// The live blocks by address, which may not overlap.
class LiveBlocks {
 public:
  using Iterator = std::map<uint64_t, Block>::iterator;

  bool empty() const { return blocks_.empty(); }
  size_t size() const { return blocks_.size(); }
  Iterator begin() { return blocks_.begin(); }
  Iterator end() { return blocks_.end(); }
  Iterator find(uint64_t va) { return blocks_.find(va); }
  bool begins_at(uint64_t va) const { return blocks_.count(va) != 0; }

  Block& add(const Block& block) {
    EXPECT_EQ(block.va % 512, 0u);
    const auto next = blocks_.lower_bound(block.va);
    if (next != blocks_.end()) {
      EXPECT_LE(block.va + block.bytes, next->first) << "overlaps the next block";
    }
    if (next != blocks_.begin()) {
      EXPECT_LE(std::prev(next)->first + std::prev(next)->second.bytes, block.va)
          << "overlaps the block before";
    }
    Block& added = blocks_[block.va] = block;
    added.index = addresses_.size();
    addresses_.push_back(block.va);
    return added;
  }
  void remove(Iterator block) {
    const size_t index = block->second.index;
    blocks_.at(addresses_[index] = addresses_.back()).index = index;
    addresses_.pop_back();
    blocks_.erase(block);
  }
  void clear() {
    blocks_.clear();
    addresses_.clear();
  }

  // Any of them; there must be one.
  Iterator pick(Dice& dice) { return blocks_.find(dice.pick(addresses_)); }

 private:
  std::map<uint64_t, Block> blocks_;
  std::vector<uint64_t> addresses_;
};

// Runs `run(seed, steps)` for so many seeds, or as SPILLWAY_TEST_SEEDS, _STEPS and _FIRST_SEED say. The first
// failure is the last, and names its seed. Cases that share the seeds take one in `shares` each, from the
// `share`th on.
template <typename Run>
void for_each_seed(uint64_t usual_seeds, uint64_t usual_steps, Run run, uint64_t share = 0,
                   uint64_t shares = 1) {
  const uint64_t seeds = from_environment("SPILLWAY_TEST_SEEDS", usual_seeds);
  const uint64_t steps = from_environment("SPILLWAY_TEST_STEPS", usual_steps);
  const uint64_t first = from_environment("SPILLWAY_TEST_FIRST_SEED", 1);
  for (uint64_t seed = first + share; seed < first + seeds && !testing::Test::HasFailure(); seed += shares) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run(static_cast<uint32_t>(seed), steps);
  }
}

}  // namespace spillway::test
