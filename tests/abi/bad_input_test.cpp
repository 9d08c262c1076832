// Shows what programs get wrong, at the C ABI: each mistake is one line of text, and changes nothing.
#include <cstring>
#include <string>
#include <vector>

#include "include/spillway/spillway.h"
#include "sim/cuda/sim_control.h"
#include "tests/support/child.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

// A mistake costs `expected` with one line, and every counter of bytes and blocks stays.
void expect_refused(spw_status expected, const char* text, const std::function<spw_status()>& mistake) {
  const spw_stats before = stats_of(0);
  const spw_status status = mistake();
  if (status != expected || std::strstr(spw_last_error(), text) == nullptr ||
      std::strchr(spw_last_error(), '\n') != nullptr) {
    std::fprintf(stderr, "status %d instead of %d; text, which should have '%s': %s\n", status, expected,
                 text, spw_last_error());
    std::_Exit(1);
  }
  const spw_stats after = stats_of(0);
  SPW_CHECK(std::memcmp(&before.allocation, &after.allocation,
                        offsetof(spw_stats, oversize_allocations) - offsetof(spw_stats, allocation)) == 0);
  SPW_CHECK(after.pending_blocks == before.pending_blocks);
  SPW_CHECK(spw_validate(0) == SPW_OK);
}

TEST(BadInput, PoolCallsThatDoNotMatch) {
  in_child({}, [] {
    const auto driver = start_device();
    void* block = nullptr;
    SPW_CHECK(spw_alloc(kMiB, 0, nullptr, &block) == SPW_OK);
    const spw_pool_id pool{3, 4};
    const auto begin = [&] { return spw_pool_begin(0, pool, nullptr, nullptr); };
    const auto end = [&] { return spw_pool_end(0, pool); };
    const auto release = [&] { return spw_pool_release(0, pool); };
    expect_refused(SPW_ERROR_INVALID_ARGUMENT, "{0, 0}", [] {
      return spw_pool_begin(0, {0, 0}, nullptr, nullptr);
    });
    expect_refused(SPW_ERROR_INVALID_STATE, "{0, 0}", [] { return spw_pool_end(0, {0, 0}); });
    expect_refused(SPW_ERROR_INVALID_STATE, "{0, 0}", [] { return spw_pool_release(0, {0, 0}); });
    expect_refused(SPW_ERROR_INVALID_STATE, "{3, 4} is not open", end);
    expect_refused(SPW_ERROR_INVALID_STATE, "{3, 4} does not exist", release);
    const auto set_source = [&](spw_segment_alloc alloc) {
      return spw_pool_set_source(
          0, pool, alloc, [](void*, size_t, void*) {}, nullptr);
    };
    const spw_segment_alloc nothing = [](size_t, spw_stream, void*) -> void* { return nullptr; };
    expect_refused(SPW_ERROR_INVALID_STATE, "{3, 4} does not exist", [&] { return set_source(nothing); });
    expect_refused(SPW_ERROR_INVALID_STATE, "{3, 4} does not exist",
                   [&] { return spw_pool_set_no_split(0, pool); });
    spw_pool_state* state = nullptr;
    const auto checkpoint = [&] { return spw_pool_checkpoint(0, pool, &state); };
    const auto restore = [&] { return spw_pool_restore(state, nullptr, nullptr); };
    expect_refused(SPW_ERROR_INVALID_STATE, "{3, 4} does not exist", checkpoint);
    expect_refused(SPW_ERROR_INVALID_ARGUMENT, "state is NULL", restore);
    expect_refused(SPW_ERROR_INVALID_ARGUMENT, "out is NULL",
                   [&] { return spw_pool_checkpoint(0, pool, nullptr); });
    expect_refused(SPW_ERROR_INVALID_ARGUMENT, "device 5",
                   [&] { return spw_pool_checkpoint(5, pool, &state); });
    spw_pool_state_free(nullptr);
    SPW_CHECK(begin() == SPW_OK && checkpoint() == SPW_OK);
    expect_refused(SPW_ERROR_INVALID_STATE, "{3, 4} is already open", begin);
    expect_refused(SPW_ERROR_INVALID_ARGUMENT, "NULL", [&] { return set_source(nullptr); });
    void* pooled = nullptr;
    SPW_CHECK(spw_alloc(2 * kMiB, 0, nullptr, &pooled) == SPW_OK);
    expect_refused(SPW_ERROR_INVALID_STATE, "{3, 4} has memory", [&] { return set_source(nothing); });
    expect_refused(SPW_ERROR_INVALID_STATE, "{3, 4} is still open", release);
    expect_refused(SPW_ERROR_INVALID_STATE, "{5, 6} is not open", [] { return spw_pool_end(0, {5, 6}); });
    SPW_CHECK(end() == SPW_OK);
    expect_refused(SPW_ERROR_INVALID_STATE, "{3, 4} is not open", end);
    // A second claim on the pool, while it is open again.
    SPW_CHECK(begin() == SPW_OK && release() == SPW_OK);
    expect_refused(SPW_ERROR_INVALID_STATE, "{3, 4} is still open", release);
    SPW_CHECK(end() == SPW_OK && release() == SPW_OK);
    expect_refused(SPW_ERROR_INVALID_STATE, "{3, 4} does not exist", release);
    expect_refused(SPW_ERROR_INVALID_STATE, "{3, 4} was released", restore);
    spw_pool_state_free(state);
    SPW_CHECK(spw_free(pooled) == SPW_OK && spw_free(block) == SPW_OK && spw_validate(0) == SPW_OK);
  });
}

