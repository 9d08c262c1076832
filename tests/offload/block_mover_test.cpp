// Blocks between a device, the host and the disk: all of them are copied, or as many as the caller is told,
// and a failure leaves no copy under way and no room taken.
#include "offload/spill/block_mover.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "driver/context.h"
#include "tests/support/io_faults.h"
#include "tests/support/sizes.h"
#include "tests/support/spilling.h"

namespace spillway::test {
namespace {

constexpr PoolId kWeights{9, 1};
constexpr PoolId kOther{9, 2};

class BlockMoverTest : public testing::Test {
 protected:
  static constexpr uint64_t kBytes = 5 * kMiB;

  BlockMoverTest() : tiers_("capacity:256MiB,completion:late", options(), 64 * kMiB) {
    tiers_.pinned.set_most_bytes(UINT64_MAX);
    for (uint32_t i = 0; i < 3; ++i) {
      contents_.push_back(TestRegion::pattern(kBytes, i + 1));
      CUdeviceptr va = 0;
      EXPECT_EQ(driver().cuMemAlloc(&va, kBytes), CUDA_SUCCESS);
      EXPECT_EQ(driver().cuMemcpyHtoD(va, contents_.back().data(), kBytes), CUDA_SUCCESS);
      devices_.push_back(va);
      blocks_.emplace_back(kBytes);
    }
    for (size_t i = 0; i < 3; ++i) all_.push_back({devices_[i], &blocks_[i]});
  }
  ~BlockMoverTest() override {
    for (SpillBlock& block : blocks_) mover_.drop(block);
    EXPECT_EQ(tiers_.disk.counters().blocks_bytes, 0u);
    EXPECT_EQ(tiers_.device.reports(), "");
    for (const CUdeviceptr va : devices_) EXPECT_EQ(driver().cuMemFree(va), CUDA_SUCCESS);
  }
  DiskTierOptions options() {
    DiskTierOptions made =
        with_faults(disk_options(directory_.path(), false), [this](const IoOperation& operation, uint64_t) {
          return operation.kind == failing_ ? fails(error_) : IoFault{};
        });
    made.buffers = 2;
    return made;
  }
  const Driver& driver() const { return *tiers_.device.driver; }
  Status to_host(size_t* copied, const BlockMover::MakeRoom& make_room = nullptr) {
    return mover_.copy_to_host(all_, make_room, copied);
  }
  // Loses what is on the device, and expects it back whole.
  void expect_back() {
    for (const CUdeviceptr va : devices_) {
      EXPECT_EQ(driver().cuMemsetD8Async(va, 0xee, kBytes, nullptr), CUDA_SUCCESS);
    }
    EXPECT_EQ(driver().cuCtxSynchronize(), CUDA_SUCCESS);
    SPW_EXPECT_OK(mover_.copy_back(all_, urgency_));
    for (size_t i = 0; i < 3; ++i) {
      std::vector<char> found(kBytes);
      EXPECT_EQ(driver().cuMemcpyDtoH(found.data(), devices_[i], kBytes), CUDA_SUCCESS);
      EXPECT_TRUE(found == contents_[i]) << i;
    }
  }
  bool holds(const std::byte* memory, size_t i) const {
    return std::memcmp(memory, contents_[i].data(), kBytes) == 0;
  }
  bool all_pinned_is_free() {
    const uint64_t bytes = tiers_.pinned.reserved_bytes();
    return tiers_.pinned.release_free() == bytes;
  }

