// Random programs against a model: what is live, where, and how much. After each step the allocator
// re-derives its counters. SPILLWAY_TEST_SEEDS and SPILLWAY_TEST_STEPS make it long; a failure names the
// seed.

#include "tests/support/random_program.h"

namespace spillway::test {
namespace {

class RandomProgram {
 public:
  RandomProgram(uint32_t seed, const ArenaOptions& options)
      : device_("capacity:96MiB,backing:none,completion:late,seed:" + std::to_string(seed)), dice_(seed) {
    arena_ = device_.arena(options);
    for (int i = 0; i < 3; ++i) streams_.push_back(device_.stream());
    streams_.push_back(nullptr);
  }

  void run(uint64_t steps) {
    for (uint64_t step = 0; step < steps; ++step) {
      one_step();
      // Walking everything costs more than the step: each of the first, then every tenth.
      if (step < 1000 || step % 10 == 0) {
        const Status valid = arena_->validate();
        ASSERT_TRUE(valid.ok()) << "step " << step << ": " << valid.text();
      }
      if (device_.report_count() != 0 || testing::Test::HasFailure()) {
        FAIL() << "step " << step << ": " << device_.reports();
      }
    }
    device_.clear_faults();
    for (const auto& [va, block] : live_) SPW_EXPECT_OK(Arena::free(block.pointer()));
    live_.clear();
    SPW_EXPECT_OK(arena_->validate());
    SPW_EXPECT_OK(arena_->trim());
    EXPECT_EQ(arena_->stats().reserved_bytes.all.current, 0);
    EXPECT_EQ(arena_->stats().requested_bytes.all.current, 0);
    arena_.reset();
    EXPECT_EQ(device_.live_handles(), 0u);
  }

 private:
  void one_step() {
    const uint32_t kind = dice_.pick(100);
    if (kind < 50 || live_.empty()) {
      allocate();
    } else if (kind < 88) {
      free_one();
    } else if (kind < 91) {
      use_elsewhere();
    } else if (kind < 92) {
      (void)arena_->trim();
    } else if (kind < 93) {
      SPW_EXPECT_OK(arena_->set_limit((32 + dice_.pick(80)) * kMiB));
    } else if (kind < 95) {
      dice_.inject_fault(device_);
    } else {
      wrong_free();
    }
  }

  void allocate() {
    const size_t bytes = dice_.pick_size();
    const CUstream stream = dice_.pick(streams_);
    void* pointer = nullptr;
    const Status status = arena_->allocate(bytes, stream, &pointer);
    if (!status.ok()) {
      EXPECT_EQ(pointer, nullptr);
      EXPECT_TRUE(status.code() == SPW_ERROR_OUT_OF_MEMORY || status.code() == SPW_ERROR_DRIVER)
          << status.text();
      return;
    }
    live_.add({reinterpret_cast<uint64_t>(pointer), bytes, stream, stream});
    device_.touch(stream, pointer, bytes);
    EXPECT_EQ(arena_->stats().allocation.all.current, static_cast<int64_t>(live_.size()));
  }

  void free_one() {
    const auto block = live_.pick(dice_);
    device_.touch(block->second.stream, block->second.pointer(), block->second.bytes);
    SPW_EXPECT_OK(Arena::free(block->second.pointer()));
    live_.remove(block);
    EXPECT_EQ(arena_->stats().allocation.all.current, static_cast<int64_t>(live_.size()));
  }

  void use_elsewhere() {
    const auto picked = live_.pick(dice_);
    const Block& block = picked->second;
    const CUstream user = dice_.pick(streams_);
    device_.clear_faults();
    device_.order(block.stream, user);
    device_.touch(user, block.pointer(), block.bytes);
    SPW_EXPECT_OK(Arena::record_stream(block.pointer(), user));
    // Freed right away: the owner does not touch it again, so no edge back is needed.
    SPW_EXPECT_OK(Arena::free(block.pointer()));
    live_.remove(picked);
  }

  void wrong_free() {
    const uint64_t wrong = live_.pick(dice_)->first + 512 * (1 + dice_.pick(100));
    if (live_.begins_at(wrong)) return;
    EXPECT_EQ(Arena::free(reinterpret_cast<void*>(wrong)).code(), SPW_ERROR_INVALID_POINTER);
  }

  Device device_;
  std::unique_ptr<Arena> arena_;
  std::vector<CUstream> streams_;
  Dice dice_;
  LiveBlocks live_;
};

void run_seeds(const ArenaOptions& options) {
  for_each_seed(3, 4000, [&](uint32_t seed, uint64_t steps) { RandomProgram(seed, options).run(steps); });
}

TEST(RandomPrograms, AgreeWithTheModel) {
  run_seeds({});
}

TEST(RandomPrograms, AgreeWithTheModelWithoutSharedEdges) {
  run_seeds({.share_edges = false});
}

TEST(RandomPrograms, AgreeWithTheModelWhereTheArenaIsCareful) {
  run_seeds({.share_edges = false, .careful = true, .on_broken = [](const Status& found) {
               ADD_FAILURE() << found.text();
             }});
}

TEST(RandomPrograms, AgreeWithTheModelWithoutVmm) {
  run_seeds({.use_vmm = false});
}

}  // namespace
}  // namespace spillway::test
