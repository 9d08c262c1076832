// The C ABI of regions, stashes and tiers. As in spillway.cpp, nothing is decided here.
#include "include/spillway/offload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>

#include "abi/boundary.h"
#include "abi/tier_stats.h"
#include "driver/context.h"
#include "offload/io/measure.h"
#include "offload/io/tuned_disks.h"
#include "offload/spill/device_tiers.h"

using spillway::Codec;
using spillway::DeviceTiers;
using spillway::Process;
using spillway::RegionReport;
using spillway::Regions;
using spillway::RegionUsage;
using spillway::Result;
using spillway::ScopedContext;
using spillway::SpillTo;
using spillway::Stashes;
using spillway::Status;

struct spw_stash {
  DeviceTiers& tiers;  // for as long as the process lives
  CUcontext context;
  Stashes::Stash* stash;
};

namespace {

// Runs `body` on the tiers of a device, made if need be.
template <typename Body>
spw_status with_tiers(int device, Body body) noexcept {
  return spillway::guarded([&]() -> Status {
    Result<DeviceTiers*> tiers = Process::instance().tiers(device);
    return tiers.ok() ? body(*tiers.value()) : tiers.take_status();
  });
}

template <typename Body>
spw_status with_regions(int device, const char* tag, Body body) noexcept {
  if (tag == nullptr) {
    return spillway::guarded([] { return spillway::is_null("tag"); });
  }
  return with_tiers(device, [&](DeviceTiers& tiers) { return body(tiers.regions(), std::string(tag)); });
}

// Runs `body` in the context of the device's arena.
template <typename Body>
Status in_context(CUcontext wanted, Body body) {
  Result<std::shared_ptr<const spillway::Driver>> driver = Process::instance().driver();
  if (!driver.ok()) return driver.take_status();
  const ScopedContext context(*driver.value(), wanted);
  if (!context.status().ok()) return context.status();
  return body();
}

template <typename Stats>
Status check_size(const Stats* stats, const char* name) {
  if (stats == nullptr) return spillway::is_null("stats");
  if (stats->size >= offsetof(Stats, version) + sizeof(stats->version)) return {};
  return Status::invalid_argument(fmt::format("stats->size is {}; it must be set to sizeof({}), here {}",
                                              stats->size, name, sizeof(Stats)));
}

template <typename Stats>
void fill(Stats* stats, Stats all, uint32_t version) {
  all.size = static_cast<uint32_t>(std::min<size_t>(stats->size, sizeof(Stats)));
  all.version = version;
  std::memcpy(stats, &all, all.size);
}

spw_region_stats to_abi(const RegionReport& report) {
  spw_region_stats stats{};
  stats.size = sizeof(stats);
  stats.version = SPW_REGION_STATS_VERSION;
  stats.device_bytes = report.usage.device_bytes;
  stats.host_bytes = report.usage.host_bytes;
  stats.disk_bytes = report.usage.disk_bytes;
  stats.discarded_bytes = report.usage.discarded_bytes;
  stats.lost_bytes = report.usage.lost_bytes;
  stats.pins = report.pins;
  stats.priority = report.priority;
  stats.evictions = report.evictions;
  stats.restores = report.restores;
  stats.evict_ns = report.evict_ns;
  stats.restore_ns = report.restore_ns;
  return stats;
}

RegionUsage usage_of(DeviceTiers& tiers) {
  RegionUsage sum;
  for (const auto& [tag, report] : tiers.regions().reports()) {
    sum.host_bytes += report.usage.host_bytes;
    sum.disk_bytes += report.usage.disk_bytes;
  }
  return sum;
}

}  // namespace

