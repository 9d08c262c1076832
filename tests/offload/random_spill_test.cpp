// Random programs over regions and stashes, with faults of the driver and of the disk: whatever happened,
// what comes back is what was there. SPILLWAY_TEST_SEEDS and SPILLWAY_TEST_STEPS make it long, and with
// SPILLWAY_TEST_FIRST_SEED processes share the seeds; a failure names the seed and the step.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>

#include "offload/spill/device_tiers.h"
#include "tests/support/random_program.h"
#include "tests/support/sizes.h"
#include "tests/support/spilling.h"

namespace spillway::test {
namespace {

constexpr uint32_t kMostBlocks = 24;
constexpr size_t kMostBytes = 6 * kMiB;

// Blocks hold stretches of it, from offsets that no two blocks are likely to share, so that bytes in another
// block's place, or in another place of their own block, are seen. A third is zero, a third noise, a third of
// it can be packed.
class Content {
 public:
  static constexpr uint32_t kOffsets = 64 << 10;

  Content() {
    for (const uint32_t seed : {0U, 1U, TestRegion::kPackable}) {
      const std::vector<char> third = TestRegion::pattern(kThird, seed);
      bytes_.insert(bytes_.end(), third.begin(), third.end());
    }
  }
  // Picks at most kMostBytes.
  const char* pick(Dice& dice) const { return bytes_.data() + dice.pick(3) * kThird + dice.pick(kOffsets); }

 private:
  static constexpr size_t kThird = kMostBytes + kOffsets;
  std::vector<char> bytes_;
};

// Says what the disk does wrong: now and then, and never so often in a row that a retry cannot help.
IoFault passing_fault(uint32_t number) {
  IoFault fault;
  switch (number % 97) {
    case 3:
      fault.result = -EIO;
      break;
    case 17:
      fault.result = -EAGAIN;
      break;
    case 31:
      fault.result = -EINTR;
      break;
    case 47:
      fault.most_bytes = 4096;
      break;
    case 61:
      fault.flipped_byte = 5;
      break;
    case 79:
      fault.result = 0;
      break;
    default:
      break;
  }
  return fault;
}

DiskTierOptions faulty_disk(const std::string& directory) {
  return with_faults(disk_options(directory, false), [](const IoOperation& operation, uint64_t index) {
    IoFault fault = passing_fault(static_cast<uint32_t>(index));
    // Wrong memory under a write would be a wrong file that nobody can tell.
    if (operation.kind == IoKind::kWrite) fault.flipped_byte.reset();
    return fault;
  });
}

class RandomSpills {
 public:
  explicit RandomSpills(uint32_t seed)
      : device_("capacity:192MiB,completion:late,seed:" + std::to_string(seed)),
        arena_(device_.arena()),
        pinned_(*device_.driver, {uint64_t{128} << 20, nullptr}),
        dice_(seed) {
    Result<std::unique_ptr<DeviceTiers>> tiers =
        DeviceTiers::create(*device_.driver, *arena_, pinned_, faulty_disk(directory_.path()), Codec::kLz4);
    if (!tiers.ok()) throw std::runtime_error(tiers.status().text());
    tiers_ = std::move(tiers.value());
    for (int i = 0; i < 2; ++i) streams_.push_back(device_.stream());
  }

  // The arena returns regions' memory, so that must be before its source goes.
  ~RandomSpills() {
    for (const char* tag : kTags) (void)tiers_->regions().release(tag);
    (void)arena_->trim();
  }
  RandomSpills(const RandomSpills&) = delete;
  RandomSpills& operator=(const RandomSpills&) = delete;

  void run(uint64_t steps) {
    for (uint64_t step = 0; step < steps; ++step) {
      one_step();
      if (step % 64 == 0) SPW_EXPECT_OK(arena_->validate());
      if (device_.report_count() != 0 || testing::Test::HasFailure()) {
        FAIL() << "step " << step << ": " << device_.reports();
      }
    }
    device_.clear_faults();
    finish();
  }

  uint64_t restores() const { return restores_; }

 private:
  struct Block {
    size_t bytes;
    const char* content;
    CUstream stream;
    std::string tag;  // empty: of no region
  };
  struct Stashed {
    Stashes::Stash* stash;
    size_t bytes;
    const char* content;
  };

  void one_step() {
    const uint32_t kind = dice_.pick(100);
    if (kind < 30) {
      allocate();
    } else if (kind < 55) {
      rewrite();
    } else if (kind < 70) {
      free_one();
    } else if (kind < 78) {
      evict();
    } else if (kind < 86) {
      restore();
    } else if (kind < 88) {
      prefetch();
    } else if (kind < 93) {
      put();
    } else if (kind < 98) {
      get();
    } else {
      inject_fault();
    }
  }

