// A program without PyTorch that allocates, for the tests of what it dumps.
//
// usage: dump_program once             holds memory, prints its counters as JSON, and ends
//        dump_program forever FOLDER   dumps in every format, again and again, until it is killed
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "driver/driver.h"
#include "include/spillway/spillway.h"

namespace spillway {
namespace {

bool fill(const Driver& driver) {
  CUdevice device = 0;
  CUcontext context = nullptr;
  if (driver.cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
      driver.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS ||
      driver.cuCtxSetCurrent(context) != CUDA_SUCCESS) {
    return false;
  }
  CUstream other = nullptr;
  if (driver.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) return false;
  // Enough blocks that lists of them take more than one batch of a pickle.
  constexpr size_t kBlocks = 3000;
  void* block = nullptr;
  for (size_t i = 0; i < kBlocks; ++i) {
    if (spw_alloc(1 + i * 37 % 300'000, 0, i % 5 == 0 ? other : nullptr, &block) != SPW_OK) return false;
    if (i % 3 == 0 && spw_free(block) != SPW_OK) return false;
  }
  // Freed while another stream may still use it: pending.
  return spw_alloc(3 << 20, 0, nullptr, &block) == SPW_OK && spw_record_stream(block, other) == SPW_OK &&
         spw_free(block) == SPW_OK;
}

int print_counters() {
  spw_stats stats;
  stats.size = sizeof stats;
  if (spw_stats_get(0, &stats) != SPW_OK) return 1;
  std::printf("{\"reserved\": %lld, \"allocated\": %lld, \"active\": %lld, \"requested\": %lld}\n",
              static_cast<long long>(stats.reserved_bytes.all.current),
              static_cast<long long>(stats.allocated_bytes.all.current),
              static_cast<long long>(stats.active_bytes.all.current),
              static_cast<long long>(stats.requested_bytes.all.current));
  return 0;
}

int dump_forever(const std::string& folder) {
  for (;;) {
    for (const char* ending : {"json", "prom", "pickle"}) {
      if (spw_dump((folder + "/dump." + ending).c_str(), nullptr) != SPW_OK) {
        std::fprintf(stderr, "%s\n", spw_last_error());
        return 1;
      }
    }
    // The first ones are there.
    (void)std::putchar('.');
    (void)std::fflush(stdout);
  }
}

}  // namespace
}  // namespace spillway

int main(int count, char** arguments) {
  auto driver = spillway::Driver::open();
  if (!driver.ok() || !spillway::fill(*driver.value())) {
    std::fprintf(stderr, "no device to fill: %s\n", spw_last_error());
    return 1;
  }
  const std::string_view what = count > 1 ? arguments[1] : "";
  if (what == "once") return spillway::print_counters();
  if (what == "forever" && count > 2) return spillway::dump_forever(arguments[2]);
  std::fprintf(stderr, "usage: dump_program once | forever FOLDER\n");
  return 1;
}
