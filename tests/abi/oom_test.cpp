// The end of the ladder at the C ABI: callbacks, and the report of who holds what.
#include <thread>
#include <utility>
#include <vector>

#include "include/spillway/spillway.h"
#include "tests/support/child.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

struct Cache {
  std::vector<void*> blocks;
  int calls = 0;
  int device = -1;
  uint64_t bytes = 0;
};

uint64_t free_one(int device, uint64_t bytes, void* context) {
  auto& cache = *static_cast<Cache*>(context);
  ++cache.calls;
  cache.device = device;
  cache.bytes = bytes;
  void* nested = nullptr;
  SPW_CHECK(spw_alloc(60 * kMiB, device, nullptr, &nested) == SPW_ERROR_OUT_OF_MEMORY);
  if (cache.blocks.empty()) return 0;
  SPW_CHECK(spw_free(cache.blocks.back()) == SPW_OK);
  cache.blocks.pop_back();
  SPW_CHECK(spw_trim(device) == SPW_OK);
  return 8 * kMiB;
}

uint64_t remove_itself(int device, uint64_t, void* context) {
  ++static_cast<Cache*>(context)->calls;
  SPW_CHECK(spw_remove_oom_callback(device, remove_itself, context) == SPW_OK);
  return 0;
}

TEST(OomCallback, GivesUntilTheRequestIsServed) {
  in_child({{"SPILLWAY_CONF", "limit:64MiB"}}, [] {
    const auto driver = start_device();
    Cache cache;
    for (int i = 0; i < 7; ++i) {
      cache.blocks.push_back(nullptr);
      SPW_CHECK(spw_alloc(8 * kMiB, 0, nullptr, &cache.blocks.back()) == SPW_OK);
    }
    SPW_CHECK(spw_add_oom_callback(0, free_one, &cache) == SPW_OK);
    void* block = nullptr;
    SPW_CHECK(spw_alloc(24 * kMiB, 0, nullptr, &block) == SPW_OK);
    SPW_CHECK(cache.calls == 2 && cache.device == 0 && cache.bytes == 8 * kMiB);
    spw_stats stats = stats_of(0);
    SPW_CHECK(stats.rungs.callback.hits == 2 && stats.rungs.callback.time_ns > 0);
    SPW_CHECK(stats.num_ooms == 2);  // those inside
    SPW_CHECK(spw_validate(0) == SPW_OK);

    SPW_CHECK(spw_remove_oom_callback(0, free_one, &cache) == SPW_OK);
    void* other = nullptr;
    SPW_CHECK(spw_alloc(24 * kMiB, 0, nullptr, &other) == SPW_ERROR_OUT_OF_MEMORY);
    SPW_CHECK(cache.calls == 2);
    SPW_CHECK(last_error_has("callback 2 ("));
    SPW_CHECK(spw_validate(0) == SPW_OK);
  });
}

TEST(OomCallback, MistakesAreErrorsAndOneMayRemoveItself) {
  in_child({{"SPILLWAY_CONF", "limit:64MiB"}}, [] {
    Cache cache;
    SPW_CHECK(spw_add_oom_callback(0, free_one, &cache) == SPW_ERROR_INVALID_STATE);  // no context yet
    const auto driver = start_device();
    SPW_CHECK(spw_add_oom_callback(0, nullptr, &cache) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_add_oom_callback(5, free_one, &cache) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_remove_oom_callback(0, free_one, &cache) == SPW_ERROR_INVALID_STATE);
    SPW_CHECK(spw_add_oom_callback(0, remove_itself, &cache) == SPW_OK);
    SPW_CHECK(spw_add_oom_callback(0, remove_itself, &cache) == SPW_ERROR_INVALID_STATE);
    SPW_CHECK(spw_add_oom_callback(0, remove_itself, nullptr) == SPW_OK);
    SPW_CHECK(spw_remove_oom_callback(0, remove_itself, nullptr) == SPW_OK);
    void* block = nullptr;
    for (int i = 0; i < 2; ++i) {
      SPW_CHECK(spw_alloc(80 * kMiB, 0, nullptr, &block) == SPW_ERROR_OUT_OF_MEMORY);
      SPW_CHECK(cache.calls == 1);
    }
    SPW_CHECK(spw_remove_oom_callback(0, remove_itself, &cache) == SPW_ERROR_INVALID_STATE);
  });
}

}  // namespace
}  // namespace spillway::test