  const Folder directory_;
  std::atomic<IoKind> failing_{IoKind::kSync};  // which a direct file has none of
  std::atomic<int64_t> error_{0};
  Tiers tiers_;
  BlockMover mover_{*tiers_.copy_streams, tiers_.pinned, tiers_.disk};
  const Urgency urgency_;
  std::vector<CUdeviceptr> devices_;
  std::vector<std::vector<char>> contents_;
  std::vector<SpillBlock> blocks_;
  std::vector<DeviceBytes> all_;
};

TEST_F(BlockMoverTest, HostMemoryTakesAllOfThem) {
  size_t copied = 0;
  SPW_EXPECT_OK(to_host(&copied));
  EXPECT_EQ(copied, 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(holds(blocks_[i].spilled.host, i)) << i;
  expect_back();
  for (SpillBlock& block : blocks_) {
    EXPECT_NE(block.spilled.host, nullptr) << "it is the caller's to drop";
    mover_.drop_host(block);
    EXPECT_EQ(block.spilled.host, nullptr);
  }
  EXPECT_TRUE(all_pinned_is_free());
}

TEST_F(BlockMoverTest, HostMemoryTakesTheFirstAsFarAsItHasRoom) {
  tiers_.pinned.set_most_bytes(2 * kBytes + 2 * kMiB);
  int asked = 0;
  size_t copied = 0;
  SPW_EXPECT_OK(to_host(&copied, [&] { return ++asked < 3; }));
  EXPECT_EQ(copied, 2u);
  EXPECT_EQ(asked, 3) << "as long as there is hope";
  EXPECT_TRUE(holds(blocks_[0].spilled.host, 0) && holds(blocks_[1].spilled.host, 1));
  EXPECT_EQ(blocks_[2].spilled.host, nullptr);
  // Some of them come from the disk.
  SPW_EXPECT_OK(mover_.copy_to_disk(std::span(all_).last(1), nullptr));
  expect_back();
}

TEST_F(BlockMoverTest, RoomThatOthersMakeIsUsed) {
  tiers_.pinned.set_most_bytes(3 * kBytes + 3 * kMiB);
  void* others = tiers_.pinned.allocate(kBytes).value();
  int asked = 0;
  size_t copied = 0;
  SPW_EXPECT_OK(to_host(&copied, [&] {
    if (asked++ == 0) tiers_.pinned.give_back(others, kBytes);
    return asked == 1;
  }));
  EXPECT_EQ(copied, 3u);
  EXPECT_EQ(asked, 1);
  expect_back();
}

TEST_F(BlockMoverTest, NobodyMakesRoomForWhatIsLargerThanAll) {
  tiers_.pinned.set_most_bytes(kBytes - kMiB);
  size_t copied = 7;
  SPW_EXPECT_OK(to_host(&copied, [] {
    ADD_FAILURE() << "in vain";
    return false;
  }));
  EXPECT_EQ(copied, 0u);
}

TEST_F(BlockMoverTest, AFailedCopyLeavesNoneInHostMemory) {
  tiers_.device.inject_fault("cuMemcpyDtoHAsync", 3, CUDA_ERROR_UNKNOWN);
  size_t copied = 0;
  EXPECT_EQ(to_host(&copied).code(), SPW_ERROR_DRIVER);
  EXPECT_EQ(copied, 0u);
  for (const SpillBlock& block : blocks_) EXPECT_EQ(block.spilled.host, nullptr);
  EXPECT_TRUE(all_pinned_is_free()) << "its copies are done";
}

// The device may still write there.
TEST_F(BlockMoverTest, MemoryOfCopiesThatCannotBeWaitedForIsNeverUsedAgain) {
  tiers_.device.inject_fault("cuStreamSynchronize", 1, CUDA_ERROR_UNKNOWN);
  size_t copied = 0;
  EXPECT_EQ(to_host(&copied).code(), SPW_ERROR_DRIVER);
  EXPECT_EQ(copied, 0u);
  for (const SpillBlock& block : blocks_) EXPECT_EQ(block.spilled.host, nullptr);
  EXPECT_EQ(tiers_.pinned.release_free(), 0u);
  EXPECT_EQ(tiers_.pinned.take(kBytes), nullptr);
}

TEST_F(BlockMoverTest, TheDiskTakesAllOrNone) {
  SPW_EXPECT_OK(mover_.copy_to_disk(all_, nullptr));
  EXPECT_EQ(tiers_.disk.counters().blocks_bytes, 9 * kPieceBytes);
  expect_back();
  for (SpillBlock& block : blocks_) mover_.drop(block);
  const std::pair<IoKind, int64_t> faults[] = {{IoKind::kWrite, -ENOSPC}, {IoKind::kWrite, -EIO}};
  for (const auto& [kind, error] : faults) {
    error_ = error;
    failing_ = kind;
    EXPECT_FALSE(mover_.copy_to_disk(all_, nullptr).ok());
    EXPECT_EQ(tiers_.disk.counters().blocks_bytes, 0u);
    for (const SpillBlock& block : blocks_) EXPECT_TRUE(block.spilled.pieces.empty());
  }
}

TEST_F(BlockMoverTest, WhatIsWrittenDownStaysInHostMemoryAndCanBeReadUp) {
  size_t copied = 0;
  SPW_EXPECT_OK(to_host(&copied));
  SPW_EXPECT_OK(mover_.write_down(blocks_[1], nullptr));
  EXPECT_TRUE(holds(blocks_[1].spilled.host, 1));
  EXPECT_EQ(blocks_[1].spilled.pieces.size(), 3u);
  mover_.drop_host(blocks_[1]);
  const std::unique_ptr<std::byte, void (*)(void*)> memory(
      static_cast<std::byte*>(std::aligned_alloc(DiskTier::kAlignment, BlockMover::slot_bytes(blocks_[1]))),
      std::free);
  SPW_EXPECT_OK(mover_.read_up(blocks_[1], memory.get(), urgency_));
  EXPECT_TRUE(holds(memory.get(), 1));
  expect_back();  // from the host and from the disk
  error_ = -EIO;
  failing_ = IoKind::kWrite;
  EXPECT_EQ(mover_.write_down(blocks_[0], nullptr).code(), SPW_ERROR_IO);
  EXPECT_TRUE(blocks_[0].spilled.pieces.empty());
  EXPECT_TRUE(holds(blocks_[0].spilled.host, 0));
}

TEST_F(BlockMoverTest, WhatTheDiskLostIsMarkedAndNotWhatItCannotReadNow) {
  SPW_EXPECT_OK(mover_.copy_to_disk(all_, nullptr));
  error_ = -ENOMEM;
  failing_ = IoKind::kRead;
  EXPECT_EQ(mover_.copy_back(all_, urgency_).code(), SPW_ERROR_IO);
  const auto lost = [&] {
    size_t found = 0;
    for (const SpillBlock& block : blocks_) {
      for (const DiskPiece& piece : block.spilled.pieces) found += piece.is_lost ? 1 : 0;
    }
    return found;
  };
  EXPECT_EQ(lost(), 0u);
  failing_ = IoKind::kSync;
  damage(directory_.path(), blocks_[1].spilled.pieces[2].offset);
  EXPECT_EQ(mover_.copy_back(all_, urgency_).code(), SPW_ERROR_DATA_LOST);
  EXPECT_EQ(lost(), 1u);
  EXPECT_TRUE(blocks_[1].spilled.pieces[2].is_lost);
}

TEST_F(BlockMoverTest, BuffersAreKeptForTheNextMoveUntilTheyAreGivenUp) {
  SPW_EXPECT_OK(mover_.copy_to_disk(all_, nullptr));
  const uint64_t ring_bytes = tiers_.pinned.reserved_bytes();
  EXPECT_GE(ring_bytes, 2 * Staging::kBufferBytes);
  const uint64_t pins = tiers_.device.calls("cuMemHostRegister");
  expect_back();
  EXPECT_EQ(tiers_.device.calls("cuMemHostRegister"), pins) << "the same ones";
  EXPECT_EQ(tiers_.pinned.release_free(), 0u);
  mover_.give_up_staging();
  EXPECT_EQ(tiers_.pinned.release_free(), ring_bytes);
  mover_.give_up_staging();  // there is none
  expect_back();
  EXPECT_EQ(tiers_.pinned.reserved_bytes(), ring_bytes) << "made anew, and kept again";
  EXPECT_EQ(tiers_.pinned.release_free(), 0u);
}

// Holds the disk back until `may_begin`, and keeps what it is told of memory.
class WatchedQueue final : public IoQueue {
 public:
  WatchedQueue(std::unique_ptr<IoQueue> queue, std::function<bool()> may_begin,
               std::vector<std::span<std::byte>>* memory)
      : queue_(std::move(queue)), may_begin_(std::move(may_begin)), memory_(memory) {}

  void push(const IoOperation& operation) override {
    while (!may_begin_()) std::this_thread::yield();
    queue_->push(operation);
  }
  size_t wait(std::span<IoCompletion> out) override { return queue_->wait(out); }
  void wake() override { queue_->wake(); }
  void use_memory(std::span<std::byte> memory) override {
    memory_->push_back(memory);
    queue_->use_memory(memory);
  }
  bool forget_memory(std::span<std::byte> memory) override { return queue_->forget_memory(memory); }
  void use_file(int file) override { queue_->use_file(file); }
  uint32_t depth() const override { return queue_->depth(); }
  std::string description() const override { return queue_->description(); }

 private:
  std::unique_ptr<IoQueue> queue_;
  std::function<bool()> may_begin_;
  std::vector<std::span<std::byte>>* memory_;
};

TEST(BlockMover, MemoryThatTheDiskKnowsStaysMapped) {
  const uint64_t ring_bytes = DiskTierOptions().buffers * Staging::kBufferBytes;
  const Folder directory;
  std::atomic<const PinnedArena*> pinned{nullptr};
  std::vector<std::span<std::byte>> memory;
  DiskTierOptions options = disk_options(directory.path());
  options.make_queue = [&]() -> Result<std::unique_ptr<IoQueue>> {
    Result<std::unique_ptr<IoQueue>> queue = make_uring_queue(8);
    if (!queue.ok()) queue = make_thread_queue(8, 2, "no io_uring here");
    if (!queue.ok()) return queue;
    // The first move's bytes wait for the second move's ring.
    const auto both_have_rings = [&] { return pinned.load()->reserved_bytes() >= 2 * ring_bytes; };
    return std::unique_ptr<IoQueue>(
        std::make_unique<WatchedQueue>(std::move(queue.value()), both_have_rings, &memory));
  };
  Tiers tiers("capacity:512MiB,completion:late", options);
  pinned = &tiers.pinned;
  const std::unique_ptr<Arena> arena = tiers.device.arena();
  TestRegion weights(tiers, *arena, kWeights);
  TestRegion other(tiers, *arena, kOther);
  weights.write(weights.allocate(ring_bytes), 1);
  other.write(other.allocate(ring_bytes), 2);
  std::thread second([&] {
    const ScopedContext context(*tiers.device.driver, arena->context());
    SPW_EXPECT_OK(other.evict(SpillTo::kDisk));
  });
  SPW_EXPECT_OK(weights.evict(SpillTo::kDisk));
  second.join();
  EXPECT_GT(tiers.pinned.release_free(), 0u);
  EXPECT_FALSE(memory.empty());
  for (const std::span<std::byte> range : memory) {
    EXPECT_EQ(msync(range.data(), range.size(), MS_ASYNC), 0) << "a part is not mapped";
  }
}

TEST(BlockMover, AfterAFailedMoveNoCopyReadsWhatTheProgramWrites) {
  const Folder directory;
  DiskTierOptions options = disk_options(directory.path());
  options.buffers = 3;
  Tiers tiers("capacity:128MiB,completion:late", options);
  const std::unique_ptr<Arena> arena = tiers.device.arena();
  TestRegion weights(tiers, *arena, kWeights);
  void* block = weights.allocate(options.buffers * Staging::kBufferBytes);
  weights.write(block, 1);
  // One copy is on its way when the next is refused.
  for (int round = 0; round < 2; ++round) {
    tiers.device.inject_fault("cuMemcpyDtoHAsync", 2, CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(weights.evict(SpillTo::kDisk).code(), SPW_ERROR_DRIVER);
    tiers.device.clear_faults();
    tiers.device.touch(tiers.device.stream(), block, weights.blocks().at(block));
    EXPECT_EQ(tiers.device.reports(), "") << round;
    EXPECT_EQ(tiers.device.driver->cuCtxSynchronize(), CUDA_SUCCESS);
    SPW_EXPECT_OK(weights.evict(SpillTo::kDisk));
    SPW_EXPECT_OK(weights.restore());
  }
}

}  // namespace
}  // namespace spillway::test
