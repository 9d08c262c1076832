// The C ABI on a device: what each function does, and that mistakes cost an error and nothing else.
#include "include/spillway/spillway.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/child.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

constexpr int kNoSuchDevice = 5;

void* at_address(uintptr_t address) {
  void* pointer = nullptr;
  std::memcpy(&pointer, &address, sizeof pointer);
  return pointer;
}

TEST(Abi, AllocatesCountsAndFrees) {
  in_child({}, [] {
    const auto driver = start_device();
    std::vector<void*> blocks;
    uint64_t requested = 0;
    for (const size_t bytes : {size_t{1}, size_t{511}, size_t{512}, size_t{70000}, kMiB, 30 * kMiB + 1}) {
      void* block = nullptr;
      SPW_CHECK(spw_alloc(bytes, 0, nullptr, &block) == SPW_OK);
      SPW_CHECK(block != nullptr && reinterpret_cast<uintptr_t>(block) % 512 == 0);
      blocks.push_back(block);
      requested += bytes;
    }
    spw_stats stats = stats_of(0);
    SPW_CHECK(stats.version == SPW_STATS_VERSION && stats.size == sizeof(spw_stats));
    SPW_CHECK(stats.requested_bytes.all.current == static_cast<int64_t>(requested));
    SPW_CHECK(stats.allocation.all.current == static_cast<int64_t>(blocks.size()));
    SPW_CHECK(spw_validate(0) == SPW_OK);
    for (void* block : blocks) SPW_CHECK(spw_free(block) == SPW_OK);
    SPW_CHECK(spw_validate(0) == SPW_OK);
    SPW_CHECK(stats_of(0).allocated_bytes.all.current == 0);
    SPW_CHECK(spw_trim(0) == SPW_OK);
    stats = stats_of(0);
    SPW_CHECK(stats.reserved_bytes.all.current == 0 && stats.reserved_bytes.all.peak > 0);
    SPW_CHECK(spw_stats_reset_peaks(0) == SPW_OK && stats_of(0).reserved_bytes.all.peak == 0);
    SPW_CHECK(spw_stats_reset_accumulated(0) == SPW_OK && stats_of(0).allocation.all.allocated == 0);
  });
}

TEST(Abi, SizeZeroIsNullAndNullCanBeFreed) {
  in_child({}, [] {
    const auto driver = start_device();
    void* block = &block;
    SPW_CHECK(spw_alloc(0, 0, nullptr, &block) == SPW_OK && block == nullptr);
    SPW_CHECK(spw_free(nullptr) == SPW_OK);
    SPW_CHECK(spw_record_stream(nullptr, nullptr) == SPW_OK);
  });
}

