// The C ABI of regions and stashes: what each function does, and that mistakes cost an error and nothing
// else.
#include "include/spillway/offload.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/folder.h"
#include "tests/support/offload_calls.h"

namespace spillway::test {
namespace {

TEST(AbiOffload, RegionsLeaveAndComeBack) {
  in_child({{"SPILLWAY_CONF", "spill_dir:/tmp,spill_ram_backed:on"}}, [] {
    const auto driver = start_device();
    void* weights = filled_in(*driver, "weights", 1, 10 * kMiB);
    void* cache = filled_in(*driver, "kv/cache", 2, 6 * kMiB);
    SPW_CHECK(spw_region_evict(0, "weights", SPW_TIER_DISK) == SPW_OK);
    SPW_CHECK(spw_region_evict(0, "kv/cache", SPW_TIER_NOWHERE) == SPW_OK);
    SPW_CHECK(allocated_bytes() == 0);
    SPW_CHECK(region_stats("weights").disk_bytes >= 10 * kMiB &&
              region_stats("kv/cache").discarded_bytes >= 6 * kMiB);
    SPW_CHECK(tier_stats().disk_written_bytes >= 10 * kMiB);
    SPW_CHECK(spw_region_prefetch(0, "weights") == SPW_OK);
    SPW_CHECK(spw_region_restore(0, "weights") == SPW_OK);
    SPW_CHECK(is_filled(*driver, weights, 1, 10 * kMiB));
    SPW_CHECK(spw_region_restore(0, "kv/cache") == SPW_OK);
    SPW_CHECK(allocated_bytes() == static_cast<int64_t>(16 * kMiB));
    SPW_CHECK(region_stats("weights").evictions == 1 && region_stats("weights").restores == 1);
    std::string tags;
    const auto visit = [](const char* tag, const spw_region_stats*, void* out) {
      *static_cast<std::string*>(out) += std::string(tag) + " ";
      return 0;
    };
    SPW_CHECK(spw_region_walk(0, visit, &tags) == SPW_OK && tags == "kv/cache weights ");
    SPW_CHECK(spw_region_release(0, "weights") == SPW_OK);
    SPW_CHECK(spw_free(weights) == SPW_OK && spw_free(cache) == SPW_OK);
    SPW_CHECK(spw_trim(0) == SPW_OK);
    SPW_CHECK(spw_validate(0) == SPW_OK);
  });
}

TEST(AbiOffload, NestedRegionsServeInnermostFirst) {
  in_child({}, [] {
    const auto driver = start_device();
    SPW_CHECK(spw_region_begin(0, "outer") == SPW_OK);
    void* inner = allocate_in("inner", 4 * kMiB);
    void* outer = nullptr;
    SPW_CHECK(spw_alloc(2 * kMiB, 0, nullptr, &outer) == SPW_OK);
    SPW_CHECK(spw_region_end(0, "inner") == SPW_ERROR_INVALID_STATE);
    SPW_CHECK(spw_region_end(0, "outer") == SPW_OK);
    void* none = nullptr;
    SPW_CHECK(spw_alloc(2 * kMiB, 0, nullptr, &none) == SPW_OK);
    SPW_CHECK(region_stats("inner").device_bytes == 4 * kMiB &&
              region_stats("outer").device_bytes == 2 * kMiB);
    for (void* block : {inner, outer, none}) SPW_CHECK(spw_free(block) == SPW_OK);
  });
}

// cudf-spark#6864: what was in use was copied out as well, and gave no room.
TEST(AbiOffload, AnAllocationThatWouldFailEvictsWhatMayGo) {
  in_child({{"SPILLWAY_CONF", "limit:64MiB"}}, [] {
    const auto driver = start_device();
    void* cold = filled_in(*driver, "cold", 3, 30 * kMiB);
    void* pinned = allocate_in("pinned", 20 * kMiB);
    SPW_CHECK(spw_region_set_priority(0, "cold", 1) == SPW_OK);
    SPW_CHECK(spw_region_set_priority(0, "pinned", 2) == SPW_OK);
    SPW_CHECK(spw_region_pin(0, "pinned") == SPW_OK);
    void* block = nullptr;
    SPW_CHECK(spw_alloc(30 * kMiB, 0, nullptr, &block) == SPW_OK);
    SPW_CHECK(region_stats("cold").host_bytes == 30 * kMiB && region_stats("pinned").host_bytes == 0);
    SPW_CHECK(spw_region_evict(0, "pinned", SPW_TIER_HOST) == SPW_ERROR_INVALID_STATE &&
              last_error_has("pinned"));
    SPW_CHECK(spw_region_restore(0, "cold") == SPW_ERROR_OUT_OF_MEMORY);
    // By the names that the program gave, and by those alone.
    void* none = nullptr;
    SPW_CHECK(spw_alloc(40 * kMiB, 0, nullptr, &none) == SPW_ERROR_OUT_OF_MEMORY &&
              last_error_has("regions on the device: 1: pinned 20.00 MiB (20971520)") &&
              !last_error_has("private pools"));
    SPW_CHECK(spw_free(block) == SPW_OK);
    SPW_CHECK(spw_region_restore(0, "cold") == SPW_OK);
    SPW_CHECK(is_filled(*driver, cold, 3, 30 * kMiB));
    SPW_CHECK(spw_region_unpin(0, "pinned") == SPW_OK);
    SPW_CHECK(spw_free(cold) == SPW_OK && spw_free(pinned) == SPW_OK);
  });
}

// Holds what a callback does while a region comes back, and how often it was called.
struct MakingRoom {
  int calls = 0;
  bool evicts = true;

