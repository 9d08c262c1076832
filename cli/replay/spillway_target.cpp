// Spillway as a replay target, through nothing but its C ABI.
#include <spillway/spillway.h>

#include "cli/replay/target.h"

namespace spillway {

namespace {

constexpr int kDevice = 0;

class SpillwayTarget final : public ReplayTarget {
 public:
  spw_status allocate(uint64_t bytes, CUstream_st* stream, void** out) override {
    return spw_alloc(bytes, kDevice, stream, out);
  }
  spw_status free(void* block) override { return spw_free(block); }
  spw_status record_stream(void* block, CUstream_st* stream) override {
    return spw_record_stream(block, stream);
  }

  uint64_t peak_reserved_bytes() override { return static_cast<uint64_t>(stats().reserved_bytes.all.peak); }
  uint64_t metadata_bytes() override { return static_cast<uint64_t>(stats().metadata_bytes); }
  std::string last_error() override { return spw_last_error(); }
  Status validate() override {
    const spw_status code = spw_validate(kDevice);
    return code == SPW_OK ? Status() : Status(code, spw_last_error());
  }

 private:
  // All zero where there are none.
  static spw_stats stats() {
    spw_stats stats{};
    stats.size = sizeof stats;
    if (spw_stats_get(kDevice, &stats) != SPW_OK) stats = {};
    return stats;
  }
};

}  // namespace

Result<std::unique_ptr<ReplayTarget>> make_spillway_target() {
  return std::unique_ptr<ReplayTarget>(std::make_unique<SpillwayTarget>());
}

}  // namespace spillway