TEST(Abi, MistakesAreErrorsAndChangeNothing) {
  in_child({}, [] {
    const auto driver = start_device();
    void* block = nullptr;
    SPW_CHECK(spw_alloc(kMiB, 0, nullptr, &block) == SPW_OK);
    void* small = nullptr;
    SPW_CHECK(spw_alloc(700, 0, nullptr, &small) == SPW_OK);
    spw_stats before = stats_of(0);

    SPW_CHECK(spw_alloc(kMiB, 0, nullptr, nullptr) == SPW_ERROR_INVALID_ARGUMENT && last_error_has("out"));
    for (const int device : {-1, kNoSuchDevice, 64, INT32_MAX, INT32_MIN}) {
      void* out = &out;
      SPW_CHECK(spw_alloc(kMiB, device, nullptr, &out) == SPW_ERROR_INVALID_ARGUMENT && out == nullptr);
      SPW_CHECK(last_error_has(std::to_string(device).c_str()));
      uint64_t bytes = 0;
      spw_stats stats;
      stats.size = sizeof stats;
      SPW_CHECK(spw_trim(device) == SPW_ERROR_INVALID_ARGUMENT);
      SPW_CHECK(spw_stream_destroyed(device, nullptr) == SPW_ERROR_INVALID_ARGUMENT);
      SPW_CHECK(spw_enable_peer(device, 0) == SPW_ERROR_INVALID_ARGUMENT);
      SPW_CHECK(spw_alloc_shareable(kMiB, device, nullptr, &out) == SPW_ERROR_INVALID_ARGUMENT &&
                out == nullptr);
      SPW_CHECK(spw_set_limit(device, 1) == SPW_ERROR_INVALID_ARGUMENT);
      SPW_CHECK(spw_get_limit(device, &bytes) == SPW_ERROR_INVALID_ARGUMENT);
      SPW_CHECK(spw_memory_info(device, &bytes, &bytes) == SPW_ERROR_INVALID_ARGUMENT);
      SPW_CHECK(spw_pool_begin(device, {1, 0}, nullptr, nullptr) == SPW_ERROR_INVALID_ARGUMENT);
      SPW_CHECK(spw_pool_end(device, {1, 0}) == SPW_ERROR_INVALID_ARGUMENT);
      SPW_CHECK(spw_pool_release(device, {1, 0}) == SPW_ERROR_INVALID_ARGUMENT);
      SPW_CHECK(spw_stats_get(device, &stats) == SPW_ERROR_INVALID_ARGUMENT);
      SPW_CHECK(spw_stats_reset_peaks(device) == SPW_ERROR_INVALID_ARGUMENT);
      SPW_CHECK(spw_stats_reset_accumulated(device) == SPW_ERROR_INVALID_ARGUMENT);
      SPW_CHECK(spw_validate(device) == SPW_ERROR_INVALID_ARGUMENT);
    }
    SPW_CHECK(spw_get_limit(0, nullptr) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_stats_get(0, nullptr) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_dump(nullptr, nullptr) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_dump("", nullptr) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_conf_set(nullptr) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_conf_get("limit", nullptr, 5, nullptr) == SPW_ERROR_INVALID_ARGUMENT);
    for (void* foreign : {at_address(0x1000), static_cast<void*>(&before),
                          static_cast<void*>(static_cast<char*>(block) + 512),
                          static_cast<void*>(static_cast<char*>(small) + 1), at_address(~uintptr_t{0})}) {
      SPW_CHECK(spw_free(foreign) == SPW_ERROR_INVALID_POINTER);
      SPW_CHECK(spw_record_stream(foreign, nullptr) == SPW_ERROR_INVALID_POINTER);
    }

    spw_stats after = stats_of(0);
    SPW_CHECK(std::memcmp(&before.allocation, &after.allocation, sizeof before.allocation) == 0);
    SPW_CHECK(std::memcmp(&before.reserved_bytes, &after.reserved_bytes, sizeof before.reserved_bytes) == 0);
    SPW_CHECK(spw_free(block) == SPW_OK && spw_free(block) == SPW_ERROR_INVALID_POINTER);
    SPW_CHECK(spw_free(small) == SPW_OK && spw_free(small) == SPW_ERROR_INVALID_POINTER);
    SPW_CHECK(spw_validate(0) == SPW_OK);
  });
}