  static uint64_t call(int device, uint64_t, void* context) {
    auto& making = *static_cast<MakingRoom*>(context);
    ++making.calls;
    std::string tags;
    const auto visit = [](const char* tag, const spw_region_stats*, void* out) {
      *static_cast<std::string*>(out) += std::string(tag) + " ";
      return 0;
    };
    SPW_CHECK(spw_region_walk(device, visit, &tags) == SPW_OK && tags == "a b c ");
    SPW_CHECK(tier_stats().region_host_bytes == 60 * kMiB && region_stats("a").host_bytes == 30 * kMiB);
    SPW_CHECK(spw_region_restore(device, "a") == SPW_ERROR_INVALID_STATE &&
              last_error_has("room is being made"));
    SPW_CHECK(spw_region_begin(device, "a") == SPW_ERROR_INVALID_STATE);
    SPW_CHECK(spw_region_prefetch(device, "a") == SPW_ERROR_INVALID_STATE);
    SPW_CHECK(spw_region_set_priority(device, "a", 1) == SPW_OK);
    void* none = nullptr;
    SPW_CHECK(spw_alloc(100 * kMiB, device, nullptr, &none) == SPW_ERROR_OUT_OF_MEMORY);
    SPW_CHECK(spw_region_restore(device, "c") == SPW_ERROR_OUT_OF_MEMORY);  // and nobody is called for it
    if (!making.evicts) return 0;
    SPW_CHECK(spw_region_evict(device, "b", SPW_TIER_HOST) == SPW_OK);
    return 30 * kMiB;
  }
};

TEST(AbiOffload, ACallbackThatMakesRoomMayUseRegions) {
  in_child({{"SPILLWAY_CONF", "limit:40MiB"}}, [] {
    const auto driver = start_device();
    std::vector<void*> blocks;
    for (const char* tag : {"a", "c", "b"}) {
      blocks.push_back(filled_in(*driver, tag, 1, 30 * kMiB));
      if (*tag != 'b') SPW_CHECK(spw_region_evict(0, tag, SPW_TIER_HOST) == SPW_OK);
    }
    MakingRoom making;
    SPW_CHECK(spw_add_oom_callback(0, MakingRoom::call, &making) == SPW_OK);
    SPW_CHECK(spw_region_restore(0, "a") == SPW_OK && making.calls == 1);
    SPW_CHECK(spw_region_evict(0, "a", SPW_TIER_HOST) == SPW_OK);
    SPW_CHECK(spw_region_restore(0, "b") == SPW_OK);
    // On a prefetch's own thread, which others wait for.
    SPW_CHECK(spw_region_prefetch(0, "a") == SPW_OK && spw_region_restore(0, "a") == SPW_OK);
    SPW_CHECK(making.calls == 2 && is_filled(*driver, blocks.front(), 1, 30 * kMiB));
    SPW_CHECK(spw_region_evict(0, "a", SPW_TIER_HOST) == SPW_OK && spw_region_restore(0, "b") == SPW_OK);
    making.evicts = false;
    SPW_CHECK(spw_region_restore(0, "a") == SPW_ERROR_OUT_OF_MEMORY && making.calls == 3);
    SPW_CHECK(spw_remove_oom_callback(0, MakingRoom::call, &making) == SPW_OK);
    for (void* block : blocks) SPW_CHECK(spw_free(block) == SPW_OK);
  });
}

TEST(AbiOffload, StashesComeBackFromEachTier) {
  in_child({{"SPILLWAY_CONF", "spill_dir:/tmp,spill_ram_backed:on"}}, [] {
    const auto driver = start_device();
    spw_stream out = nullptr;
    spw_stream in = nullptr;
    SPW_CHECK(spw_stash_streams(0, &out, &in) == SPW_OK && out != in);
    for (const spw_tier tier : {SPW_TIER_HOST, SPW_TIER_DISK}) {
      void* from = nullptr;
      SPW_CHECK(spw_alloc(5 * kMiB + 100, 0, nullptr, &from) == SPW_OK);
      fill(*driver, from, 9, 5 * kMiB + 100);
      spw_stash* stash = nullptr;
      SPW_CHECK(spw_stash_put(0, from, 5 * kMiB + 100, nullptr, tier, &stash) == SPW_OK);
      SPW_CHECK(spw_record_stream(from, out) == SPW_OK && spw_free(from) == SPW_OK);
      void* to = nullptr;
      SPW_CHECK(spw_alloc(5 * kMiB + 100, 0, nullptr, &to) == SPW_OK);
      SPW_CHECK(spw_stash_finish_get(stash, nullptr, nullptr) == SPW_ERROR_INVALID_STATE);
      SPW_CHECK(spw_stash_begin_get(stash, to, nullptr) == SPW_OK);
      SPW_CHECK(spw_stash_begin_get(stash, to, nullptr) == SPW_ERROR_INVALID_STATE);
      int late = -1;
      SPW_CHECK(spw_stash_finish_get(stash, nullptr, &late) == SPW_OK && late >= 0);
      spw_stash_free(stash);
      SPW_CHECK(is_filled(*driver, to, 9, 5 * kMiB + 100));
      SPW_CHECK(spw_record_stream(to, in) == SPW_OK && spw_free(to) == SPW_OK);
    }
    SPW_CHECK(tier_stats().stash_puts == 2 && tier_stats().stash_gets == 2);
    SPW_CHECK(spw_trim(0) == SPW_OK);
  });
}

// Whoever asks first for a region whose prefetch failed hears why; what looks at it or cannot use it anyway
// takes nothing from that.
TEST(AbiOffload, APrefetchThatFailedIsSaidToWhoeverNeedsTheRegion) {
  in_child({{"SPILLWAY_CONF", "limit:40MiB"}}, [] {
    const auto driver = start_device();
    void* block = filled_in(*driver, "a", 5, 30 * kMiB);
    const auto begin = [] { return spw_region_begin(0, "a"); };
    const auto pin = [] { return spw_region_pin(0, "a"); };
    const auto restore = [] { return spw_region_restore(0, "a"); };
    SPW_CHECK(spw_region_evict(0, "a", SPW_TIER_HOST) == SPW_OK);
    void* other = nullptr;
    SPW_CHECK(spw_alloc(30 * kMiB, 0, nullptr, &other) == SPW_OK);
    for (const auto& use : std::vector<std::function<spw_status()>>{begin, pin, restore}) {
      SPW_CHECK(spw_region_prefetch(0, "a") == SPW_OK);
      SPW_CHECK(region_stats("a").host_bytes >= 30 * kMiB);
      SPW_CHECK(spw_region_evict(0, "a", SPW_TIER_HOST) == SPW_ERROR_INVALID_STATE);
      SPW_CHECK(use() == SPW_ERROR_OUT_OF_MEMORY);
      SPW_CHECK(begin() == SPW_ERROR_INVALID_STATE && last_error_has("restore it first"));
    }
    SPW_CHECK(spw_free(other) == SPW_OK);
    SPW_CHECK(spw_region_prefetch(0, "a") == SPW_OK);
    SPW_CHECK(region_stats("a").device_bytes >= 30 * kMiB);
    SPW_CHECK(restore() == SPW_OK && is_filled(*driver, block, 5, 30 * kMiB));
    SPW_CHECK(restore() == SPW_ERROR_INVALID_STATE && last_error_has("already"));
    SPW_CHECK(spw_free(block) == SPW_OK);
  });
}

TEST(AbiOffload, ARegionThatCameBackAheadOfNeedMayBeEvictedAgain) {
  in_child({{"SPILLWAY_CONF", "limit:64MiB"}}, [] {
    const auto driver = start_device();
    void* block = filled_in(*driver, "a", 5, 40 * kMiB);
    SPW_CHECK(spw_region_set_priority(0, "a", 1) == SPW_OK);
    SPW_CHECK(spw_region_evict(0, "a", SPW_TIER_HOST) == SPW_OK);
    SPW_CHECK(spw_region_prefetch(0, "a") == SPW_OK);
    void* other = nullptr;
    while (allocated_bytes() < static_cast<int64_t>(40 * kMiB)) std::this_thread::yield();
    // Until the last of its way back is done, nothing can take it away.
    while (spw_alloc(40 * kMiB, 0, nullptr, &other) != SPW_OK) std::this_thread::yield();
    SPW_CHECK(region_stats("a").evictions == 2 && region_stats("a").host_bytes >= 40 * kMiB);
    SPW_CHECK(spw_free(other) == SPW_OK && spw_free(block) == SPW_OK);
  });
}

TEST(AbiOffload, FreedStashesAreNotCounted) {
  in_child({}, [] {
    const auto driver = start_device();
    void* block = nullptr;
    SPW_CHECK(spw_alloc(kMiB, 0, nullptr, &block) == SPW_OK);
    spw_stash* stash = nullptr;
    SPW_CHECK(spw_stash_put(0, block, kMiB, nullptr, SPW_TIER_HOST, &stash) == SPW_OK);
    spw_stash_free(stash);
    SPW_CHECK(driver->cuCtxSynchronize() == CUDA_SUCCESS);
    SPW_CHECK(tier_stats().stashes == 0 && tier_stats().stash_host_bytes == 0);
    SPW_CHECK(spw_free(block) == SPW_OK);
  });
}

TEST(AbiOffload, ATrimUnpinsWhatNothingIsInAnyMore) {
  in_child({}, [] {
    const auto driver = start_device();
    void* kept = allocate_in("a", 20 * kMiB);
    SPW_CHECK(spw_region_evict(0, "a", SPW_TIER_HOST) == SPW_OK);
    SPW_CHECK(spw_pinned_trim() == SPW_OK);
    SPW_CHECK(pinned_bytes() >= static_cast<int64_t>(20 * kMiB));
    SPW_CHECK(spw_region_restore(0, "a") == SPW_OK);
    spw_stash* stash = nullptr;
    SPW_CHECK(spw_stash_put(0, kept, 5 * kMiB, nullptr, SPW_TIER_HOST, &stash) == SPW_OK);
    spw_stash_free(stash);
    SPW_CHECK(driver->cuCtxSynchronize() == CUDA_SUCCESS);
    SPW_CHECK(pinned_bytes() > 0);
    SPW_CHECK(spw_pinned_trim() == SPW_OK && pinned_bytes() == 0);
    SPW_CHECK(spw_free(kept) == SPW_OK);
  });
}

TEST(AbiOffload, ATrimUnpinsWhatTheDisksCopiesPassedThrough) {
  const Folder directory;
  in_child({{"SPILLWAY_CONF", "spill_dir:" + directory.path() + ",spill_ram_backed:on"}}, [] {
    const auto driver = start_device();
    void* kept = filled_in(*driver, "a", 1, 80 * kMiB);  // larger than all buffers together
    for (int round = 0; round < 3; ++round) {
      SPW_CHECK(spw_region_evict(0, "a", SPW_TIER_DISK) == SPW_OK);
      SPW_CHECK(pinned_bytes() == static_cast<int64_t>(64 * kMiB));
      if (round == 1) {
        const pid_t child = fork();
        // It has neither the device nor the thread of the disk's engine, and waits for neither.
        if (child == 0) _exit(spw_pinned_trim() == SPW_OK ? 0 : 1);
        int status = -1;
        SPW_CHECK(waitpid(child, &status, 0) == child && status == 0);
      }
      if (round != 0) SPW_CHECK(spw_pinned_trim() == SPW_OK && pinned_bytes() == 0);
      SPW_CHECK(spw_region_restore(0, "a") == SPW_OK);
      SPW_CHECK(is_filled(*driver, kept, 1, 80 * kMiB));
    }
    SPW_CHECK(spw_pinned_trim() == SPW_OK && pinned_bytes() == 0);
    SPW_CHECK(spw_free(kept) == SPW_OK);
  });
}

TEST(AbiOffload, HostMemoryIsPinnedAheadWhenRegionsAreUsed) {
  in_child({{"SPILLWAY_CONF", "pinned_ahead:64MiB"}}, [] {
    const auto driver = start_device();
    void* block = nullptr;
    SPW_CHECK(spw_alloc(8 * kMiB, 0, nullptr, &block) == SPW_OK);
    SPW_CHECK(pinned_bytes() == 0);  // nothing is spilled yet, and nothing may be
    void* kept = allocate_in("a", 8 * kMiB);
    while (pinned_bytes() < static_cast<int64_t>(64 * kMiB)) std::this_thread::yield();
    SPW_CHECK(spw_region_evict(0, "a", SPW_TIER_HOST) == SPW_OK);
    SPW_CHECK(pinned_bytes() == static_cast<int64_t>(64 * kMiB));
    SPW_CHECK(spw_conf_set("pinned_ahead:512MiB") == SPW_OK);  // the end of the program stops it
    SPW_CHECK(spw_free(block) == SPW_OK && spw_free(kept) == SPW_OK);
    const pid_t child = fork();
    if (child == 0) std::exit(0);  // with no thread to wait for
    int status = -1;
    SPW_CHECK(waitpid(child, &status, 0) == child && status == 0);
  });
}

TEST(AbiOffload, AnIdlePhaseEvictsDownToTheLowWatermark) {
  in_child({{"SPILLWAY_CONF", "evict_above:100MiB,evict_below:50MiB"}}, [] {
    const auto driver = start_device();
    void* first = filled_in(*driver, "optimizer", 1, 40 * kMiB);
    void* second = allocate_in("cache", 40 * kMiB);
    void* kept = allocate_in("weights", 30 * kMiB);
    SPW_CHECK(spw_region_set_priority(0, "optimizer", 2) == SPW_OK);
    SPW_CHECK(spw_region_set_priority(0, "cache", 1) == SPW_OK);
    uint64_t given = 1;
    SPW_CHECK(spw_phase(0, "busy", &given) == SPW_OK && given == 0 &&
              allocated_bytes() == static_cast<int64_t>(110 * kMiB));
    SPW_CHECK(spw_phase(0, "idle", &given) == SPW_OK && given == 80 * kMiB);
    SPW_CHECK(region_stats("optimizer").host_bytes == 40 * kMiB &&
              region_stats("cache").host_bytes == 40 * kMiB);
    SPW_CHECK(region_stats("weights").device_bytes == 30 * kMiB);  // nothing was promised of it
    SPW_CHECK(spw_region_restore(0, "optimizer") == SPW_OK);
    SPW_CHECK(spw_phase(0, "idle", nullptr) == SPW_OK);  // 70 MiB are below the high one
    SPW_CHECK(region_stats("optimizer").device_bytes == 40 * kMiB);
    SPW_CHECK(is_filled(*driver, first, 1, 40 * kMiB));
    // The highest priority goes first, and no more than need be.
    SPW_CHECK(spw_region_restore(0, "cache") == SPW_OK);
    SPW_CHECK(spw_conf_set("evict_below:75MiB") == SPW_OK);
    SPW_CHECK(spw_phase(0, "idle", &given) == SPW_OK && given == 40 * kMiB);
    SPW_CHECK(region_stats("optimizer").host_bytes == 40 * kMiB && region_stats("cache").host_bytes == 0);
    SPW_CHECK(spw_phase(0, "lunch", &given) == SPW_ERROR_INVALID_ARGUMENT && last_error_has("idle or busy"));
    for (void* block : {first, second, kept}) SPW_CHECK(spw_free(block) == SPW_OK);
  });
}

TEST(AbiOffload, ABusyPhaseTakesBackWhatTheIdleOneGave) {
  in_child({{"SPILLWAY_CONF", "evict_above:50MiB"}}, [] {
    const auto driver = start_device();
    void* block = nullptr;
    SPW_CHECK(spw_alloc(80 * kMiB, 0, nullptr, &block) == SPW_OK && spw_free(block) == SPW_OK);
    uint64_t given = 0;
    SPW_CHECK(spw_phase(0, "idle", &given) == SPW_OK && given == 80 * kMiB);
    SPW_CHECK(spw_phase(0, "busy", &given) == SPW_OK && given == 0);
    const auto creates = [] {
      spw_stats stats = {};
      stats.size = sizeof stats;
      SPW_CHECK(spw_stats_get(0, &stats) == SPW_OK);
      return stats.driver_calls.create;
    };
    const auto before = creates();
    SPW_CHECK(spw_alloc(80 * kMiB, 0, nullptr, &block) == SPW_OK);
    SPW_CHECK(creates() == before && spw_free(block) == SPW_OK);
    SPW_CHECK(spw_phase(7, "busy", nullptr) == SPW_OK);  // nothing is there
  });
}

TEST(AbiOffload, AProgramThatDoesNothingCountsAsIdle) {
  in_child({{"SPILLWAY_CONF", "evict_above:50MiB,idle_after:200ms"}}, [] {
    const auto driver = start_device();
    void* cold = filled_in(*driver, "optimizer", 1, 40 * kMiB);
    void* kept = allocate_in("weights", 30 * kMiB);
    const auto wait_until_it_left = [] {
      for (int i = 0; i < 6000 && region_stats("optimizer").host_bytes == 0; ++i) usleep(5000);
      SPW_CHECK(region_stats("optimizer").host_bytes == 40 * kMiB);
    };
    SPW_CHECK(spw_region_set_priority(0, "optimizer", 1) == SPW_OK);
    wait_until_it_left();
    SPW_CHECK(region_stats("weights").device_bytes == 30 * kMiB);  // nothing was promised of it
    // A region that the program uses begins another spell.
    SPW_CHECK(spw_region_restore(0, "optimizer") == SPW_OK);
    wait_until_it_left();
    SPW_CHECK(spw_region_restore(0, "optimizer") == SPW_OK && spw_region_pin(0, "optimizer") == SPW_OK);
    SPW_CHECK(is_filled(*driver, cold, 1, 40 * kMiB));
    usleep(600'000);
    SPW_CHECK(region_stats("optimizer").device_bytes == 40 * kMiB);
    const pid_t child = fork();
    if (child == 0) std::exit(0);  // with no thread to wait for
    int status = -1;
    SPW_CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (void* block : {cold, kept}) SPW_CHECK(spw_free(block) == SPW_OK);
  });
}

TEST(AbiOffload, AnIdlePhaseGivesBackWhatIsCached) {
  in_child({{"SPILLWAY_CONF", "evict_above:20MiB"}}, [] {
    const auto driver = start_device();
    void* block = nullptr;
    SPW_CHECK(spw_alloc(60 * kMiB, 0, nullptr, &block) == SPW_OK && spw_free(block) == SPW_OK);
    uint64_t given = 0;
    SPW_CHECK(spw_phase(0, "idle", &given) == SPW_OK && given == 60 * kMiB);
  });
}

TEST(AbiOffload, ARegionHasACodecOfItsOwn) {
  const Folder folder;
  const std::string disk = "spill_dir:" + folder.path() + ",spill_ram_backed:on,";
  in_child({{"SPILLWAY_CONF", disk + "spill_daily_writes:1GiB"}}, [] {
    const auto driver = start_device();
    void* block = filled_in(*driver, "a", 5, 20 * kMiB);
    for (const spw_codec codec : {SPW_CODEC_LZ4, SPW_CODEC_ZSTD, SPW_CODEC_NONE}) {
      const uint64_t saved = tier_stats().disk_saved_bytes;
      const uint64_t today = tier_stats().disk_today_bytes;
      SPW_CHECK(spw_region_set_codec(0, "a", codec) == SPW_OK);
      SPW_CHECK(spw_region_evict(0, "a", SPW_TIER_DISK) == SPW_OK);
      SPW_CHECK(spw_region_restore(0, "a") == SPW_OK && is_filled(*driver, block, 5, 20 * kMiB));
      SPW_CHECK((tier_stats().disk_saved_bytes > saved) == (codec != SPW_CODEC_NONE));
      SPW_CHECK(tier_stats().disk_today_bytes > today && tier_stats().disk_daily_limit_bytes == 1024 * kMiB);
    }
    SPW_CHECK(spw_region_set_codec(0, "b", SPW_CODEC_LZ4) == SPW_ERROR_INVALID_STATE);
    SPW_CHECK(spw_region_set_codec(0, "a", static_cast<spw_codec>(3)) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_free(block) == SPW_OK);
  });
}

// Adds up the files in `folder` that this process has open: the spill file has no name there.
uint64_t bytes_on_disk(const std::string& folder) {
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    struct stat found {};
    if (error || target.rfind(folder, 0) != 0 || ::stat(entry.path().c_str(), &found) != 0) continue;
    bytes = std::max(bytes, static_cast<uint64_t>(found.st_blocks) * 512);
  }
  return bytes;
}

TEST(AbiOffload, TheDiskHasItsRoomBackWhenMemoryIsTrimmedOrTheProgramIsIdle) {
  const Folder folder;
  in_child({{"SPILLWAY_CONF", "spill_ram_backed:on,spill_dir:" + folder.path()}}, [&] {
    const auto driver = start_device();
    void* block = filled_in(*driver, "a", 5, 20 * kMiB);
    for (const bool trims : {true, false}) {
      SPW_CHECK(spw_region_evict(0, "a", SPW_TIER_DISK) == SPW_OK);
      SPW_CHECK(bytes_on_disk(folder.path()) >= 20 * kMiB);
      SPW_CHECK(spw_region_restore(0, "a") == SPW_OK && is_filled(*driver, block, 5, 20 * kMiB));
      SPW_CHECK((trims ? spw_trim(0) : spw_phase(0, "idle", nullptr)) == SPW_OK);
      SPW_CHECK(bytes_on_disk(folder.path()) < kMiB);
    }
    SPW_CHECK(spw_free(block) == SPW_OK);
  });
}

TEST(AbiOffload, WhatIsWrongWithADirectoryIsSaidOnce) {
  if (::access("/dev/shm", W_OK) != 0)
    GTEST_SKIP() << "this machine has no file system in memory at /dev/shm";
  const Folder folder;
  const std::string said = folder.file("said");
  in_child({{"SPILLWAY_CONF", "spill_ram_backed:on,spill_dir:/dev/shm"}}, [&] {
    SPW_CHECK(std::freopen(said.c_str(), "w", stderr) != nullptr);
    const auto driver = start_device();
    void* block = filled_in(*driver, "a", 5, 4 * kMiB);
    for (int i = 0; i < 2; ++i) {
      SPW_CHECK(spw_region_evict(0, "a", SPW_TIER_DISK) == SPW_OK);
      SPW_CHECK(spw_region_restore(0, "a") == SPW_OK);
    }
    SPW_CHECK(spw_free(block) == SPW_OK);
  });
  const std::string text = folder.read("said");
  EXPECT_EQ(text.rfind("spillway: the spill directory /dev/shm is on tmpfs", 0), 0U) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

TEST(AbiOffload, WhatServesADiskBestIsKeptAndUsed) {
  const Folder folder;
  const auto speed_of = [](const std::string& directory, int tune) {
    spw_disk_speed speed{};
    speed.size = sizeof speed;
    SPW_CHECK(spw_disk_measure(directory.c_str(), 4 * kMiB, tune, &speed) == SPW_OK);
    return speed;
  };
  const std::string file = "spillway/disks.json";
  // As if found, with values that no search would find.
  const Environment environment{{"XDG_CACHE_HOME", folder.path()}};
  in_child(environment, [&] {
    (void)speed_of(folder.path(), 1);
    std::string text = folder.read(file);
    const size_t at = text.find("\"depth\":");
    SPW_CHECK(at != std::string::npos);
    text.replace(at, text.find(',', at) - at, "\"depth\": 7");
    folder.write(file, text);
    SPW_CHECK(speed_of(folder.path(), 0).depth == 7);
  });
  in_child({{"XDG_CACHE_HOME", folder.path()}, {"SPILLWAY_CONF", "spill_tuning:off"}},
           [&] { SPW_CHECK(speed_of(folder.path(), 0).depth == 32); });
  in_child({{"XDG_CACHE_HOME", folder.path()}, {"SPILLWAY_CONF", "spill_depth:5"}},
           [&] { SPW_CHECK(speed_of(folder.path(), 0).depth == 5); });  // what the user says counts
}

TEST(AbiOffload, MistakesAreErrors) {
  in_child({}, [] {
    const auto driver = start_device();
    SPW_CHECK(spw_region_begin(0, nullptr) == SPW_ERROR_INVALID_ARGUMENT && last_error_has("tag is NULL"));
    SPW_CHECK(spw_region_begin(0, "two words") == SPW_ERROR_INVALID_ARGUMENT && last_error_has("letters"));
    SPW_CHECK(spw_region_begin(7, "a") == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_region_evict(0, "none", SPW_TIER_HOST) == SPW_ERROR_INVALID_STATE &&
              last_error_has("has no region"));
    void* block = allocate_in("a", 4 * kMiB);
    SPW_CHECK(spw_region_evict(0, "a", SPW_TIER_DEVICE) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_region_evict(0, "a", SPW_TIER_DISK) == SPW_ERROR_UNSUPPORTED &&
              last_error_has("spill_dir"));
    SPW_CHECK(spw_region_restore(0, "a") == SPW_ERROR_INVALID_STATE && last_error_has("already"));
    SPW_CHECK(spw_region_unpin(0, "a") == SPW_ERROR_INVALID_STATE);
    SPW_CHECK(spw_region_set_priority(0, "a", -1) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_region_evict(0, "a", SPW_TIER_HOST) == SPW_OK);
    SPW_CHECK(spw_region_evict(0, "a", SPW_TIER_HOST) == SPW_ERROR_INVALID_STATE);
    SPW_CHECK(spw_region_begin(0, "a") == SPW_ERROR_INVALID_STATE && last_error_has("restore it first"));
    SPW_CHECK(spw_region_release(0, "a") == SPW_OK);
    SPW_CHECK(spw_region_restore(0, "a") == SPW_ERROR_INVALID_STATE);
    SPW_CHECK(spw_free(block) == SPW_OK);
    spw_stash* stash = nullptr;
    SPW_CHECK(spw_stash_put(0, nullptr, 1, nullptr, SPW_TIER_HOST, &stash) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_stash_put(0, &block, 1, nullptr, SPW_TIER_DISK, &stash) == SPW_ERROR_UNSUPPORTED);
    SPW_CHECK(spw_stash_put(0, &block, 1, nullptr, SPW_TIER_NOWHERE, &stash) == SPW_ERROR_INVALID_ARGUMENT);
    spw_stash_free(nullptr);
    spw_region_stats none{};
    SPW_CHECK(spw_region_stats_get(0, "b", &none) == SPW_ERROR_INVALID_ARGUMENT &&
              last_error_has("size is 0"));
    SPW_CHECK(spw_region_walk(0, nullptr, nullptr) == SPW_ERROR_INVALID_ARGUMENT);
  });
}

TEST(AbiOffload, BlocksOfARegionAreNotShownToOtherProcesses) {
  in_child({}, [] {
    const auto driver = start_device();
    void* block = allocate_in("a", 4 * kMiB);
    spw_ipc_handle handle{};
    uint64_t offset = 0;
    SPW_CHECK(spw_ipc_get_handle(block, &handle, &offset) == SPW_ERROR_UNSUPPORTED &&
              last_error_has("of a region, which may move"));
    SPW_CHECK(spw_region_evict(0, "a", SPW_TIER_HOST) == SPW_OK && spw_region_restore(0, "a") == SPW_OK);
    SPW_CHECK(spw_free(block) == SPW_OK && spw_validate(0) == SPW_OK);
  });
}

TEST(AbiOffload, ADirectoryThatDoesNotServeIsNamed) {
  in_child({{"SPILLWAY_CONF", "spill_dir:/nowhere/at/all"}}, [] {
    const auto driver = start_device();
    void* block = allocate_in("a", 4 * kMiB);
    SPW_CHECK(spw_region_evict(0, "a", SPW_TIER_DISK) == SPW_ERROR_IO && last_error_has("/nowhere/at/all"));
    SPW_CHECK(allocated_bytes() == static_cast<int64_t>(4 * kMiB));
    SPW_CHECK(spw_free(block) == SPW_OK);
  });
}

}  // namespace
}  // namespace spillway::test
