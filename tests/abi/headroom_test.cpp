// On a device that a program fills something stays free: room for what is no memory of the program's.
#include <cuda.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/child.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

// Page tables and modules take memory, as on a real device.
constexpr const char* kDevice = "capacity:16GiB,overheads:on,backing:none";

std::vector<void*> fill_device() {
  std::vector<void*> blocks;
  for (size_t bytes = 512 * kMiB; bytes >= 2 * kMiB;) {
    void* block = nullptr;
    if (spw_alloc(bytes, 0, nullptr, &block) == SPW_OK) {
      blocks.push_back(block);
    } else {
      bytes /= 2;
    }
  }
  return blocks;
}

// A kernel that nobody has launched yet, as a library's are.
CUresult launch_something_new(const Driver& driver) {
  const auto load = reinterpret_cast<decltype(&cuModuleLoadData)>(driver.find("cuModuleLoadData"));
  const auto get = reinterpret_cast<decltype(&cuModuleGetFunction)>(driver.find("cuModuleGetFunction"));
  const auto launch = reinterpret_cast<decltype(&cuLaunchKernel)>(driver.find("cuLaunchKernel"));
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  SPW_CHECK(load(&module, "image") == CUDA_SUCCESS && get(&function, module, "kernel") == CUDA_SUCCESS);
  return launch(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
}

uint64_t free_bytes(const Driver& driver) {
  size_t free = 0;
  size_t total = 0;
  SPW_CHECK(driver.cuMemGetInfo(&free, &total) == CUDA_SUCCESS);
  return free;
}

TEST(Headroom, AFullDeviceStillLaunchesWhatIsNew) {
  for (const char* backend : {"backend:vmm", "backend:malloc"}) {
    in_child({{"SPILLWAY_SIM", kDevice}, {"SPILLWAY_CONF", backend}}, [] {
      const auto driver = start_device();
      fill_device();
      const uint64_t free = free_bytes(*driver);
      SPW_CHECK(free >= 250 * kMiB && free <= 300 * kMiB);
      SPW_CHECK(last_error_has("out of memory"));
      uint64_t available = 0;
      SPW_CHECK(spw_memory_info(0, &available, nullptr) == SPW_OK && available < 20 * kMiB);
      SPW_CHECK(launch_something_new(*driver) == CUDA_SUCCESS);
      SPW_CHECK(spw_validate(0) == SPW_OK);
      // All of it is the program's where it says so.
      SPW_CHECK(spw_conf_set("reserve:0") == SPW_OK);
      fill_device();
      SPW_CHECK(free_bytes(*driver) < 4 * kMiB);
      SPW_CHECK(launch_something_new(*driver) == CUDA_ERROR_OUT_OF_MEMORY);
    });
  }
}

TEST(Headroom, ACarefulProfileLeavesTwiceAsMuch) {
  in_child({{"SPILLWAY_SIM", kDevice}, {"SPILLWAY_CONF", "profile:careful"}}, [] {
    const auto driver = start_device();
    fill_device();
    SPW_CHECK(free_bytes(*driver) >= 500 * kMiB && free_bytes(*driver) <= 560 * kMiB);
    SPW_CHECK(spw_validate(0) == SPW_OK);
  });
}

TEST(Headroom, OthersMemoryCountsAsItComes) {
  in_child({{"SPILLWAY_SIM", kDevice}}, [] {
    const auto driver = start_device();
    void* block = nullptr;
    SPW_CHECK(spw_alloc(8192 * kMiB, 0, nullptr, &block) == SPW_OK);
    CUdeviceptr of_a_library = 0;
    SPW_CHECK(driver->cuMemAlloc(&of_a_library, 7000 * kMiB) == CUDA_SUCCESS);
    fill_device();
    SPW_CHECK(free_bytes(*driver) >= 250 * kMiB);
    SPW_CHECK(driver->cuMemFree(of_a_library) == CUDA_SUCCESS);
    SPW_CHECK(spw_alloc(6000 * kMiB, 0, nullptr, &block) == SPW_OK);
  });
}

// PyTorch empties its cache before each capture, and calls this instead.
TEST(Headroom, WhatComesBeforeACaptureLeavesRoomForTheGraph) {
  for (const char* backend : {"backend:vmm", "backend:malloc"}) {
    in_child({{"SPILLWAY_SIM", "capacity:8GiB,overheads:on,backing:none"}, {"SPILLWAY_CONF", backend}}, [] {
      const auto driver = start_device();
      const std::vector<void*> blocks = fill_device();
      SPW_CHECK(free_bytes(*driver) < 8 * kMiB);
      SPW_CHECK(launch_something_new(*driver) == CUDA_ERROR_OUT_OF_MEMORY);
      for (void* block : blocks) SPW_CHECK(spw_free(block) == SPW_OK);
      const int64_t before = stats_of(0).reserved_bytes.all.current;
      SPW_CHECK(spw_settle(0) == SPW_OK && spw_validate(0) == SPW_OK);
      SPW_CHECK(free_bytes(*driver) >= 128 * kMiB);
      SPW_CHECK(launch_something_new(*driver) == CUDA_SUCCESS);
      const int64_t given = before - stats_of(0).reserved_bytes.all.current;
      // Segments of cuMemAlloc cannot be joined, and go whole.
      SPW_CHECK(std::getenv("SPILLWAY_CONF") != std::string("backend:vmm") || given <= 160 * int64_t{kMiB});
    });
  }
}

TEST(Headroom, SmallDevicesHaveNone) {
  in_child({{"SPILLWAY_SIM", "capacity:1GiB,backing:none"}}, [] {
    const auto driver = start_device();
    fill_device();
    SPW_CHECK(free_bytes(*driver) < 4 * kMiB);
  });
}

}  // namespace
}  // namespace spillway::test
