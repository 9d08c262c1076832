// Random programs against a model: what is live, where, and how much. After each step the allocator
// re-derives its counters. SPILLWAY_TEST_SEEDS and SPILLWAY_TEST_STEPS make it long; a failure names the
// seed.

#include <cstdlib>
#include <map>
#include <random>

#include "tests/allocator/device.h"

namespace spillway::test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

uint64_t from_environment(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == 0 ? fallback : std::strtoull(text, nullptr, 10);
}

struct Block {
  uint64_t va;
  size_t bytes;
  CUstream stream;
};

class RandomProgram {
 public:
  RandomProgram(uint32_t seed, const ArenaOptions& options)
      : device_("capacity:96MiB,backing:none,completion:late,seed:" + std::to_string(seed)),
        random_(seed),
        seed_(seed) {
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
        ASSERT_TRUE(valid.ok()) << "seed " << seed_ << " step " << step << ": " << valid.text();
      }
      if (device_.report_count() != 0 || testing::Test::HasFailure()) {
        FAIL() << "seed " << seed_ << " step " << step << ": " << device_.reports();
      }
    }
    device_.clear_faults();
    for (const auto& [va, block] : live_) SPW_EXPECT_OK(Arena::free(reinterpret_cast<void*>(va)));
    live_.clear();
    SPW_EXPECT_OK(arena_->validate());
    SPW_EXPECT_OK(arena_->trim());
    EXPECT_EQ(arena_->stats().reserved_bytes.all.current, 0) << "seed " << seed_;
    EXPECT_EQ(arena_->stats().requested_bytes.all.current, 0) << "seed " << seed_;
    arena_.reset();
    EXPECT_EQ(device_.live_handles(), 0u) << "seed " << seed_;
  }

 private:
  uint32_t pick(uint32_t below) { return static_cast<uint32_t>(random_() % below); }

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

  std::map<uint64_t, Block>::iterator pick_block() {
    auto block = live_.lower_bound(pick(1u << 31) | (uint64_t{pick(1u << 16)} << 31));
    if (block == live_.end()) block = live_.begin();
    std::advance(block, pick(static_cast<uint32_t>(live_.size())) % 4);
    return block == live_.end() ? live_.begin() : block;
  }

  void one_step() {
    const uint32_t kind = pick(100);
    if (kind < 50 || live_.empty()) {
      allocate();
    } else if (kind < 88) {
      free_one();
    } else if (kind < 91) {
      use_elsewhere();
    } else if (kind < 92) {
      (void)arena_->trim();
    } else if (kind < 93) {
      SPW_EXPECT_OK(arena_->set_limit((32 + pick(80)) * kMiB));
    } else if (kind < 95) {
      const char* const names[] = {"cuMemCreate",   "cuMemMap",     "cuMemSetAccess",    "cuMemUnmap",
                                   "cuEventRecord", "cuEventQuery", "cuStreamWaitEvent", "cuEventCreate"};
      device_.inject_fault(names[pick(8)], 1 + pick(5),
                           pick(2) == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN);
    } else {
      wrong_free();
    }
  }

  void allocate() {
    const size_t bytes = pick_size();
    const CUstream stream = streams_[pick(static_cast<uint32_t>(streams_.size()))];
    void* pointer = nullptr;
    const Status status = arena_->allocate(bytes, stream, &pointer);
    if (!status.ok()) {
      EXPECT_EQ(pointer, nullptr);
      EXPECT_TRUE(status.code() == SPW_ERROR_OUT_OF_MEMORY || status.code() == SPW_ERROR_DRIVER)
          << status.text();
      return;
    }
    const auto va = reinterpret_cast<uint64_t>(pointer);
    EXPECT_EQ(va % 512, 0u);
    const auto next = live_.lower_bound(va);
    if (next != live_.end()) {
      EXPECT_LE(va + bytes, next->first) << "overlaps the next block";
    }
    if (next != live_.begin()) {
      EXPECT_LE(std::prev(next)->first + std::prev(next)->second.bytes, va) << "overlaps the block before";
    }
    live_[va] = {va, bytes, stream};
    device_.touch(stream, pointer, bytes);
    EXPECT_EQ(arena_->stats().allocation.all.current, static_cast<int64_t>(live_.size()));
  }

  void free_one() {
    const auto block = pick_block();
    device_.touch(block->second.stream, reinterpret_cast<void*>(block->first), block->second.bytes);
    SPW_EXPECT_OK(Arena::free(reinterpret_cast<void*>(block->first)));
    live_.erase(block);
    EXPECT_EQ(arena_->stats().allocation.all.current, static_cast<int64_t>(live_.size()));
  }

  void use_elsewhere() {
    const auto block = pick_block();
    const CUstream user = streams_[pick(static_cast<uint32_t>(streams_.size()))];
    CUevent ready = nullptr;
    const Driver& driver = *device_.driver;
    device_.clear_faults();
    driver.cuEventCreate(&ready, CU_EVENT_DISABLE_TIMING);
    driver.cuEventRecord(ready, block->second.stream);
    driver.cuStreamWaitEvent(user, ready, 0);
    driver.cuEventDestroy(ready);
    device_.touch(user, reinterpret_cast<void*>(block->first), block->second.bytes);
    SPW_EXPECT_OK(Arena::record_stream(reinterpret_cast<void*>(block->first), user));
    // Freed right away: the owner does not touch it again, so no edge back is needed.
    SPW_EXPECT_OK(Arena::free(reinterpret_cast<void*>(block->first)));
    live_.erase(block);
  }

  void wrong_free() {
    const uint64_t wrong = pick_block()->first + 512 * (1 + pick(100));
    if (live_.count(wrong) != 0) return;
    EXPECT_EQ(Arena::free(reinterpret_cast<void*>(wrong)).code(), SPW_ERROR_INVALID_POINTER);
  }

  Device device_;
  std::unique_ptr<Arena> arena_;
  std::vector<CUstream> streams_;
  std::mt19937 random_;
  const uint32_t seed_;
  std::map<uint64_t, Block> live_;
};

void run_seeds(const ArenaOptions& options) {
  const uint64_t seeds = from_environment("SPILLWAY_TEST_SEEDS", 3);
  const uint64_t steps = from_environment("SPILLWAY_TEST_STEPS", 4000);
  for (uint32_t seed = 1; seed <= seeds; ++seed) {
    RandomProgram program(seed, options);
    program.run(steps);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(RandomPrograms, AgreeWithTheModel) {
  run_seeds({});
}

TEST(RandomPrograms, AgreeWithTheModelWithoutSharedEdges) {
  ArenaOptions options;
  options.share_edges = false;
  run_seeds(options);
}

TEST(RandomPrograms, AgreeWithTheModelWithoutVmm) {
  ArenaOptions options;
  options.use_vmm = false;
  run_seeds(options);
}

}  // namespace
}  // namespace spillway::test