extern "C" {

// ---- Regions

spw_status spw_region_begin(int device, const char* tag) {
  return with_regions(device, tag,
                      [](Regions& regions, const std::string& name) { return regions.begin(name); });
}

spw_status spw_region_end(int device, const char* tag) {
  return with_regions(device, tag,
                      [](Regions& regions, const std::string& name) { return regions.end(name); });
}

spw_status spw_region_begin_none(void) {
  return spillway::guarded([]() -> Status {
    Regions::begin_none();
    return {};
  });
}

spw_status spw_region_end_none(void) {
  return spillway::guarded([] { return Regions::end_none(); });
}

spw_status spw_region_set_default(const char* tag) {
  return spillway::guarded([&]() -> Status {
    if (tag == nullptr) return Process::instance().set_default_region({});
    if (*tag == '\0') return Regions::check_tag(tag);
    return Process::instance().set_default_region(tag);
  });
}

spw_status spw_region_pool(int device, const char* tag, spw_pool_id* id) {
  return with_regions(device, tag, [&](Regions& regions, const std::string& name) -> Status {
    if (id == nullptr) return spillway::is_null("id");
    Result<spillway::PoolId> pool = regions.pool(name);
    if (!pool.ok()) return pool.take_status();
    *id = {pool->first, pool->second};
    return {};
  });
}

spw_status spw_region_evict(int device, const char* tag, spw_tier tier) {
  return with_regions(device, tag, [&](Regions& regions, const std::string& name) -> Status {
    switch (tier) {
      case SPW_TIER_HOST:
        return regions.evict(name, SpillTo::kHost);
      case SPW_TIER_DISK:
        return regions.evict(name, SpillTo::kDisk);
      case SPW_TIER_NOWHERE:
        return regions.evict(name, SpillTo::kNowhere);
      case SPW_TIER_DEVICE:
        break;
    }
    return Status::invalid_argument(
        fmt::format("tier {} is none to evict to: use host, disk or nowhere", static_cast<int>(tier)));
  });
}

spw_status spw_region_restore(int device, const char* tag) {
  return with_regions(device, tag,
                      [](Regions& regions, const std::string& name) { return regions.restore(name); });
}

spw_status spw_region_prefetch(int device, const char* tag) {
  return with_regions(device, tag,
                      [](Regions& regions, const std::string& name) { return regions.prefetch(name); });
}

spw_status spw_region_read(int device, const char* tag, const void* address, size_t bytes, void* out) {
  return with_regions(device, tag, [&](Regions& regions, const std::string& name) -> Status {
    if (address == nullptr || out == nullptr) return spillway::is_null("address or out");
    return regions.read(name, reinterpret_cast<uint64_t>(address), bytes, static_cast<std::byte*>(out));
  });
}

spw_status spw_region_pin(int device, const char* tag) {
  return with_regions(device, tag,
                      [](Regions& regions, const std::string& name) { return regions.pin(name); });
}

spw_status spw_region_unpin(int device, const char* tag) {
  return with_regions(device, tag,
                      [](Regions& regions, const std::string& name) { return regions.unpin(name); });
}

spw_status spw_region_set_priority(int device, const char* tag, int priority) {
  return with_regions(device, tag, [&](Regions& regions, const std::string& name) {
    return regions.set_priority(name, priority);
  });
}

spw_status spw_region_set_codec(int device, const char* tag, spw_codec codec) {
  return with_regions(device, tag, [&](Regions& regions, const std::string& name) -> Status {
    switch (codec) {
      case SPW_CODEC_NONE:
        return regions.set_codec(name, Codec::kNone);
      case SPW_CODEC_LZ4:
        return regions.set_codec(name, Codec::kLz4);
      case SPW_CODEC_ZSTD:
        return regions.set_codec(name, Codec::kZstd);
    }
    return Status::invalid_argument(
        fmt::format("codec {} is none: use none, lz4 or zstd", static_cast<int>(codec)));
  });
}

spw_status spw_region_release(int device, const char* tag) {
  return with_regions(device, tag,
                      [](Regions& regions, const std::string& name) { return regions.release(name); });
}

spw_status spw_region_stats_get(int device, const char* tag, spw_region_stats* stats) {
  return with_regions(device, tag, [&](Regions& regions, const std::string& name) -> Status {
    if (Status status = check_size(stats, "spw_region_stats"); !status.ok()) return status;
    Result<RegionReport> report = regions.report(name);
    if (!report.ok()) return report.take_status();
    fill(stats, to_abi(report.value()), SPW_REGION_STATS_VERSION);
    return {};
  });
}

spw_status spw_region_walk(int device, spw_region_visitor visit, void* context) {
  return with_tiers(device, [&](DeviceTiers& tiers) -> Status {
    if (visit == nullptr) return spillway::is_null("visit");
    for (const auto& [tag, report] : tiers.regions().reports()) {
      const spw_region_stats stats = to_abi(report);
      if (visit(tag.c_str(), &stats, context) != 0) break;
    }
    return {};
  });
}

// ---- Phases

spw_status spw_phase(int device, const char* phase, uint64_t* given_bytes) {
  return spillway::guarded([&]() -> Status {
    if (given_bytes != nullptr) *given_bytes = 0;
    if (phase == nullptr) return spillway::is_null("phase");
    const std::string name = phase;
    if (name == "busy") {
      if (spillway::Arena* arena = Process::existing(device); arena != nullptr) arena->take_back();
      return {};
    }
    if (name != "idle") {
      return Status::invalid_argument(fmt::format("'{}' is no phase: use idle or busy", name.substr(0, 80)));
    }
    Result<spillway::EvictionResult> result = Process::instance().idle(device, [] { return true; });
    if (!result.ok()) return result.take_status();
    if (given_bytes != nullptr) *given_bytes = result->bytes;
    return {};
  });
}

// ---- Stashes

spw_status spw_stash_streams(int device, spw_stream* out, spw_stream* in) {
  return with_tiers(device, [&](DeviceTiers& tiers) -> Status {
    if (out == nullptr || in == nullptr) return spillway::is_null("out or in");
    *out = tiers.copy_streams().out();
    *in = tiers.copy_streams().in();
    return {};
  });
}

spw_status spw_stash_put(int device, const void* pointer, size_t bytes, spw_stream stream, spw_tier tier,
                         spw_stash** stash) {
  return with_tiers(device, [&](DeviceTiers& tiers) -> Status {
    if (pointer == nullptr || stash == nullptr) return spillway::is_null("pointer or stash");
    *stash = nullptr;
    if (tier != SPW_TIER_HOST && tier != SPW_TIER_DISK) {
      return Status::invalid_argument(
          fmt::format("tier {} is none for a stash: use host or disk", static_cast<int>(tier)));
    }
    Result<spillway::Arena*> arena = Process::instance().arena(device);
    if (!arena.ok()) return arena.take_status();
    const CUcontext context = arena.value()->context();
    return in_context(context, [&]() -> Status {
      auto handle = std::make_unique<spw_stash>(spw_stash{tiers, context, nullptr});
      Result<Stashes::Stash*> made =
          tiers.stashes().put(reinterpret_cast<CUdeviceptr>(pointer), bytes, stream,
                              tier == SPW_TIER_DISK ? Stashes::To::kDisk : Stashes::To::kHost);
      if (!made.ok()) return made.take_status();
      handle->stash = made.value();
      *stash = handle.release();
      return {};
    });
  });
}

spw_status spw_stash_begin_get(spw_stash* stash, void* pointer, spw_stream stream) {
  return spillway::guarded([&]() -> Status {
    if (stash == nullptr || pointer == nullptr) return spillway::is_null("stash or pointer");
    return in_context(stash->context, [&] {
      return stash->tiers.stashes().begin_get(*stash->stash, reinterpret_cast<CUdeviceptr>(pointer), stream);
    });
  });
}

spw_status spw_stash_finish_get(spw_stash* stash, spw_stream stream, int* late) {
  return spillway::guarded([&]() -> Status {
    if (stash == nullptr) return spillway::is_null("stash");
    return in_context(stash->context, [&] {
      bool is_late = false;
      Status status = stash->tiers.stashes().finish_get(*stash->stash, stream, &is_late);
      if (late != nullptr) *late = is_late ? 1 : 0;
      return status;
    });
  });
}

void spw_stash_free(spw_stash* stash) {
  if (stash == nullptr) return;
  (void)spillway::guarded([&]() -> Status {
    return in_context(stash->context, [&]() -> Status {
      stash->tiers.stashes().free(stash->stash);
      return {};
    });
  });
  delete stash;
}

// ---- Tiers

spw_status spw_tier_stats_get(int device, spw_tier_stats* stats) {
  return with_tiers(device, [&](DeviceTiers& tiers) -> Status {
    if (Status status = check_size(stats, "spw_tier_stats"); !status.ok()) return status;
    fill(stats, spillway::tier_stats(tiers, usage_of(tiers)), SPW_TIER_STATS_VERSION);
    return {};
  });
}

spw_status spw_disk_measure(const char* directory, uint64_t bytes, int tune, spw_disk_speed* speed) {
  return spillway::guarded([&]() -> Status {
    if (directory == nullptr) return spillway::is_null("directory");
    if (bytes == 0) return Status::invalid_argument("0 bytes measure nothing");
    if (Status status = check_size(speed, "spw_disk_speed"); !status.ok()) return status;
    const bool is_forced = tune != 0 && tune != SPW_TUNE_UNKNOWN;
    const spillway::DiskTierOptions options =
        is_forced ? Process::instance().disk_options()
                  : Process::instance().disk_options(directory, tune == SPW_TUNE_UNKNOWN);
    spillway::IoOptions io = options.io;
    std::string not_kept;
    if (is_forced) {
      Result<spillway::IoOptions> tuned = spillway::tune_disk(directory, io, options.file.want_direct);
      if (!tuned.ok()) return tuned.take_status();
      io = tuned.value();
      if (Status kept = spillway::TunedDisks().keep(directory, io, options.file.want_direct); !kept.ok())
        not_kept = "not kept for later programs: " + kept.text();
    }
    Result<spillway::DiskSpeed> measured =
        spillway::measure_disk(directory, bytes, io, options.file.want_direct);
    if (!measured.ok()) return measured.take_status();
    spw_disk_speed all{};
    all.write_bytes_per_s = measured->write_bytes_per_s;
    all.read_bytes_per_s = measured->read_bytes_per_s;
    all.write_cpu_s = measured->write_cpu_s;
    all.read_cpu_s = measured->read_cpu_s;
    all.bytes = measured->bytes;
    all.block_bytes = measured->block_bytes;
    all.depth = measured->depth;
    all.is_direct = measured->is_direct ? 1 : 0;
    measured->engine.copy(all.engine, sizeof(all.engine) - 1);
    if (!not_kept.empty()) measured->warning += (measured->warning.empty() ? "" : "; ") + not_kept;
    measured->warning.copy(all.warning, sizeof(all.warning) - 1);
    fill(speed, all, SPW_DISK_SPEED_VERSION);
    return {};
  });
}

}  // extern "C"