TEST(BadInput, PointersThatAreNotOfLiveBlocks) {
  in_child({}, [] {
    const auto driver = start_device();
    std::vector<void*> blocks;
    for (const size_t bytes : {size_t{700}, 100 * size_t{1024}, 9 * kMiB + 512}) {
      blocks.emplace_back();
      SPW_CHECK(spw_alloc(bytes, 0, nullptr, &blocks.back()) == SPW_OK);
    }
    void* freed = nullptr;
    SPW_CHECK(spw_alloc(20 * kMiB, 0, nullptr, &freed) == SPW_OK && spw_free(freed) == SPW_OK);
    CUdeviceptr others = 0;
    SPW_CHECK(driver->cuMemAlloc(&others, 4 * kMiB) == CUDA_SUCCESS);
    void* pinned = nullptr;
    SPW_CHECK(driver->cuMemHostAlloc(&pinned, kMiB, 0) == CUDA_SUCCESS);
    int on_stack = 0;
    std::vector<void*> wrong{&on_stack, pinned, reinterpret_cast<void*>(others), freed};
    for (void* block : blocks) {
      for (const ptrdiff_t inside : {1, 256, 511, 512}) wrong.push_back(static_cast<char*>(block) + inside);
      wrong.push_back(static_cast<char*>(block) - 1);
    }
    wrong.push_back(static_cast<char*>(blocks.back()) + 9 * kMiB + 512);
    for (void* pointer : wrong) {
      expect_refused(SPW_ERROR_INVALID_POINTER, "free of 0x", [&] { return spw_free(pointer); });
      expect_refused(SPW_ERROR_INVALID_POINTER, "record_stream of 0x",
                     [&] { return spw_record_stream(pointer, nullptr); });
    }
    for (void* block : blocks) SPW_CHECK(spw_free(block) == SPW_OK);
    for (void* block : blocks) {
      expect_refused(SPW_ERROR_INVALID_POINTER, "free of 0x", [&] { return spw_free(block); });
    }
    SPW_CHECK(driver->cuMemFree(others) == CUDA_SUCCESS && driver->cuMemFreeHost(pinned) == CUDA_SUCCESS);
  });
}

