// The hooks of PyTorch's pluggable allocator, called as PyTorch calls them.
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "include/spillway/spillway.h"
#include "include/spillway/torch.h"
#include "tests/support/child.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

constexpr size_t kTooMuch = size_t{1} << 50;

// Returns what an allocation throws; "" if it does not.
std::string error_of(size_t bytes, int device) {
  try {
    SPW_CHECK(spw_torch_alloc(bytes, device, nullptr) != nullptr);
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

TEST(TorchHooks, AllocAndFree) {
  in_child({}, [] {
    const auto driver = start_device();
    spw_torch_init(1);
    void* block = spw_torch_alloc(kMiB, 0, nullptr);
    SPW_CHECK(block != nullptr && stats_of(0).allocation.all.current == 1);
    size_t bytes = 0;
    SPW_CHECK(spw_torch_base_alloc(block, &bytes) == block && bytes == kMiB);
    spw_torch_free(block, kMiB, 0, nullptr);
    SPW_CHECK(stats_of(0).allocation.all.current == 0 && stats_of(0).reserved_bytes.all.current > 0);
    spw_torch_reset();
    SPW_CHECK(stats_of(0).reserved_bytes.all.current == 0);

    SPW_CHECK(spw_torch_alloc(0, 0, nullptr) == nullptr);
    spw_torch_free(nullptr, 0, 0, nullptr);
  });
}

TEST(TorchHooks, AllocThrowsAndNeverAnswersNull) {
  in_child({}, [] {
    SPW_CHECK(error_of(kMiB, 0).find("spillway: ") == 0);  // no context yet
    const auto driver = start_device();
    SPW_CHECK(error_of(kMiB, 63).find("spillway: ") == 0);
    SPW_CHECK(error_of(kMiB, -1).find("spillway: ") == 0);
    SPW_CHECK(error_of(kTooMuch, 0).find("CUDA out of memory") == 0);
    spw_torch_memory_fraction(0.001, 0);
    SPW_CHECK(error_of(kMiB << 10, 0).find("CUDA out of memory") == 0);
    spw_torch_memory_fraction(1, 0);
    SPW_CHECK(error_of(kMiB, 0).empty());
  });
}

TEST(TorchHooks, ASegmentIsNullForWantOfMemoryAlone) {
  in_child({}, [] {
    const auto driver = start_device();
    SPW_CHECK(spw_torch_alloc_segment(kTooMuch, 0, nullptr) == nullptr);
    SPW_CHECK(spw_torch_alloc_segment(kMiB, 0, nullptr) != nullptr);
    bool thrown = false;
    try {
      spw_torch_alloc_segment(kMiB, 63, nullptr);
    } catch (const std::exception&) {
      thrown = true;
    }
    SPW_CHECK(thrown);
  });
}

TEST(TorchHooks, AWrongFreeCostsOneLine) {
  in_child(
      {},
      [] {
        const auto driver = start_device();
        int local = 0;
        spw_torch_free(&local, sizeof local, 0, nullptr);
      },
      "spillway: free: ");
}

TEST(TorchHooks, RecordStreamHoldsTheBlockAndLeavesOthersAlone) {
  in_child({}, [] {
    const auto driver = start_device();
    int local = 0;
    spw_torch_record_stream(nullptr, nullptr);
    spw_torch_record_stream(&local, nullptr);

    CUstream side = nullptr;
    SPW_CHECK(driver->cuStreamCreate(&side, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    void* block = spw_torch_alloc(kMiB, 0, nullptr);
    SPW_CHECK(driver->cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(block), 1, kMiB, side) == CUDA_SUCCESS);
    spw_torch_record_stream(block, side);
    spw_torch_free(block, kMiB, 0, nullptr);
    SPW_CHECK(stats_of(0).allocation.all.current == 0 && stats_of(0).active.all.current == 1);
  });
}

// PyTorch's filter dies when the call that brought it returns.
TEST(TorchHooks, APoolKeepsItsFilter) {
  in_child({}, [] {
    const auto driver = start_device();
    CUstream stream = nullptr;
    SPW_CHECK(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    const auto alive = std::make_shared<int>(0);
    {
      const std::function<bool(spw_stream)> filter = [calls = alive, stream](spw_stream on) {
        ++*calls;
        return on == stream;
      };
      spw_torch_begin_pool(0, {7, 0}, &filter);
    }
    SPW_CHECK(alive.use_count() == 2);
    void* pooled = spw_torch_alloc(kMiB, 0, stream);
    void* other = spw_torch_alloc(kMiB, 0, nullptr);
    SPW_CHECK(*alive == 3);  // once about a stream that it never saw
    spw_torch_end_pool(0, {7, 0});
    uint64_t claims = 0;
    SPW_CHECK(spw_pool_claims(0, {7, 0}, &claims) == SPW_OK && claims == 1);
    spw_torch_free(pooled, kMiB, 0, stream);
    void* outside = spw_torch_alloc(kMiB, 0, stream);
    SPW_CHECK(outside != pooled && *alive == 3);
    spw_torch_release_pool(0, {7, 0});
    SPW_CHECK(spw_pool_claims(0, {7, 0}, &claims) == SPW_OK && claims == 0);
    spw_torch_free(outside, kMiB, 0, stream);
    spw_torch_free(other, kMiB, 0, nullptr);
    SPW_CHECK(spw_validate(0) == SPW_OK);
  });
}

TEST(TorchHooks, AMistakeWithPoolsCostsOneLine) {
  in_child(
      {},
      [] {
        const auto driver = start_device();
        spw_torch_end_pool(0, {7, 0});
      },
      "spillway: end_pool: ");
  in_child(
      {},
      [] {
        const auto driver = start_device();
        spw_torch_release_pool(0, {7, 0});
      },
      "spillway: release_pool: ");
}

TEST(TorchHooks, DevicesInUseArePeers) {
  in_child({{"SPILLWAY_SIM", "devices:2"}}, [] {
    const auto driver = start_device();
    if (driver->find("spwSimConfigure") == nullptr) return;  // a real machine's devices need not be peers
    start_device(2);
    void* first = spw_torch_alloc(kMiB, 0, nullptr);
    void* second = spw_torch_alloc(kMiB, 1, nullptr);
    const auto is_open_to = [&](void* block, int device) {
      const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, device};
      unsigned long long access = 0;  // NOLINT(google-runtime-int): the driver's type
      SPW_CHECK(driver->cuMemGetAccess(&access, &location, reinterpret_cast<CUdeviceptr>(block)) ==
                CUDA_SUCCESS);
      return access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    };
    SPW_CHECK(is_open_to(first, 1) && is_open_to(second, 0));
  });
}

}  // namespace
}  // namespace spillway::test
