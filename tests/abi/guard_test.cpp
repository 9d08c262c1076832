// debug:guard as programs see it: through the shared library, with reports on stderr.
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/child.h"
#include "tests/support/sizes.h"

namespace spillway::test {
namespace {

const Environment kGuard = {{"SPILLWAY_CONF", "debug:guard"}};

void write(const Driver& driver, void* at, int64_t offset, uint8_t value) {
  const auto va = reinterpret_cast<CUdeviceptr>(at) + static_cast<CUdeviceptr>(offset);
  SPW_CHECK(driver.cuMemsetD8Async(va, value, 4, nullptr) == CUDA_SUCCESS);
}

uint64_t findings() {
  uint64_t count = 0;
  SPW_CHECK(spw_guard_check(0, &count) == SPW_OK);
  return count;
}

void* allocate(size_t bytes) {
  void* block = nullptr;
  SPW_CHECK(spw_alloc(bytes, 0, nullptr, &block) == SPW_OK && block != nullptr);
  return block;
}

TEST(Guard, IsOffByDefault) {
  in_child({}, [] {
    const auto driver = start_device();
    SPW_CHECK(spw_guard_check(0, nullptr) == SPW_ERROR_INVALID_STATE);
    SPW_CHECK(last_error_has("debug:guard"));
    void* block = allocate(512);
    SPW_CHECK(stats_of(0).allocated_bytes.all.current == 512);
    SPW_CHECK(spw_free(block) == SPW_OK && stats_of(0).pending_blocks == 0);
    SPW_CHECK(spw_conf_set("debug:guard") == SPW_ERROR_INVALID_STATE);
  });
}

TEST(Guard, IsSetByAnOptionAndCountsWhatTheProgramAskedFor) {
  in_child({}, [] {
    SPW_CHECK(spw_conf_set("debug:guard") == SPW_OK);
    const auto driver = start_device();
    SPW_CHECK(findings() == 0);
    void* block = allocate(700);
    const spw_stats stats = stats_of(0);
    SPW_CHECK(stats.requested_bytes.all.current == 700 && stats.allocated_bytes.all.current >= 700 + 1024);
    SPW_CHECK(spw_record_stream(block, nullptr) == SPW_OK);
    SPW_CHECK(spw_free(block) == SPW_OK && stats_of(0).pending_blocks == 1);
    SPW_CHECK(spw_validate(0) == SPW_OK && findings() == 0);
    // What comes before a capture gives up what is kept for a look after its free, as a trim does.
    SPW_CHECK(spw_settle(0) == SPW_OK && stats_of(0).pending_blocks == 0);
    SPW_CHECK(spw_trim(0) == SPW_OK && stats_of(0).reserved_bytes.all.current == 0);
    SPW_CHECK(spw_guard_check(5, nullptr) == SPW_ERROR_INVALID_ARGUMENT);
  });
}

TEST(Guard, ABadValueIsOneLine) {
  in_child(
      {{"SPILLWAY_CONF", "debug:everything"}},
      [] {
        const auto driver = start_device();
        allocate(100);
        SPW_CHECK(spw_guard_check(0, nullptr) == SPW_ERROR_INVALID_STATE);
        std::fprintf(stderr, "END\n");
      },
      "spillway: SPILLWAY_CONF: debug: 'everything' is not allowed; allowed: off or guard; it stays "
      "off\nEND\n");
}

TEST(Guard, ReportsToStderrWithWhereTheProgramWas) {
  in_child(
      kGuard,
      [] {
        const auto driver = start_device();
        void* block = allocate(1000);
        write(*driver, block, 1000, 0x42);
        SPW_CHECK(findings() == 1 && findings() == 1);
        SPW_CHECK(spw_free(block) == SPW_OK && findings() == 1);
      },
      "of 1000 bytes: first at offset 1000, found 0x42, expected 0xfb\n  offsets 1000 to 1003; from the "
      "first on: "
      "42 42 42 42 fb");
  in_child(
      kGuard,
      [] {
        const auto driver = start_device();
        write(*driver, allocate(1000), -4, 0x42);
        SPW_CHECK(findings() == 1);
      },
      "::allocate(unsigned long)+0x");
}

TEST(Guard, WhatIsLeftIsCheckedAtTheEndOfTheProgram) {
  in_child(
      kGuard,
      [] {
        const auto driver = start_device();
        void* block = allocate(3 * kMiB);
        SPW_CHECK(spw_free(block) == SPW_OK);
        write(*driver, block, 2 * kMiB, 0x42);
      },
      "of 3145728 bytes after its free: first at offset 2097152, found 0x42, expected 0xdd\n");
}

TEST(Guard, FreesThatAreWrongAreErrorsWithHistory) {
  in_child(
      kGuard,
      [] {
        const auto driver = start_device();
        void* block = allocate(kMiB);
        void* inside = static_cast<char*>(block) + 512;
        SPW_CHECK(spw_free(inside) == SPW_ERROR_INVALID_POINTER);
        SPW_CHECK(spw_free(&block) == SPW_ERROR_INVALID_POINTER);
        SPW_CHECK(spw_free(nullptr) == SPW_OK);
        SPW_CHECK(spw_record_stream(inside, nullptr) == SPW_ERROR_INVALID_POINTER);
        SPW_CHECK(spw_record_stream(nullptr, nullptr) == SPW_OK);
        SPW_CHECK(spw_free(block) == SPW_OK);
        SPW_CHECK(spw_free(block) == SPW_ERROR_INVALID_POINTER);
        SPW_CHECK(last_error_has("was freed before, at step"));
        SPW_CHECK(findings() == 2);
      },
      "spillway: guard: second free of block 0x");
}

TEST(Guard, ABlockWhoseStreamGoesIsNotAccused) {
  in_child({{"SPILLWAY_SIM", "completion:run-ahead"}, {"SPILLWAY_CONF", "debug:guard"}}, [] {
    const auto driver = start_device();
    CUstream stream = nullptr;
    SPW_CHECK(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    void* block = nullptr;
    SPW_CHECK(spw_alloc(kMiB, 0, stream, &block) == SPW_OK && spw_free(block) == SPW_OK);
    SPW_CHECK(spw_stream_destroyed(0, stream) == SPW_OK);
    SPW_CHECK(driver->cuStreamDestroy(stream) == CUDA_SUCCESS);
    SPW_CHECK(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    SPW_CHECK(spw_trim(0) == SPW_OK && findings() == 0);
  });
}

TEST(Guard, DevicesHaveGuardsOfTheirOwn) {
  in_child({{"SPILLWAY_SIM", "devices:2"}, {"SPILLWAY_CONF", "debug:guard"}}, [] {
    const auto driver = start_device();
    if (driver->find("spwSimConfigure") == nullptr) return;
    start_device(2);
    void* first = allocate(kMiB);
    void* second = nullptr;
    SPW_CHECK(spw_alloc(kMiB, 1, nullptr, &second) == SPW_OK);
    SPW_CHECK(spw_free(second) == SPW_OK && spw_free(second) == SPW_ERROR_INVALID_POINTER);
    SPW_CHECK(stats_of(1).pending_blocks == 1 && stats_of(0).pending_blocks == 0);
    SPW_CHECK(spw_free(first) == SPW_OK && findings() == 0);
    uint64_t count = 0;
    SPW_CHECK(spw_guard_check(1, &count) == SPW_OK && count == 1);
  });
}

}  // namespace
}  // namespace spillway::test
