// The C ABI of pinned host memory. As in spillway.cpp, nothing is decided here.
#include "include/spillway/pinned.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "abi/boundary.h"

using spillway::PinnedBlocks;
using spillway::Process;
using spillway::Result;
using spillway::Status;

namespace {

// Runs `body` on the pinned blocks, made if need be.
template <typename Body>
spw_status with_pinned(Body body) noexcept {
  return spillway::guarded([&]() -> Status {
    Result<PinnedBlocks*> blocks = Process::instance().pinned();
    return blocks.ok() ? body(*blocks.value()) : blocks.take_status();
  });
}

// Where there are none, `pointer` is in none.
template <typename Body>
spw_status with_block(const void* pointer, Body body) noexcept {
  return spillway::guarded([&]() -> Status {
    PinnedBlocks* blocks = Process::existing_pinned();
    if (blocks != nullptr) return body(*blocks);
    return Status::invalid_pointer(fmt::format("no pinned block is at {}", pointer));
  });
}

// Where there are none, there is nothing to do.
template <typename Body>
spw_status with_existing_pinned(Body body) noexcept {
  return spillway::guarded([&]() -> Status {
    PinnedBlocks* blocks = Process::existing_pinned();
    return blocks == nullptr ? Status() : body(*blocks);
  });
}

}  // namespace

extern "C" {

spw_status spw_pinned_alloc(size_t bytes, int device, void** out) {
  if (out == nullptr) {
    return spillway::guarded([] { return spillway::is_null("out"); });
  }
  *out = nullptr;
  return with_pinned([&](PinnedBlocks& blocks) { return blocks.allocate(bytes, device, out); });
}

spw_status spw_pinned_free(void* pointer) {
  if (pointer == nullptr) return SPW_OK;
  return with_block(pointer, [&](PinnedBlocks& blocks) { return blocks.free(pointer); });
}

spw_status spw_pinned_record_stream(const void* pointer, int device, spw_stream stream) {
  return with_block(pointer,
                    [&](PinnedBlocks& blocks) { return blocks.record_stream(pointer, device, stream); });
}

spw_status spw_pinned_trim(void) {
  return spillway::guarded([]() -> Status {
    Process::instance().trim_pinned();
    return {};
  });
}

spw_status spw_pinned_stats_get(spw_pinned_stats* stats) {
  return spillway::guarded([&]() -> Status {
    if (stats == nullptr) return spillway::is_null("stats");
    const size_t size = stats->size;
    constexpr size_t kHeader = offsetof(spw_pinned_stats, version) + sizeof(stats->version);
    if (size < kHeader) {
      return Status::invalid_argument(
          fmt::format("stats->size is {}; it must be set to sizeof(spw_pinned_stats), here {}", size,
                      sizeof(spw_pinned_stats)));
    }
    const PinnedBlocks* blocks = Process::existing_pinned();
    spw_pinned_stats all = blocks == nullptr ? spw_pinned_stats{} : blocks->stats();
    all.size = static_cast<uint32_t>(std::min(size, sizeof(spw_pinned_stats)));
    all.version = SPW_PINNED_STATS_VERSION;
    std::memcpy(stats, &all, all.size);
    return {};
  });
}

spw_status spw_pinned_stats_reset_peaks(void) {
  return with_existing_pinned([](PinnedBlocks& blocks) {
    blocks.reset_peaks();
    return Status();
  });
}

spw_status spw_pinned_stats_reset_accumulated(void) {
  return with_existing_pinned([](PinnedBlocks& blocks) {
    blocks.reset_accumulated();
    return Status();
  });
}

}  // extern "C"
