// Random programs that save and restore what their pools hold, against a model that remembers it too.
// SPILLWAY_TEST_SEEDS and SPILLWAY_TEST_STEPS make it long; a failure names the seed.

#include <algorithm>

#include "tests/support/random_program.h"

namespace spillway::test {
namespace {

constexpr size_t kMostStates = 6;
// A restoration may call none of these.
const char* const kDear[] = {"cuMemCreate", "cuMemRelease",     "cuMemMap",           "cuMemUnmap",
                             "cuMemAlloc",  "cuCtxSynchronize", "cuEventSynchronize", "cuStreamWaitEvent"};

class RandomPoolStates {
 public:
  RandomPoolStates(uint32_t seed, const ArenaOptions& options)
      : device_("capacity:192MiB,backing:none,completion:late,seed:" + std::to_string(seed)), dice_(seed) {
    arena_ = device_.arena(options);
    for (int i = 0; i < 3; ++i) streams_.push_back(device_.stream());
    for (uint32_t& pool : pools_) make(pool);
  }

  void run(uint64_t steps) {
    for (uint64_t step = 0; step < steps && !testing::Test::HasFailure(); ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      one_step();
      if (step < 500 || step % 10 == 0) SPW_EXPECT_OK(arena_->validate());
      EXPECT_EQ(device_.reports(), "");
    }
    EXPECT_GT(restorations_, steps / 20);
  }

 private:
  struct Saved {
    uint32_t pool;
    PoolState state;
    std::vector<Block> blocks;
  };

  static PoolId id_of(uint32_t pool) { return {pool, 0}; }

  void make(uint32_t& pool) {
    pool = ++last_pool_;
    SPW_EXPECT_OK(arena_->retain_pool(id_of(pool)));
  }

  void one_step() {
    const uint32_t kind = dice_.pick(100);
    if (kind < 45 || live_.empty()) {
      allocate();
    } else if (kind < 70) {
      free(live_.pick(dice_));
    } else if (kind < 78) {
      use_elsewhere();
    } else if (kind < 86) {
      save();
    } else if (kind < 97) {
      restore();
    } else if (!dice_.one_in(8)) {
      (void)arena_->trim();
    } else {
      release();
    }
  }

  void allocate() {
    const CUstream stream = dice_.pick(streams_);
    const size_t bytes = dice_.pick_size();
    const uint32_t pool = dice_.one_in(3) ? 0 : pools_[dice_.pick(2)];
    void* pointer = nullptr;
    if (pool != 0) SPW_EXPECT_OK(arena_->begin_pool(id_of(pool), nullptr));
    (void)arena_->allocate(bytes, stream, &pointer);
    if (pool != 0) {
      SPW_EXPECT_OK(arena_->end_pool(id_of(pool)));
      SPW_EXPECT_OK(arena_->release_pool(id_of(pool)));
    }
    if (pointer == nullptr) return;
    live_.add({reinterpret_cast<uint64_t>(pointer), bytes, stream, stream, pool});
    device_.touch(stream, pointer, bytes);
  }

  void free(LiveBlocks::Iterator picked) {
    const Block& block = picked->second;
    if (block.used_on == block.stream) device_.touch(block.stream, block.pointer(), block.bytes);
    SPW_EXPECT_OK(Arena::free(block.pointer()));
    live_.remove(picked);
  }

  // From then on the block is used there alone.
  void use_elsewhere() {
    const auto picked = live_.pick(dice_);
    Block& block = picked->second;
    const CUstream user = dice_.pick(streams_);
    device_.order(block.used_on, user);
    device_.touch(user, block.pointer(), block.bytes);
    SPW_EXPECT_OK(Arena::record_stream(block.pointer(), user));
    block.used_on = user;
    if (dice_.one_in(2)) free(picked);
  }

  std::vector<Block> blocks_of(uint32_t pool) {
    std::vector<Block> blocks;
    for (const auto& [va, block] : live_) {
      if (block.pool == pool) blocks.push_back(block);
    }
    return blocks;
  }

  void save() {
    const uint32_t pool = pools_[dice_.pick(2)];
    Result<PoolState> state = arena_->checkpoint_pool(id_of(pool));
    ASSERT_TRUE(state.ok()) << state.status().text();
    if (saved_.size() == kMostStates) saved_.erase(saved_.begin() + dice_.pick(kMostStates));
    saved_.push_back({pool, std::move(state.value()), blocks_of(pool)});
  }