  std::string pick_tag() { return kTags[dice_.pick(kTags.size())]; }
  bool is_out(const std::string& tag) const { return out_.count(tag) != 0; }
  size_t pick_bytes() {
    if (dice_.one_in(12)) return 1 + dice_.pick(kMostBytes);
    return 1 + dice_.pick(64 << 10);
  }

  void allocate() {
    if (blocks_.size() >= kMostBlocks) return free_one();
    Block block{pick_bytes(), nullptr, dice_.pick(streams_), dice_.one_in(4) ? "" : pick_tag()};
    void* pointer = nullptr;
    if (!block.tag.empty()) {
      const Status begun = tiers_->regions().begin(block.tag);
      if (!begun.ok()) {
        EXPECT_TRUE(is_out(block.tag) || begun.code() == SPW_ERROR_OUT_OF_MEMORY ||
                    begun.code() == SPW_ERROR_DRIVER)
            << begun.text();
        return;
      }
      EXPECT_TRUE(!is_out(block.tag) || prefetched_.count(block.tag) != 0);
      out_.erase(block.tag);
      prefetched_.erase(block.tag);
    }
    const Status status = arena_->allocate(block.bytes, block.stream, &pointer);
    if (!block.tag.empty()) SPW_EXPECT_OK(tiers_->regions().end(block.tag));
    if (!status.ok()) return;
    write(pointer, block);
    blocks_[pointer] = block;
  }

  void write(void* pointer, Block& block) {
    block.content = content_.pick(dice_);
    EXPECT_EQ(device_.driver->cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(pointer),
                                            reinterpret_cast<CUdeviceptr>(block.content), block.bytes,
                                            block.stream),
              CUDA_SUCCESS);
  }

  auto pick_block() {
    auto at = blocks_.begin();
    std::advance(at, dice_.pick(static_cast<uint32_t>(blocks_.size())));
    return at;
  }

  void rewrite() {
    if (blocks_.empty()) return;
    auto& [pointer, block] = *pick_block();
    if (is_out(block.tag)) return;
    write(pointer, block);
  }

  void free_one() {
    if (blocks_.empty()) return;
    const auto at = pick_block();
    SPW_EXPECT_OK(Arena::free(at->first));
    blocks_.erase(at);
  }

  // Compares every byte; nothing is in flight. Tests are not optimised: memcmp, which is the library's, looks
  // first.
  void check(const void* pointer, size_t bytes, const char* content) {
    found_.resize(bytes);
    ASSERT_EQ(device_.driver->cuMemcpyDtoH(found_.data(), reinterpret_cast<CUdeviceptr>(pointer), bytes),
              CUDA_SUCCESS);
    if (std::memcmp(found_.data(), content, bytes) == 0) return;
    const auto wrong = std::mismatch(found_.begin(), found_.end(), content).first;
    FAIL() << "at byte " << wrong - found_.begin() << " of " << bytes;
  }

  void evict() {
    const std::string tag = pick_tag();
    // A prefetch that ended well has brought it back, which shows only now.
    const bool may_be_here = !is_out(tag) || prefetched_.count(tag) != 0;
    constexpr std::array kTo{SpillTo::kHost, SpillTo::kDisk, SpillTo::kDisk, SpillTo::kHost};
    const Status status = tiers_->regions().evict(tag, kTo[dice_.pick(kTo.size())]);
    if (status.ok()) {
      EXPECT_TRUE(may_be_here) << tag;
      out_.insert(tag);
      prefetched_.erase(tag);
    }
  }

  void prefetch() {
    const std::string tag = pick_tag();
    if (is_out(tag) && tiers_->regions().prefetch(tag).ok()) prefetched_.insert(tag);
  }

  void restore() {
    const std::string tag = pick_tag();
    if (!is_out(tag)) return;
    const Status status = tiers_->regions().restore(tag);
    if (!status.ok()) {
      EXPECT_NE(status.code(), SPW_ERROR_DATA_LOST) << status.text();
      if (status.code() != SPW_ERROR_INVALID_STATE) return;
    }
    out_.erase(tag);
    prefetched_.erase(tag);
    ++restores_;
    EXPECT_EQ(device_.driver->cuCtxSynchronize(), CUDA_SUCCESS);
    for (const auto& [pointer, block] : blocks_) {
      if (block.tag == tag) check(pointer, block.bytes, block.content);
    }
  }