// Blocks on two streams, one of them waiting for the other stream after its free.
struct InUse {
  explicit InUse(const Driver& driver) {
    SPW_CHECK(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    SPW_CHECK(driver.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    for (const size_t bytes : {size_t{700}, 3 * kMiB, 30 * kMiB}) {
      blocks.emplace_back();
      SPW_CHECK(spw_alloc(bytes, 0, stream, &blocks.back()) == SPW_OK);
      shared.emplace_back();
      SPW_CHECK(spw_alloc(bytes, 0, stream, &shared.back()) == SPW_OK);
      SPW_CHECK(spw_record_stream(shared.back(), other) == SPW_OK);
    }
    SPW_CHECK(spw_free(shared.back()) == SPW_OK);
    shared.pop_back();
  }
  CUstream stream = nullptr;
  CUstream other = nullptr;
  std::vector<void*> blocks;
  std::vector<void*> shared;  // also used on `other`
};

// What needs the device that is gone is an error that names what failed. A real driver may serve some of it:
// of a context that was reset, it was seen to unmap and release memory as before.
void expect_no_device(const std::function<spw_status()>& request) {
  if (!lacks_controls()) return expect_refused(SPW_ERROR_DRIVER, "cu", request);
  const spw_status status = request();
  SPW_CHECK(status == SPW_OK || (status == SPW_ERROR_DRIVER && last_error_has("cu")));
  SPW_CHECK(spw_validate(0) == SPW_OK);
}

// With the device gone, frees are bookkeeping and succeed, and frees that are wrong are errors.
void use_without_device(const InUse& use) {
  SPW_CHECK(spw_free(use.blocks[0]) == SPW_OK);
  SPW_CHECK(spw_free(use.shared[0]) == SPW_OK && spw_free(use.shared[1]) == SPW_OK);
  SPW_CHECK(spw_validate(0) == SPW_OK);
  expect_refused(SPW_ERROR_INVALID_POINTER, "free of 0x", [&] { return spw_free(use.blocks[0]); });
  expect_no_device([] { return spw_trim(0); });
  void* block = nullptr;
  if (!lacks_controls()) {  // a real driver may crash of a stream that is gone
    expect_no_device([&] { return spw_alloc(100 * kMiB, 0, use.stream, &block); });
    SPW_CHECK(block == nullptr);
  }
  expect_no_device([&] { return spw_alloc(100 * kMiB, 0, nullptr, &block); });
  SPW_CHECK(spw_free(block) == SPW_OK);
  // These would ask whether what waits for the other stream is done, which a reset has made undefined.
  for (const size_t bytes : {size_t{700}, 3 * kMiB, 30 * kMiB}) {
    block = nullptr;
    SPW_CHECK(spw_alloc(bytes, 0, nullptr, &block) == SPW_OK || last_error_has("cu"));
    SPW_CHECK(spw_free(block) == SPW_OK);
    if (lacks_controls()) continue;
    SPW_CHECK(spw_alloc(bytes, 0, use.stream, &block) == SPW_OK || last_error_has("cu"));
    SPW_CHECK(spw_free(block) == SPW_OK);
  }
  SPW_CHECK(spw_free(use.blocks[1]) == SPW_OK && spw_free(use.blocks[2]) == SPW_OK);
  SPW_CHECK(stats_of(0).allocation.all.current == 0 && spw_validate(0) == SPW_OK);
}

TEST(BadInput, UseAfterThePrimaryContextWasReset) {
  in_child({}, [] {
    const auto driver = start_device();
    const InUse use(*driver);
    const auto reset =
        reinterpret_cast<decltype(&cuDevicePrimaryCtxReset)>(driver->find("cuDevicePrimaryCtxReset"));
    SPW_CHECK(reset(0) == CUDA_SUCCESS);
    use_without_device(use);
  });
}

TEST(BadInput, TheProgramsReleaseOfThePrimaryContextLeavesItToTheLibrary) {
  in_child({}, [] {
    const auto driver = start_device();
    const InUse use(*driver);
    SPW_CHECK(driver->cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
    SPW_CHECK(driver->cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
    for (void* block : use.shared) SPW_CHECK(spw_free(block) == SPW_OK);
    for (void* block : use.blocks) SPW_CHECK(spw_free(block) == SPW_OK);
    void* block = nullptr;
    SPW_CHECK(spw_alloc(100 * kMiB, 0, use.stream, &block) == SPW_OK && spw_free(block) == SPW_OK);
    SPW_CHECK(spw_trim(0) == SPW_OK && stats_of(0).reserved_bytes.all.current == 0);
  });
}

TEST(BadInput, UseAfterTheDriverHasShutDown) {
  in_child({}, [] {
    const auto driver = start_device();
    const auto inject = reinterpret_cast<decltype(&spwSimInjectFault)>(driver->find("spwSimInjectFault"));
    if (inject == nullptr) return;  // faults are injected into the simulated driver
    const InUse use(*driver);
    for (const char* name :
         {"cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuCtxSynchronize", "cuEventCreate",
          "cuEventRecord", "cuEventQuery", "cuEventSynchronize", "cuStreamWaitEvent", "cuStreamIsCapturing",
          "cuThreadExchangeStreamCaptureMode", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap",
          "cuMemRelease", "cuMemAddressReserve", "cuMemGetInfo"}) {
      for (uint64_t nth = 1; nth <= 300; ++nth) inject(name, nth, CUDA_ERROR_DEINITIALIZED);
    }
    use_without_device(use);
  });
}

}  // namespace
}  // namespace spillway::test
