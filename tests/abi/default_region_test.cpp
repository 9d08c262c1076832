// The region of all threads that open no other, and bytes of regions that are read where they are.
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/folder.h"
#include "tests/support/offload_calls.h"

namespace spillway::test {
namespace {

bool is_in(const char* tag, size_t bytes) {
  return region_stats(tag).device_bytes == bytes;
}

// torch_memory_saver's TMS_INIT_ENABLE: autograd's thread allocates gradients, which are to leave with the
// rest.
TEST(AbiOffload, ADefaultRegionServesEveryThreadThatHasNoOther) {
  in_child({}, [] {
    const auto driver = start_device();
    std::vector<void*> blocks(6);
    SPW_CHECK(spw_region_set_default("all") == SPW_OK);
    SPW_CHECK(spw_region_set_default("all") == SPW_OK);
    SPW_CHECK(spw_alloc(2 * kMiB, 0, nullptr, &blocks[0]) == SPW_OK);
    std::thread([&] { SPW_CHECK(spw_alloc(4 * kMiB, 0, nullptr, &blocks[1]) == SPW_OK); }).join();
    SPW_CHECK(is_in("all", 6 * kMiB));
    blocks[2] = allocate_in("own", 2 * kMiB);
    SPW_CHECK(spw_region_begin_none() == SPW_OK);
    SPW_CHECK(spw_alloc(2 * kMiB, 0, nullptr, &blocks[3]) == SPW_OK);
    blocks[4] = allocate_in("own", 2 * kMiB);
    SPW_CHECK(spw_region_begin(0, "own") == SPW_OK);
    SPW_CHECK(spw_region_end_none() == SPW_ERROR_INVALID_STATE && last_error_has("innermost"));
    SPW_CHECK(spw_region_end(0, "own") == SPW_OK && spw_region_end_none() == SPW_OK);
    SPW_CHECK(spw_region_end_none() == SPW_ERROR_INVALID_STATE);
    SPW_CHECK(is_in("all", 6 * kMiB) && is_in("own", 4 * kMiB));
    // A pool that was opened before or after goes before it.
    const spw_pool_id pool = {5, 5};
    SPW_CHECK(spw_pool_begin(0, pool, nullptr, nullptr) == SPW_OK);
    SPW_CHECK(spw_region_set_default("next") == SPW_OK);
    SPW_CHECK(spw_alloc(2 * kMiB, 0, nullptr, &blocks[5]) == SPW_OK);
    SPW_CHECK(spw_pool_end(0, pool) == SPW_OK && is_in("next", 0) && is_in("all", 6 * kMiB));
    SPW_CHECK(spw_region_set_default(nullptr) == SPW_OK);
    void* none = nullptr;
    SPW_CHECK(spw_alloc(2 * kMiB, 0, nullptr, &none) == SPW_OK && is_in("next", 0));
    blocks.push_back(none);
    for (void* block : blocks) SPW_CHECK(spw_free(block) == SPW_OK);
    SPW_CHECK(spw_pool_release(0, pool) == SPW_OK && spw_validate(0) == SPW_OK);
  });
}

TEST(AbiOffload, ADefaultRegionIsMovedWhenAnotherTookItsPlace) {
  in_child({}, [] {
    const auto driver = start_device();
    SPW_CHECK(spw_region_set_default("two words") == SPW_ERROR_INVALID_ARGUMENT && last_error_has("letters"));
    SPW_CHECK(spw_region_set_default("") == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_region_set_default("first") == SPW_OK);
    void* block = nullptr;
    SPW_CHECK(spw_alloc(2 * kMiB, 0, nullptr, &block) == SPW_OK);
    fill(*driver, block, 7, 2 * kMiB);
    SPW_CHECK(spw_region_evict(0, "first", SPW_TIER_HOST) == SPW_ERROR_INVALID_STATE &&
              last_error_has("open"));
    SPW_CHECK(spw_region_release(0, "first") == SPW_ERROR_INVALID_STATE);
    SPW_CHECK(spw_region_set_default("second") == SPW_OK);
    SPW_CHECK(spw_region_evict(0, "first", SPW_TIER_HOST) == SPW_OK);
    SPW_CHECK(spw_region_set_default("first") == SPW_ERROR_INVALID_STATE &&
              last_error_has("restore it first"));
    void* other = nullptr;
    SPW_CHECK(spw_alloc(2 * kMiB, 0, nullptr, &other) == SPW_OK && is_in("second", 2 * kMiB));
    SPW_CHECK(spw_region_restore(0, "first") == SPW_OK && is_filled(*driver, block, 7, 2 * kMiB));
    // One that a thread has open stays what it is.
    SPW_CHECK(spw_region_begin(0, "first") == SPW_OK);
    SPW_CHECK(spw_region_set_default("first") == SPW_ERROR_INVALID_STATE);
    SPW_CHECK(spw_region_end(0, "first") == SPW_OK && spw_region_begin(0, "second") == SPW_OK);
    SPW_CHECK(spw_region_set_default("first") == SPW_ERROR_INVALID_STATE);
    SPW_CHECK(spw_free(other) == SPW_OK && spw_alloc(2 * kMiB, 0, nullptr, &other) == SPW_OK);
    SPW_CHECK(is_in("second", 2 * kMiB) && spw_region_end(0, "second") == SPW_OK);
    SPW_CHECK(spw_region_set_default("first") == SPW_OK);
    SPW_CHECK(spw_free(block) == SPW_OK && spw_free(other) == SPW_OK && spw_validate(0) == SPW_OK);
  });
}

TEST(AbiOffload, ADefaultRegionWaitsForDevicesThatAreNotUsedYet) {
  if (lacks_controls()) GTEST_SKIP() << "two devices are simulated: a machine need not have them";
  in_child({{"SPILLWAY_SIM", "devices:2"}}, [] {
    SPW_CHECK(spw_region_set_default("all") == SPW_OK);
    const auto driver = start_device(2);
    for (const int device : {0, 1}) {
      void* block = nullptr;
      SPW_CHECK(spw_alloc(2 * kMiB, device, nullptr, &block) == SPW_OK);
      spw_region_stats stats{};
      stats.size = sizeof stats;
      SPW_CHECK(spw_region_stats_get(device, "all", &stats) == SPW_OK && stats.device_bytes == 2 * kMiB);
      SPW_CHECK(spw_free(block) == SPW_OK);
    }
  });
}

TEST(AbiOffload, GuardedBlocksHaveNoDefaultRegion) {
  in_child({{"SPILLWAY_CONF", "debug:guard"}}, [] {
    SPW_CHECK(spw_region_set_default("all") == SPW_ERROR_UNSUPPORTED && last_error_has("debug:guard"));
  });
}

TEST(AbiOffload, WhatIsElsewhereCanBeReadWithoutTheDevice) {
  in_child({{"SPILLWAY_CONF", "spill_dir:/tmp,spill_ram_backed:on"}}, [] {
    const auto driver = start_device();
    auto* block = static_cast<unsigned char*>(filled_in(*driver, "weights", 1, 20 * kMiB));
    fill(*driver, block + 9 * kMiB + 3, 2, 5);
    std::vector<unsigned char> out(9 * kMiB);
    const auto read = [&](const unsigned char* from, size_t bytes) {
      return spw_region_read(0, "weights", from, bytes, out.data());
    };
    SPW_CHECK(read(block, 1) == SPW_ERROR_INVALID_STATE && last_error_has("on the device"));
    for (const spw_tier tier : {SPW_TIER_HOST, SPW_TIER_DISK}) {
      SPW_CHECK(spw_region_evict(0, "weights", tier) == SPW_OK);
      SPW_CHECK(read(block + 7 * kMiB + 1, 9 * kMiB) == SPW_OK);  // across segments
      std::vector<unsigned char> expected(9 * kMiB, 1);
      std::fill_n(expected.begin() + 2 * kMiB + 2, 5, 2);
      SPW_CHECK(out == expected);
      SPW_CHECK(read(block + 19 * kMiB, kMiB) == SPW_OK && read(block, 0) == SPW_OK);
      SPW_CHECK(read(block + 20 * kMiB - 1, 2 * kMiB) == SPW_ERROR_INVALID_ARGUMENT);
      SPW_CHECK(read(block, SIZE_MAX) == SPW_ERROR_INVALID_ARGUMENT);
      SPW_CHECK(read(nullptr, 1) == SPW_ERROR_INVALID_ARGUMENT);
      SPW_CHECK(spw_region_restore(0, "weights") == SPW_OK);
      SPW_CHECK(is_filled(*driver, block, 1, 9 * kMiB) && is_filled(*driver, block + 9 * kMiB + 3, 2, 5));
    }
    SPW_CHECK(spw_region_evict(0, "weights", SPW_TIER_NOWHERE) == SPW_OK);
    SPW_CHECK(read(block, 1) == SPW_ERROR_INVALID_STATE && last_error_has("not kept"));
    SPW_CHECK(spw_free(block) == SPW_OK);
  });
}

}  // namespace
}  // namespace spillway::test