  void restore() {
    if (saved_.empty()) return;
    const Saved& saved = dice_.pick(saved_);
    const std::vector<Block> before = blocks_of(saved.pool);
    const uint64_t dear = dear_calls();
    std::vector<RestoredBlock> changes;
    Status status = arena_->restore_pool(saved.state, &changes);
    if (saved.pool != pools_[0] && saved.pool != pools_[1]) {
      EXPECT_EQ(status.code(), SPW_ERROR_INVALID_STATE) << "the pool was released";
      return expect_unchanged(before);
    }
    if (!status.ok()) {
      EXPECT_EQ(status.code(), SPW_ERROR_INVALID_STATE) << status.text();
      expect_unchanged(before);
      // Live blocks that other streams use wait for those when they are freed.
      for (const Block& block : before) free(live_.find(block.va));
      EXPECT_EQ(device_.driver->cuCtxSynchronize(), CUDA_SUCCESS);
      status = arena_->restore_pool(saved.state, &changes);
      ASSERT_TRUE(status.ok()) << status.text();
    } else {
      EXPECT_EQ(dear_calls(), dear);
    }
    check_restored(saved, changes);
    ++restorations_;
  }

  uint64_t dear_calls() const {
    uint64_t calls = 0;
    for (const char* name : kDear) calls += device_.calls(name);
    return calls;
  }

  void expect_unchanged(const std::vector<Block>& before) const {
    for (const Block& block : before) {
      const Result<FoundBlock> found = Arena::find_block(block.pointer());
      ASSERT_TRUE(found.ok()) << found.status().text();
      EXPECT_EQ(found.value().row.requested_bytes, block.bytes);
    }
  }

  void check_restored(const Saved& saved, const std::vector<RestoredBlock>& changes) {
    const std::vector<Block> before = blocks_of(saved.pool);
    size_t freed = 0;
    for (const RestoredBlock& change : changes) {
      if (change.row.kind != BlockKind::kInactive) continue;
      ++freed;
      EXPECT_TRUE(std::any_of(before.begin(), before.end(),
                              [&](const Block& block) { return block.va == change.row.address; }));
    }
    EXPECT_EQ(freed, before.size());
    EXPECT_EQ(changes.size() - freed, saved.blocks.size());
    for (const Block& block : before) live_.remove(live_.find(block.va));
    for (Block block : saved.blocks) {
      const auto kept =
          std::find_if(before.begin(), before.end(), [&](const Block& old) { return old.va == block.va; });
      // Of another stream's work on it the new owner must know as the old one did.
      block.used_on = kept == before.end() ? block.stream : kept->used_on;
      live_.add(block);
      const Result<FoundBlock> found = Arena::find_block(block.pointer());
      ASSERT_TRUE(found.ok()) << found.status().text();
      EXPECT_EQ(found.value().row.requested_bytes, block.bytes);
      EXPECT_EQ(found.value().row.kind, BlockKind::kActiveAllocated);
      if (block.used_on == block.stream) device_.touch(block.stream, block.pointer(), block.bytes);
    }
    EXPECT_EQ(arena_->stats().allocation.all.current, static_cast<int64_t>(live_.size()));
  }

  // Its blocks live on, of no pool that could be saved.
  void release() {
    uint32_t& pool = pools_[dice_.pick(2)];
    SPW_EXPECT_OK(arena_->release_pool(id_of(pool)));
    for (const Block& block : blocks_of(pool)) live_.find(block.va)->second.pool = 0;
    make(pool);
  }

  Device device_;
  std::unique_ptr<Arena> arena_;
  std::vector<CUstream> streams_;
  Dice dice_;
  uint32_t last_pool_ = 0;
  uint32_t pools_[2] = {};
  LiveBlocks live_;
  std::vector<Saved> saved_;
  uint64_t restorations_ = 0;
};

void run_seeds(const ArenaOptions& options) {
  for_each_seed(4, 2500, [&](uint32_t seed, uint64_t steps) { RandomPoolStates(seed, options).run(steps); });
}

TEST(RandomPoolStates, AgreeWithTheModel) {
  run_seeds({});
}

TEST(RandomPoolStates, AgreeWithTheModelWithoutSharedEdges) {
  run_seeds({.share_edges = false});
}

TEST(RandomPoolStates, AgreeWithTheModelWithoutVmm) {
  run_seeds({.use_vmm = false});
}

}  // namespace
}  // namespace spillway::test
