// Holds what tests of the spill tiers share: a device, an arena, the tiers below it, and regions whose bytes
// are written and compared by copies.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "offload/io/faulty_queue.h"
#include "offload/spill/region_memory.h"
#include "tests/support/device.h"
#include "tests/support/folder.h"

namespace spillway::test {

inline DiskTierOptions disk_options(const std::string& directory, bool use_uring = true) {
  DiskTierOptions options;
  options.file.directory = directory;
  options.file.growth_bytes = uint64_t{64} << 20;
  options.file.allow_ram_backed = true;
  options.io.use_uring = use_uring;
  options.io.threads = 2;
  return options;
}

// Returns the options with a queue whose operations fail as `choose` says.
inline DiskTierOptions with_faults(DiskTierOptions options, ChooseFault choose) {
  options.make_queue = [choose = std::move(choose)]() -> Result<std::unique_ptr<IoQueue>> {
    Result<std::unique_ptr<IoQueue>> queue = make_thread_queue(8, 2, "for faults");
    if (!queue.ok()) return queue;
    return make_faulty_queue(std::move(queue.value()), choose);
  };
  return options;
}

// A device with its tiers.
struct Tiers {
  explicit Tiers(const char* configuration, DiskTierOptions disk_tier, uint64_t pinned_bytes = UINT64_MAX)
      : device(configuration), pinned(*device.driver, {pinned_bytes, nullptr}), disk(std::move(disk_tier)) {
    Result<std::unique_ptr<CopyStreams>> made = CopyStreams::create(*device.driver);
    if (!made.ok()) throw std::runtime_error(made.status().text());
    copy_streams = std::move(made.value());
    memory = std::make_unique<RegionMemory>(*copy_streams, pinned, disk);
  }

  Device device;
  PinnedArena pinned;
  DiskTier disk;
  std::unique_ptr<CopyStreams> copy_streams;
  std::unique_ptr<RegionMemory> memory;
};

// One region of an arena, whose blocks hold patterns.
class TestRegion {
 public:
  TestRegion(Tiers& tiers, Arena& arena, PoolId id) : tiers_(tiers), arena_(arena), id_(id) {
    SPW_EXPECT_OK(arena_.retain_pool(id_));
    SPW_EXPECT_OK(arena_.make_pool_movable(
        id_, [memory = tiers_.memory.get()](const PageRange& range) { memory->give_up(range); }));
  }

  void* allocate(size_t bytes, CUstream stream = nullptr) {
    SPW_EXPECT_OK(arena_.begin_pool(id_, nullptr));
    void* block = nullptr;
    const Status status = arena_.allocate(bytes, stream, &block);
    SPW_EXPECT_OK(arena_.end_pool(id_));
    SPW_EXPECT_OK(arena_.release_pool(id_));  // begin_pool's claim; the region's own stays
    if (!status.ok()) return nullptr;
    bytes_[block] = bytes;
    return block;
  }
  void free(void* block) {
    bytes_.erase(block);
    patterns_.erase(block);
    SPW_EXPECT_OK(Arena::free(block));
  }
  // Work of the device on `stream` that gives the block bytes made from `seed`; 0 is all zero.
  void write(void* block, uint32_t seed, CUstream stream = nullptr) {
    patterns_[block] = pattern(bytes_[block], seed);
    const std::vector<char>& bytes = patterns_[block];
    EXPECT_EQ(
        tiers_.device.driver->cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(block), bytes.data(), bytes.size()),
        CUDA_SUCCESS);
    (void)stream;
  }
  // Tells whether the device has what was written last.
  bool is_intact(void* block) const {
    const std::vector<char>& expected = patterns_.at(block);
    std::vector<char> bytes(expected.size());
    EXPECT_EQ(
        tiers_.device.driver->cuMemcpyDtoH(bytes.data(), reinterpret_cast<CUdeviceptr>(block), bytes.size()),
        CUDA_SUCCESS);
    return bytes == expected;
  }
  bool all_intact() const {
    for (const auto& [block, bytes] : patterns_) {
      if (!is_intact(block)) return false;
    }
    return true;
  }
  const std::map<void*, size_t>& blocks() const { return bytes_; }

  Status evict(SpillTo to, Packer* packer = nullptr) {
    return arena_.move_pool_out(
        id_, [&](const RegionMemory::Ranges& ranges) { return tiers_.memory->copy_out(ranges, to, packer); });
  }
  Status restore() {
    return arena_.bring_pool_back(id_, [&](const RegionMemory::Ranges& ranges, bool* is_settled) {
      return tiers_.memory->copy_back(ranges, urgency_, is_settled);
    });
  }
  Status write_down() { return tiers_.memory->write_down(ranges()); }
  RegionUsage usage() const { return tiers_.memory->usage(ranges()); }
  RegionMemory::Ranges lost() const { return tiers_.memory->lost(ranges()); }
  RegionMemory::Ranges ranges() const { return arena_.pool_ranges(id_); }
  PoolId id() const { return id_; }

  // Seeds from here on give numbers of 2 bytes of which one is 0: shuffled, they can be packed to half.
  static constexpr uint32_t kPackable = 1 << 20;
  static std::vector<char> pattern(size_t bytes, uint32_t seed) {
    std::vector<char> out(bytes);
    if (seed != 0) fill(out.data(), bytes, seed);
    return out;
  }

 private:
  // Tests of many megabytes spend their time here; nobody else has these bytes yet.
  __attribute__((no_sanitize("thread", "address", "undefined"))) static void fill(char* out, size_t bytes,
                                                                                  uint32_t seed) {
    const uint32_t mask = seed < kPackable ? 0xffffffff : 0xff00ff00;
    uint32_t value = seed;
    for (size_t i = 0; i + sizeof(value) <= bytes; i += sizeof(value)) {
      value = value * 1664525 + 1013904223;
      const uint32_t written = value & mask;
      std::memcpy(out + i, &written, sizeof(written));
    }
  }

  Tiers& tiers_;
  Arena& arena_;
  const PoolId id_;
  std::map<void*, size_t> bytes_;
  std::map<void*, std::vector<char>> patterns_;
  Urgency urgency_;
};

}  // namespace spillway::test
