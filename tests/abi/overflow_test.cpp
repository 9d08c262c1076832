// Allocations that the device has no room for, placed in host memory where the program allows it.
#include <string>
#include <vector>

#include "tests/support/offload_calls.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

// `drivers_own`: in host memory that the driver makes, else in pinned memory that it maps.
void place_and_use(bool drivers_own) {
  const auto driver = start_device();
  void* on_device = nullptr;
  void* placed = nullptr;
  SPW_CHECK(spw_alloc(60 * kMiB, 0, nullptr, &on_device) == SPW_OK);
  SPW_CHECK(spw_alloc(40 * kMiB, 0, nullptr, &placed) == SPW_OK && placed != nullptr);
  SPW_CHECK(stats_of(0).host_placed_blocks == 1 && stats_of(0).host_placed_bytes == 40 * kMiB);
  SPW_CHECK(stats_of(0).allocated_bytes.all.current == 60 * kMiB);
  SPW_CHECK((pinned_bytes() > 0) != drivers_own);
  // The device uses it as its own.
  const auto va = reinterpret_cast<CUdeviceptr>(placed);
  SPW_CHECK(driver->cuMemsetD8Async(va, 7, 40 * kMiB, nullptr) == CUDA_SUCCESS);
  SPW_CHECK(driver->cuMemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(on_device), va, 40 * kMiB, nullptr) ==
            CUDA_SUCCESS);
  std::vector<unsigned char> bytes(64);
  SPW_CHECK(driver->cuMemcpyDtoH(bytes.data(), reinterpret_cast<CUdeviceptr>(on_device) + 39 * kMiB, 64) ==
            CUDA_SUCCESS);
  SPW_CHECK(bytes == std::vector<unsigned char>(64, 7));
  // Too small, and above the limit of what may be placed.
  void* none = nullptr;
  SPW_CHECK(spw_alloc(8 * kMiB, 0, nullptr, &none) == SPW_ERROR_OUT_OF_MEMORY);
  SPW_CHECK(spw_alloc(70 * kMiB, 0, nullptr, &none) == SPW_ERROR_OUT_OF_MEMORY);
  // With room on the device, the next is there.
  SPW_CHECK(spw_free(on_device) == SPW_OK);
  SPW_CHECK(spw_alloc(40 * kMiB, 0, nullptr, &on_device) == SPW_OK && stats_of(0).host_placed_blocks == 1);
  SPW_CHECK(spw_free(placed) == SPW_OK && stats_of(0).host_placed_bytes == 0);
  SPW_CHECK(spw_free(on_device) == SPW_OK);
}

const Environment kPlaces{{"SPILLWAY_CONF", "limit:64MiB,overflow:host,overflow_limit:100MiB"}};

TEST(AbiOverflow, WhatDoesNotFitIsInHostMemory) {
  in_child(kPlaces, [] { place_and_use(true); });
}

TEST(AbiOverflow, WhereTheDriverMakesNoHostMemoryItIsMappedPinnedMemory) {
  if (lacks_controls()) GTEST_SKIP() << "a real driver cannot be told what to say of host memory";
  Environment environment = kPlaces;
  environment["SPILLWAY_SIM"] = "host_vmm:off";
  in_child(environment, [] { place_and_use(false); });
}

// A driver may end the process that asks for memory at a NUMA node: nobody does unasked.
TEST(AbiOverflow, MemoryAtANumaNodeIsNotAskedFor) {
  if (lacks_controls()) GTEST_SKIP() << "a real driver cannot be told what to say of host memory";
  Environment environment = kPlaces;
  environment["SPILLWAY_SIM"] = "host_numa:fault";
  in_child(environment, [] { place_and_use(true); });
  environment["SPILLWAY_SIM"] = "host_vmm:off,host_numa:fault";
  in_child(environment, [] { place_and_use(false); });
}

TEST(AbiOverflow, ItsMemoryIsPinnedWhereTheOptionSaysSo) {
  Environment environment = kPlaces;
  environment["SPILLWAY_CONF"] += ",overflow_memory:pinned";
  in_child(environment, [] { place_and_use(false); });
}

TEST(AbiOverflow, ItsMemoryIsThatOfTheDriverWhereTheOptionSaysSo) {
  if (lacks_controls()) GTEST_SKIP() << "a real driver cannot be told what to say of host memory";
  Environment environment = kPlaces;
  environment["SPILLWAY_CONF"] += ",overflow_memory:vmm";
  environment["SPILLWAY_SIM"] = "host_vmm:off,host_numa:on";
  in_child(environment, [] { place_and_use(true); });
  environment["SPILLWAY_SIM"] = "host_vmm:off";
  in_child(environment, [] {
    (void)start_device();
    void* refused = nullptr;
    SPW_CHECK(spw_alloc(80 * kMiB, 0, nullptr, &refused) == SPW_ERROR_OUT_OF_MEMORY);
  });
}

TEST(AbiOverflow, AFreedBlockWaitsForItsStreams) {
  in_child(
      {{"SPILLWAY_CONF", "limit:20MiB,overflow:host,overflow_limit:70MiB"},
       {"SPILLWAY_SIM", "completion:run-ahead"}},
      [] {
        const auto driver = start_device();
        CUstream stream = nullptr;
        SPW_CHECK(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
        for (int i = 0; i < 8; ++i) {
          void* placed = nullptr;
          SPW_CHECK(spw_alloc(32 * kMiB, 0, stream, &placed) == SPW_OK);
          SPW_CHECK(driver->cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(placed), 1, 32 * kMiB, stream) ==
                    CUDA_SUCCESS);
          SPW_CHECK(spw_free(placed) == SPW_OK);  // the third finds room when the first one's work is done
        }
      });
}

TEST(AbiOverflow, ACaptureOnAnotherStreamGoesOn) {
  in_child({{"SPILLWAY_CONF", "limit:20MiB,overflow:host"}}, [] {
    const auto driver = start_device();
    CUstream stream = nullptr;
    CUstream captured = nullptr;
    for (CUstream* made : {&stream, &captured}) {
      SPW_CHECK(driver->cuStreamCreate(made, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    }
    void* placed = nullptr;
    SPW_CHECK(driver->cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    SPW_CHECK(spw_alloc(32 * kMiB, 0, stream, &placed) == SPW_OK && stats_of(0).host_placed_blocks == 1);
    CUgraph graph = nullptr;
    SPW_CHECK(driver->cuStreamEndCapture(captured, &graph) == CUDA_SUCCESS);
    SPW_CHECK(driver->cuGraphDestroy(graph) == CUDA_SUCCESS && spw_free(placed) == SPW_OK);
  });
}

TEST(AbiOverflow, NothingIsPlacedUnlessAskedFor) {
  in_child({{"SPILLWAY_CONF", "limit:20MiB"}}, [] {
    const auto driver = start_device();
    void* none = nullptr;
    SPW_CHECK(spw_alloc(32 * kMiB, 0, nullptr, &none) == SPW_ERROR_OUT_OF_MEMORY);
    SPW_CHECK(stats_of(0).host_placed_blocks == 0);
  });
}

}  // namespace
}  // namespace spillway::test