TEST(Abi, MemoryOfAnAnnouncedStreamServesTheNext) {
  in_child({}, [] {
    const auto driver = start_device();
    SPW_CHECK(spw_stream_destroyed(0, nullptr) == SPW_OK);
    for (int round = 0; round < 3; ++round) {
      CUstream stream = nullptr;
      SPW_CHECK(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
      void* block = nullptr;
      SPW_CHECK(spw_alloc(20 * kMiB, 0, stream, &block) == SPW_OK);
      SPW_CHECK(spw_free(block) == SPW_OK);
      SPW_CHECK(spw_stream_destroyed(0, stream) == SPW_OK);
      SPW_CHECK(driver->cuStreamSynchronize(stream) == CUDA_SUCCESS);
      SPW_CHECK(driver->cuStreamDestroy(stream) == CUDA_SUCCESS);
    }
    SPW_CHECK(stats_of(0).reserved_bytes.all.peak == static_cast<int64_t>(20 * kMiB));
    SPW_CHECK(spw_validate(0) == SPW_OK);
  });
}

TEST(Abi, AbsurdSizesAreOutOfMemory) {
  in_child({}, [] {
    const auto driver = start_device();
    for (int shift = 38; shift < 64; ++shift) {
      for (const size_t less : {size_t{0}, size_t{1}}) {
        void* block = &block;
        SPW_CHECK(spw_alloc((size_t{1} << shift) - less, 0, nullptr, &block) == SPW_ERROR_OUT_OF_MEMORY);
        SPW_CHECK(block == nullptr && last_error_has("CUDA out of memory. Tried to allocate"));
      }
    }
    void* block = nullptr;
    SPW_CHECK(spw_alloc(SIZE_MAX, 0, nullptr, &block) == SPW_ERROR_OUT_OF_MEMORY && block == nullptr);
    SPW_CHECK(spw_validate(0) == SPW_OK);
    SPW_CHECK(spw_alloc(kMiB, 0, nullptr, &block) == SPW_OK);
  });
}

TEST(Abi, LimitRefusesWithAReportAndCanBeLifted) {
  in_child({}, [] {
    const auto driver = start_device();
    uint64_t limit = 0;
    SPW_CHECK(spw_set_limit(0, 8 * kMiB) == SPW_OK && spw_get_limit(0, &limit) == SPW_OK &&
              limit == 8 * kMiB);
    void* block = nullptr;
    SPW_CHECK(spw_alloc(16 * kMiB, 0, nullptr, &block) == SPW_ERROR_OUT_OF_MEMORY && block == nullptr);
    SPW_CHECK(std::strncmp(spw_last_error(), "CUDA out of memory. Tried to allocate", 37) == 0);
    SPW_CHECK(stats_of(0).num_ooms == 1);
    uint64_t free_bytes = 0;
    uint64_t total_bytes = 0;
    SPW_CHECK(spw_memory_info(0, &free_bytes, &total_bytes) == SPW_OK);
    SPW_CHECK(free_bytes == 8 * kMiB && total_bytes > free_bytes);
    SPW_CHECK(spw_memory_info(0, nullptr, nullptr) == SPW_OK);
    SPW_CHECK(spw_set_limit(0, UINT64_MAX) == SPW_OK);
    SPW_CHECK(spw_alloc(16 * kMiB, 0, nullptr, &block) == SPW_OK);
    SPW_CHECK(spw_free(block) == SPW_OK);
  });
}

TEST(Abi, WithoutAContextItSaysSoAndWorksLater) {
  in_child({}, [] {
    void* block = nullptr;
    SPW_CHECK(spw_alloc(kMiB, 0, nullptr, &block) == SPW_ERROR_INVALID_STATE && last_error_has("context"));
    SPW_CHECK(spw_alloc(kMiB, 0, nullptr, &block) == SPW_ERROR_INVALID_STATE);
    const auto driver = start_device();
    SPW_CHECK(spw_alloc(kMiB, 0, nullptr, &block) == SPW_OK);
  });
}

TEST(Abi, WithoutADriverOnlyMemoryIsMissing) {
  in_child({{"SPILLWAY_LIBCUDA", "/nowhere/libcuda.so.1"}}, [] {
    void* block = nullptr;
    SPW_CHECK(spw_alloc(kMiB, 0, nullptr, &block) == SPW_ERROR_UNSUPPORTED);
    SPW_CHECK(last_error_has("/nowhere/libcuda.so.1"));
    spw_stats stats;
    stats.size = sizeof stats;
    SPW_CHECK(spw_stats_get(0, &stats) == SPW_ERROR_UNSUPPORTED);
    SPW_CHECK(spw_conf_set("limit:1GiB") == SPW_OK);
    SPW_CHECK(spw_free(nullptr) == SPW_OK);
    SPW_CHECK(std::strlen(spw_version()) > 0);
  });
}

TEST(Abi, StatsFillNoMoreThanTheCallerHas) {
  in_child({}, [] {
    const auto driver = start_device();
    void* block = nullptr;
    SPW_CHECK(spw_alloc(kMiB, 0, nullptr, &block) == SPW_OK);
    struct {
      spw_stats stats;
      unsigned char beyond[64];
    } caller;

    // Built against a header that ended early: after active_bytes.
    constexpr uint32_t kOld = offsetof(spw_stats, requested_bytes);
    std::memset(&caller, 0xaa, sizeof caller);
    caller.stats.size = kOld;
    SPW_CHECK(spw_stats_get(0, &caller.stats) == SPW_OK && caller.stats.size == kOld);
    SPW_CHECK(caller.stats.active_bytes.all.current == static_cast<int64_t>(kMiB));
    const auto* bytes = reinterpret_cast<const unsigned char*>(&caller);
    for (size_t i = kOld; i < sizeof caller; ++i) SPW_CHECK(bytes[i] == 0xaa);

    // Built against a newer header.
    std::memset(&caller, 0xaa, sizeof caller);
    caller.stats.size = sizeof caller;
    SPW_CHECK(spw_stats_get(0, &caller.stats) == SPW_OK && caller.stats.size == sizeof(spw_stats));
    for (const unsigned char byte : caller.beyond) SPW_CHECK(byte == 0xaa);

    for (const uint32_t size : {0U, 4U, 7U}) {
      caller.stats.size = size;
      SPW_CHECK(spw_stats_get(0, &caller.stats) == SPW_ERROR_INVALID_ARGUMENT && last_error_has("size"));
    }
  });
}

TEST(Abi, ADeviceThatWasNotUsedHasEmptyCounters) {
  in_child({{"SPILLWAY_SIM", "devices:2"}}, [] {
    const auto driver = start_device();
    void* block = nullptr;
    SPW_CHECK(spw_alloc(kMiB, 0, nullptr, &block) == SPW_OK);
    if (driver->find("spwSimConfigure") == nullptr)
      return;  // how many devices a real machine has is its own affair
    const spw_stats stats = stats_of(1);
    SPW_CHECK(stats.reserved_bytes.all.current == 0 && stats.max_split_size == -1);
    SPW_CHECK(spw_trim(1) == SPW_OK && spw_validate(1) == SPW_OK && spw_stats_reset_peaks(1) == SPW_OK);
  });
}

TEST(Abi, AFreeFindsItsDevice) {
  in_child({{"SPILLWAY_SIM", "devices:2"}}, [] {
    const auto driver = start_device();
    if (driver->find("spwSimConfigure") == nullptr) return;
    start_device(2);
    void* first = nullptr;
    void* second = nullptr;
    SPW_CHECK(spw_alloc(kMiB, 0, nullptr, &first) == SPW_OK &&
              spw_alloc(kMiB, 1, nullptr, &second) == SPW_OK);
    SPW_CHECK(stats_of(1).allocation.all.current == 1);
    SPW_CHECK(spw_free(second) == SPW_OK);
    SPW_CHECK(stats_of(1).allocation.all.current == 0 && stats_of(0).allocation.all.current == 1);
    SPW_CHECK(spw_free(first) == SPW_OK);
    SPW_CHECK(spw_validate(0) == SPW_OK && spw_validate(1) == SPW_OK);
  });
}

TEST(Abi, AnnotationsAreKeptUnderTheirNames) {
  in_child({}, [] {
    const auto driver = start_device();
    uint64_t bytes = 1;
    SPW_CHECK(spw_annotation(0, "parameter_bytes", &bytes) == SPW_OK && bytes == 0);
    SPW_CHECK(spw_annotate(0, "parameter_bytes", 5 * kMiB) == SPW_OK);
    SPW_CHECK(spw_annotate(0, "parameter_bytes", 6 * kMiB) == SPW_OK);
    SPW_CHECK(spw_annotation(0, "parameter_bytes", &bytes) == SPW_OK && bytes == 6 * kMiB);

    const std::string longest(64, 'a');
    SPW_CHECK(spw_annotate(0, longest.c_str(), 1) == SPW_OK);
    for (const std::string& name : {std::string(), longest + "a", std::string("Bytes"), std::string("a b")}) {
      SPW_CHECK(spw_annotate(0, name.c_str(), 1) == SPW_ERROR_INVALID_ARGUMENT && last_error_has("no name"));
    }
    SPW_CHECK(spw_annotate(0, nullptr, 1) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_annotation(0, "parameter_bytes", nullptr) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_annotate(63, "parameter_bytes", 1) == SPW_ERROR_INVALID_ARGUMENT);
    for (int i = 2; i < 64; ++i) SPW_CHECK(spw_annotate(0, ("n" + std::to_string(i)).c_str(), 1) == SPW_OK);
    SPW_CHECK(spw_annotate(0, "n64", 1) == SPW_ERROR_INVALID_ARGUMENT && last_error_has("64"));
    SPW_CHECK(spw_annotate(0, "n63", 2) == SPW_OK);
  });
}

struct Asked {
  int calls = 0;
  spw_stream stream = nullptr;
};

TEST(Abi, PoolsKeepTheirMemoryAndAskTheirFilter) {
  in_child({}, [] {
    const auto driver = start_device();
    SPW_CHECK(spw_pool_begin(0, {0, 0}, nullptr, nullptr) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_pool_end(0, {3, 4}) == SPW_ERROR_INVALID_STATE);
    SPW_CHECK(spw_pool_release(0, {3, 4}) == SPW_ERROR_INVALID_STATE);

    CUstream stream = nullptr;
    SPW_CHECK(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    Asked asked;
    const auto filter = [](spw_stream on, void* context) {
      auto* count = static_cast<Asked*>(context);
      if (++count->calls == 1) count->stream = on;
      return on != nullptr ? 1 : 0;
    };
    SPW_CHECK(spw_pool_begin(0, {3, 4}, filter, &asked) == SPW_OK);
    SPW_CHECK(spw_pool_begin(0, {3, 4}, filter, &asked) == SPW_ERROR_INVALID_STATE);
    void* pooled = nullptr;
    SPW_CHECK(spw_alloc(kMiB, 0, stream, &pooled) == SPW_OK);
    SPW_CHECK(asked.calls == 2 && asked.stream == stream);  // and once about one that it never saw
    spw_stream owner = nullptr;
    spw_pool_id pool{};
    SPW_CHECK(spw_find_owner(pooled, &owner, &pool) == SPW_OK);
    SPW_CHECK(owner == stream && pool.first == 3 && pool.second == 4);
    SPW_CHECK(spw_pool_end(0, {3, 4}) == SPW_OK);
    int64_t held = 0;
    const spw_pool_visitor look = [](const spw_pool_id* id, const spw_stat* bytes, void* context) {
      if (id->first == 3 && id->second == 4) *static_cast<int64_t*>(context) = bytes->current;
      return 0;
    };
    SPW_CHECK(spw_walk_pools(0, nullptr, nullptr) == SPW_ERROR_INVALID_ARGUMENT);
    SPW_CHECK(spw_walk_pools(0, look, &held) == SPW_OK && held >= 1 << 20);
    SPW_CHECK(spw_free(pooled) == SPW_OK);
    void* other = nullptr;
    SPW_CHECK(spw_alloc(kMiB, 0, stream, &other) == SPW_OK && other != pooled && asked.calls == 2);
    SPW_CHECK(spw_find_owner(other, nullptr, &pool) == SPW_OK && pool.first == 0 && pool.second == 0);
    SPW_CHECK(spw_find_owner(&pool, &owner, nullptr) == SPW_ERROR_INVALID_POINTER);
    SPW_CHECK(spw_pool_lend(0, {3, 4}, 1) == SPW_OK &&
              spw_pool_lend(0, {5, 6}, 1) == SPW_ERROR_INVALID_STATE);
    SPW_CHECK(spw_pool_set_no_split(0, {3, 4}) == SPW_OK);  // it has no source
    SPW_CHECK(spw_pool_release(0, {3, 4}) == SPW_OK);
    SPW_CHECK(spw_pool_release(0, {3, 4}) == SPW_ERROR_INVALID_STATE);
    SPW_CHECK(spw_pool_trim(0, {7, 8}) == SPW_OK && spw_pool_trim(0, {3, 4}) == SPW_OK);
    SPW_CHECK(spw_free(other) == SPW_OK && spw_validate(0) == SPW_OK);
  });
}

TEST(Abi, ThreadsShareBlocksAndKeepTheirOwnErrors) {
  in_child({}, [] {
    const auto driver = start_device();
    constexpr int kThreads = 4;
    constexpr int kRounds = 300;
    CUcontext context = nullptr;
    SPW_CHECK(driver->cuCtxGetCurrent(&context) == CUDA_SUCCESS);
    std::vector<std::vector<void*>> left(kThreads);
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        SPW_CHECK(driver->cuCtxSetCurrent(context) == CUDA_SUCCESS);
        SPW_CHECK(std::strcmp(spw_last_error(), "") == 0);
        for (int i = 0; i < kRounds; ++i) {
          void* block = nullptr;
          SPW_CHECK(spw_alloc(512 + static_cast<size_t>(i % 7) * 100000, 0, nullptr, &block) == SPW_OK);
          if (i % 3 == 0) {
            left[static_cast<size_t>(t)].push_back(block);
          } else {
            SPW_CHECK(spw_free(block) == SPW_OK);
          }
          if (i % 50 == 0) stats_of(0);
        }
        const std::string address = "0x" + std::to_string(t + 1) + "000";
        SPW_CHECK(spw_free(at_address(std::stoull(address, nullptr, 16))) == SPW_ERROR_INVALID_POINTER);
        std::this_thread::yield();
        SPW_CHECK(last_error_has(address.c_str()));
      });
    }
    for (auto& thread : threads) thread.join();
    SPW_CHECK(spw_validate(0) == SPW_OK);
    SPW_CHECK(stats_of(0).allocation.all.current == kThreads * kRounds / 3);
    for (const auto& blocks : left) {
      for (void* block : blocks) SPW_CHECK(spw_free(block) == SPW_OK);
    }
    SPW_CHECK(stats_of(0).allocation.all.current == 0 && spw_validate(0) == SPW_OK);
  });
}

TEST(Abi, StatusesHaveNames) {
  for (int code = SPW_OK; code <= SPW_ERROR_DATA_LOST; ++code) {
    EXPECT_EQ(std::strncmp(spw_status_name(static_cast<spw_status>(code)), "SPW_", 4), 0) << code;
  }
  EXPECT_STREQ(spw_status_name(SPW_ERROR_OUT_OF_MEMORY), "SPW_ERROR_OUT_OF_MEMORY");
  EXPECT_STREQ(spw_status_name(static_cast<spw_status>(SPW_ERROR_DATA_LOST + 1)), "unknown status");
  EXPECT_STREQ(spw_version(), SPILLWAY_VERSION);
}

}  // namespace
}  // namespace spillway::test
