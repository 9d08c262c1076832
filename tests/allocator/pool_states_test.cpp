// What a pool holds is saved and put back: the same blocks at the same addresses, without a wait and without
// a driver call that maps or unmaps.

#include <algorithm>
#include <map>

#include "tests/support/device.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

constexpr PoolId kPool{1, 0};

class PoolStates : public testing::Test {
 protected:
  using Sizes = std::map<void*, uint64_t>;  // requested bytes by address

  void* in_pool(size_t bytes, CUstream stream) {
    SPW_EXPECT_OK(arena_->begin_pool(kPool, nullptr));
    void* block = must_allocate(*arena_, bytes, stream);
    SPW_EXPECT_OK(arena_->end_pool(kPool));
    return block;
  }
  PoolState checkpoint() {
    Result<PoolState> state = arena_->checkpoint_pool(kPool);
    EXPECT_TRUE(state.ok()) << state.status().text();
    return state.ok() ? std::move(state.value()) : PoolState();
  }
  Sizes live() const {
    Sizes sizes;
    for (const SegmentRow& segment : arena_->segments()) {
      for (const BlockRow& row : segment.blocks) {
        if (segment.pool_first == kPool.first && row.kind == BlockKind::kActiveAllocated) {
          sizes[reinterpret_cast<void*>(row.address)] = row.requested_bytes;
        }
      }
    }
    return sizes;
  }
  void restore(const PoolState& state) {
    changes_.clear();
    const Status status = arena_->restore_pool(state, &changes_);
    EXPECT_TRUE(status.ok()) << status.text();
    SPW_EXPECT_OK(arena_->validate());
  }
  void expect_refused(const PoolState& state, const std::string& reason) {
    const Sizes before = live();
    const Status refused = arena_->restore_pool(state, &changes_);
    EXPECT_EQ(refused.code(), SPW_ERROR_INVALID_STATE);
    EXPECT_NE(refused.text().find(reason), std::string::npos) << refused.text();
    EXPECT_EQ(live(), before);
    SPW_EXPECT_OK(arena_->validate());
  }
  std::vector<void*> changed(BlockKind kind) const {
    std::vector<void*> found;
    for (const RestoredBlock& change : changes_) {
      if (change.row.kind == kind) found.push_back(reinterpret_cast<void*>(change.row.address));
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  static std::vector<void*> addresses(const Sizes& sizes) {
    std::vector<void*> found;
    for (const auto& [address, bytes] : sizes) found.push_back(address);
    return found;
  }

  Device device_{"capacity:1GiB,completion:run-ahead"};
  std::unique_ptr<Arena> arena_ = device_.arena();
  const CUstream stream_ = device_.stream();
  const CUstream other_ = device_.stream();
  std::vector<RestoredBlock> changes_;
};

TEST_F(PoolStates, BlocksOfAllSizesComeBackToTheirAddresses) {
  std::vector<void*> blocks;
  for (const CUstream stream : {stream_, other_}) {
    for (const size_t bytes :
         {size_t{1}, size_t{700}, size_t{16384}, size_t{70000}, kMiB, 5 * kMiB + 300, 30 * kMiB}) {
      for (int i = 0; i < 3; ++i) blocks.push_back(in_pool(bytes, stream));
    }
  }
  // Holes, so that what comes back lies between others.
  for (size_t i = 0; i < blocks.size(); i += 2) SPW_EXPECT_OK(Arena::free(blocks[i]));
  const PoolState state = checkpoint();
  const Sizes before = live();
  const DeviceStats counted = arena_->stats();
  ASSERT_FALSE(before.empty());
  for (const auto& [address, bytes] : before) SPW_EXPECT_OK(Arena::free(address));
  // Others settle there meanwhile.
  for (const size_t bytes : {size_t{3000}, size_t{65536}, 2 * kMiB, 9 * kMiB + 5}) {
    for (int i = 0; i < 4; ++i) in_pool(bytes, i % 2 == 0 ? stream_ : other_);
  }
  const Sizes strangers = live();
  const uint64_t calls = device_.simulated() ? device_.total_calls() : 0;
  restore(state);
  if (device_.simulated()) {
    EXPECT_EQ(device_.total_calls(), calls) << "no driver call is needed";
  }
  EXPECT_EQ(live(), before);
  EXPECT_EQ(changed(BlockKind::kInactive), addresses(strangers));
  EXPECT_EQ(changed(BlockKind::kActiveAllocated), addresses(before));
  const DeviceStats now = arena_->stats();
  EXPECT_EQ(now.allocation.all.current, counted.allocation.all.current);
  EXPECT_EQ(now.active_bytes.all.current, counted.active_bytes.all.current);
  EXPECT_EQ(now.requested_bytes.all.current, counted.requested_bytes.all.current);
  for (const auto& [address, bytes] : before) SPW_EXPECT_OK(Arena::free(address));
  SPW_EXPECT_OK(arena_->validate());
}

TEST_F(PoolStates, AStateIsRestoredAnyNumberOfTimes) {
  void* const large = in_pool(3 * kMiB, stream_);
  void* const small = in_pool(512, stream_);
  const PoolState both = checkpoint();
  SPW_EXPECT_OK(Arena::free(large));
  const PoolState one = checkpoint();
  SPW_EXPECT_OK(Arena::free(small));
  const PoolState none = checkpoint();
  for (int i = 0; i < 3; ++i) {
    restore(both);
    EXPECT_EQ(live(), (Sizes{{large, 3 * kMiB}, {small, 512}}));
    restore(none);
    EXPECT_TRUE(live().empty());
    restore(one);
    EXPECT_EQ(live(), (Sizes{{small, 512}}));
  }
}

TEST_F(PoolStates, AnotherClassMayHaveTakenASlab) {
  std::vector<void*> blocks;
  for (int i = 0; i < 40; ++i) blocks.push_back(in_pool(1000, stream_));
  const PoolState state = checkpoint();
  const Sizes before = live();
  for (void* block : blocks) SPW_EXPECT_OK(Arena::free(block));
  // These are of another class, and of the same with other slots and sizes.
  for (int i = 0; i < 40; ++i) in_pool(4000, stream_);
  for (int i = 0; i < 90; ++i) in_pool(900, stream_);
  restore(state);
  EXPECT_EQ(live(), before);
}

TEST_F(PoolStates, ABlockOfBothKeepsItsStreams) {
  void* const kept = in_pool(4 * kMiB, stream_);
  void* const small = in_pool(600, stream_);
  const PoolState state = checkpoint();
  device_.order(stream_, other_);
  const Gate gate = device_.hold(other_);
  for (void* block : {kept, small}) {
    device_.touch(other_, block, 600);
    SPW_EXPECT_OK(Arena::record_stream(block, other_));
  }
  restore(state);
  EXPECT_EQ(changed(BlockKind::kInactive), changed(BlockKind::kActiveAllocated));
  SPW_EXPECT_OK(Arena::free(kept));
  SPW_EXPECT_OK(Arena::free(small));
  EXPECT_TRUE(in_pool(4 * kMiB, stream_) != kept) << "the other stream still uses it";
  EXPECT_TRUE(in_pool(600, stream_) != small);
}

TEST_F(PoolStates, MemoryThatAnotherStreamUsesIsNotGivenAgainBeforeThat) {
  for (const size_t bytes : {8 * kMiB, size_t{900}}) {
    void* const block = in_pool(bytes, stream_);
    const PoolState state = checkpoint();
    SPW_EXPECT_OK(Arena::free(block));
    // The whole place once more, or a part of it.
    void* const user = in_pool(bytes == 900 ? 900 : 4 * kMiB, stream_);
    EXPECT_TRUE(user == block);
    device_.order(stream_, other_);
    const Gate gate = device_.hold(other_);
    device_.touch(other_, user, 900);
    SPW_EXPECT_OK(Arena::record_stream(user, other_));
    // Live, and to be freed by the restoration: its place is wanted for the larger block.
    if (bytes != 900) expect_refused(state, "another stream still uses it");
    SPW_EXPECT_OK(Arena::free(user));
    expect_refused(state, "another stream still uses it");
    gate.open();
    EXPECT_EQ(device_.driver->cuCtxSynchronize(), CUDA_SUCCESS);
    restore(state);
    EXPECT_EQ(live()[block], bytes);
    SPW_EXPECT_OK(Arena::free(block));
  }
}

TEST_F(PoolStates, PlacesOfAStateAreRememberedHoweverManyCome) {
  std::vector<void*> blocks;
  for (size_t i = 0; i < 20; ++i) blocks.push_back(in_pool(20'000 + i * 512, stream_));
  const PoolState state = checkpoint();
  const Sizes before = live();
  for (void* block : blocks) SPW_EXPECT_OK(Arena::free(block));
  SPW_EXPECT_OK(arena_->begin_pool(kPool, nullptr));
  for (size_t i = 0; i < 60'000; ++i) {
    SPW_EXPECT_OK(Arena::free(must_allocate(*arena_, 20'000 + i * 512, stream_)));
  }
  SPW_EXPECT_OK(arena_->end_pool(kPool));
  restore(state);
  EXPECT_EQ(live(), before);
}

TEST_F(PoolStates, BlocksOutsideOfThePoolStay) {
  void* const outside = must_allocate(*arena_, 3 * kMiB, stream_);
  void* const inside = in_pool(3 * kMiB, stream_);
  const PoolState state = checkpoint();
  SPW_EXPECT_OK(Arena::free(inside));
  void* const later = must_allocate(*arena_, 3 * kMiB, stream_);
  restore(state);
  EXPECT_EQ(live(), (Sizes{{inside, 3 * kMiB}}));
  SPW_EXPECT_OK(Arena::free(outside));
  SPW_EXPECT_OK(Arena::free(later));
}

TEST_F(PoolStates, ACaptureGoesOn) {
  SPW_EXPECT_OK(arena_->begin_pool(kPool, nullptr));
  device_.begin_capture(stream_);
  void* const block = must_allocate(*arena_, 5 * kMiB, stream_);
  const PoolState state = checkpoint();
  SPW_EXPECT_OK(Arena::free(block));
  restore(state);
  EXPECT_EQ(live(), (Sizes{{block, 5 * kMiB}}));
  device_.discard_capture(stream_);
  SPW_EXPECT_OK(arena_->end_pool(kPool));
}

TEST_F(PoolStates, AReleasedPoolIsRefused) {
  EXPECT_EQ(arena_->checkpoint_pool(kPool).status().code(), SPW_ERROR_INVALID_STATE);
  EXPECT_EQ(arena_->checkpoint_pool({}).status().code(), SPW_ERROR_INVALID_STATE);
  SPW_EXPECT_OK(arena_->retain_pool(kPool));
  const PoolState state = checkpoint();
  const std::unique_ptr<Arena> another = device_.arena();
  SPW_EXPECT_OK(another->retain_pool(kPool));
  EXPECT_EQ(another->restore_pool(state, &changes_).code(), SPW_ERROR_INVALID_STATE);
  SPW_EXPECT_OK(arena_->release_pool(kPool));
  EXPECT_EQ(arena_->restore_pool(state, &changes_).code(), SPW_ERROR_INVALID_STATE);
  // Another pool by its id is not the pool.
  SPW_EXPECT_OK(arena_->retain_pool(kPool));
  EXPECT_EQ(arena_->restore_pool(state, &changes_).code(), SPW_ERROR_INVALID_STATE);
}

}  // namespace
}  // namespace spillway::test