  void put() {
    if (blocks_.empty() || stashed_.size() >= 8) return;
    const auto at = pick_block();
    const Block block = at->second;
    if (is_out(block.tag)) return;
    Result<Stashes::Stash*> made =
        tiers_->stashes().put(reinterpret_cast<CUdeviceptr>(at->first), block.bytes, block.stream,
                              dice_.one_in(2) ? Stashes::To::kDisk : Stashes::To::kHost);
    if (!made.ok()) return;
    stashed_.push_back({made.value(), block.bytes, block.content});
    // The block may go at once: its memory waits for the copy.
    if (Arena::record_stream(at->first, tiers_->copy_streams().out()).ok() && dice_.one_in(2)) {
      SPW_EXPECT_OK(Arena::free(at->first));
      blocks_.erase(at);
    } else {
      device_.clear_faults();                                     // those are for the calls under test
      device_.order(tiers_->copy_streams().out(), block.stream);  // before it is written again
    }
  }

  void get() {
    if (stashed_.empty()) return;
    const size_t index = dice_.pick(static_cast<uint32_t>(stashed_.size()));
    const Stashed stashed = stashed_[index];
    const CUstream stream = dice_.pick(streams_);
    void* pointer = nullptr;
    if (!arena_->allocate(stashed.bytes, stream, &pointer).ok()) return;
    const Status begun =
        tiers_->stashes().begin_get(*stashed.stash, reinterpret_cast<CUdeviceptr>(pointer), stream);
    Status finished;
    const bool is_given_up = begun.ok() && dice_.one_in(4);  // with its copy in flight, or not yet read
    if (is_given_up) {
      tiers_->stashes().free(stashed.stash);
      stashed_.erase(stashed_.begin() + static_cast<ptrdiff_t>(index));
    } else if (begun.ok()) {
      finished = tiers_->stashes().finish_get(*stashed.stash, stream, nullptr);
    }
    EXPECT_NE(finished.code(), SPW_ERROR_DATA_LOST) << finished.text();
    SPW_EXPECT_OK(Arena::record_stream(pointer, tiers_->copy_streams().in()));
    if (begun.ok() && finished.ok() && !is_given_up) {
      EXPECT_EQ(device_.driver->cuStreamSynchronize(stream), CUDA_SUCCESS);
      check(pointer, stashed.bytes, stashed.content);
      tiers_->stashes().free(stashed.stash);
      stashed_.erase(stashed_.begin() + static_cast<ptrdiff_t>(index));
    }
    SPW_EXPECT_OK(Arena::free(pointer));
  }

  void inject_fault() {
    static const char* const kNames[] = {"cuMemCreate",       "cuMemMap",          "cuMemSetAccess",
                                         "cuMemUnmap",        "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync",
                                         "cuEventRecord",     "cuEventCreate",     "cuStreamWaitEvent",
                                         "cuMemHostRegister", "cuEventSynchronize"};
    device_.inject_fault(kNames[dice_.pick(std::size(kNames))], 1 + dice_.pick(4), CUDA_ERROR_OUT_OF_MEMORY);
  }

  void finish() {
    for (const char* tag : kTags) {
      if (!is_out(tag)) continue;
      const Status status = tiers_->regions().restore(tag);
      EXPECT_TRUE(status.ok() || status.code() == SPW_ERROR_INVALID_STATE) << status.text();
    }
    EXPECT_EQ(device_.driver->cuCtxSynchronize(), CUDA_SUCCESS);
    for (const auto& [pointer, block] : blocks_) {
      check(pointer, block.bytes, block.content);
      SPW_EXPECT_OK(Arena::free(pointer));
    }
    blocks_.clear();
    for (const Stashed& stashed : stashed_) tiers_->stashes().free(stashed.stash);
    SPW_EXPECT_OK(arena_->validate());
  }

  static constexpr std::array<const char*, 3> kTags{"weights", "optimizer", "cache"};

  const Content content_;
  std::vector<char> found_;
  Folder directory_;
  Device device_;
  std::unique_ptr<Arena> arena_;
  PinnedArena pinned_;
  std::unique_ptr<DeviceTiers> tiers_;
  Dice dice_;
  std::vector<CUstream> streams_;
  std::map<void*, Block> blocks_;
  std::vector<Stashed> stashed_;
  std::set<std::string> out_;
  std::set<std::string> prefetched_;  // of those
  uint64_t restores_ = 0;
};

// In processes that share the seeds: ThreadSanitizer keeps what it knows of each address that a process ever
// used.
constexpr uint64_t kShares = 4;
class RandomSpillsTest : public testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Shares, RandomSpillsTest, testing::Range(uint64_t{0}, kShares));

TEST_P(RandomSpillsTest, WhatComesBackIsWhatWasThere) {
  uint64_t restores = 0;
  uint64_t enough = 0;
  const auto run = [&](uint32_t seed, uint64_t steps) {
    RandomSpills program(seed);
    program.run(steps);
    restores += program.restores();
    enough += steps / 200;
  };
  for_each_seed(kShares, 800, run, GetParam(), kShares);
  EXPECT_GE(restores, enough);
}

}  // namespace
}  // namespace spillway::test
