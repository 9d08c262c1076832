// The C ABI of pinned memory: what each function does, and that mistakes cost an error and nothing else.
#include "include/spillway/pinned.h"

#include <cstring>
#include <string>

#include "tests/support/child.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

spw_pinned_stats pinned_stats() {
  spw_pinned_stats stats{};
  stats.size = sizeof stats;
  SPW_CHECK(spw_pinned_stats_get(&stats) == SPW_OK);
  return stats;
}

TEST(AbiPinned, AllocatesCountsAndFrees) {
  in_child({}, [] {
    const auto driver = start_device();
    SPW_CHECK(pinned_stats().version == SPW_PINNED_STATS_VERSION && pinned_stats().blocks.current == 0);
    SPW_CHECK(spw_pinned_trim() == SPW_OK);
    void* block = nullptr;
    SPW_CHECK(spw_pinned_alloc(kMiB + 1, 0, &block) == SPW_OK && block != nullptr);
    std::memset(block, 1, kMiB + 1);
    SPW_CHECK(spw_pinned_record_stream(block, 0, nullptr) == SPW_OK);
    const spw_pinned_stats stats = pinned_stats();
    SPW_CHECK(stats.requested_bytes.current == kMiB + 1 && stats.active_bytes.current == kMiB + 512);
    SPW_CHECK(stats.reserved_bytes.current == 2 * kMiB && stats.chunks.current == 1);
    SPW_CHECK(spw_pinned_free(block) == SPW_OK);
    SPW_CHECK(driver->cuCtxSynchronize() == CUDA_SUCCESS);
    SPW_CHECK(spw_pinned_trim() == SPW_OK);
    SPW_CHECK(pinned_stats().reserved_bytes.current == 0 && pinned_stats().blocks.peak == 1);
    SPW_CHECK(spw_pinned_stats_reset_peaks() == SPW_OK && pinned_stats().blocks.peak == 0);
    SPW_CHECK(spw_pinned_stats_reset_accumulated() == SPW_OK && pinned_stats().blocks.allocated == 0);
  });
}

TEST(AbiPinned, MistakesAreErrors) {
  in_child({}, [] {
    SPW_CHECK(spw_pinned_alloc(1, 0, nullptr) == SPW_ERROR_INVALID_ARGUMENT && last_error_has("out is NULL"));
    SPW_CHECK(spw_pinned_free(nullptr) == SPW_OK);
    int other = 0;
    SPW_CHECK(spw_pinned_free(&other) == SPW_ERROR_INVALID_POINTER && last_error_has("no pinned block"));
    const auto driver = start_device();
    void* block = &block;
    SPW_CHECK(spw_pinned_alloc(0, 0, &block) == SPW_OK && block == nullptr);
    SPW_CHECK(spw_pinned_free(nullptr) == SPW_OK);
    SPW_CHECK(spw_pinned_alloc(1, 5, &block) == SPW_ERROR_INVALID_ARGUMENT && block == nullptr);
    SPW_CHECK(spw_pinned_alloc(SIZE_MAX, 0, &block) == SPW_ERROR_OUT_OF_MEMORY);
    SPW_CHECK(spw_pinned_free(&block) == SPW_ERROR_INVALID_POINTER);
    SPW_CHECK(spw_pinned_record_stream(&block, 0, nullptr) == SPW_ERROR_INVALID_POINTER);
    SPW_CHECK(spw_pinned_stats_get(nullptr) == SPW_ERROR_INVALID_ARGUMENT);
    spw_pinned_stats none{};
    SPW_CHECK(spw_pinned_stats_get(&none) == SPW_ERROR_INVALID_ARGUMENT &&
              last_error_has("stats->size is 0"));
  });
}

TEST(AbiPinned, TheLimitIsAnOptionThatCanChange) {
  in_child({{"SPILLWAY_CONF", "pinned_limit:4MiB"}}, [] {
    const auto driver = start_device();
    void* block = nullptr;
    SPW_CHECK(spw_pinned_alloc(5 * kMiB, 0, &block) == SPW_ERROR_OUT_OF_MEMORY &&
              last_error_has("the limit"));
    SPW_CHECK(pinned_stats().limit_bytes == 4 * kMiB);
    SPW_CHECK(spw_conf_set("pinned_limit:8MiB") == SPW_OK);
    SPW_CHECK(spw_pinned_alloc(5 * kMiB, 0, &block) == SPW_OK);
    SPW_CHECK(spw_pinned_free(block) == SPW_OK);
  });
}

}  // namespace
}  // namespace spillway::test
