// Says what the process has below its devices: pinned memory, the disk, regions and stashes, and when they
// are made.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "abi/idle_watch.h"
#include "abi/live.h"
#include "abi/machine_limits.h"
#include "abi/process.h"
#include "offload/host_overflow.h"
#include "offload/io/measure.h"
#include "offload/io/tuned_disks.h"
#include "stats/host_memory.h"

namespace spillway {
void Process::place_in_host_memory(Arena& arena) {
  HostOverflowOptions options;
  options.most_bytes = config_.overflow_limit.of(read_host_memory().total_bytes);
  options.least_block_bytes = config_.overflow_min.bytes;
  options.memory = config_.overflow_memory;
  arena.last_rungs().set_placement(
      HostOverflow::create(*driver_, arena, make_pinned().arena(), options)->placement());
}

Result<PinnedBlocks*> Process::pinned() {
  if (PinnedBlocks* blocks = existing_pinned(); blocks != nullptr) return blocks;
  const Lock lock(mutex_);
  if (Status status = open_driver(); !status.ok()) return status;
  return &make_pinned();
}

PinnedBlocks& Process::make_pinned() {
  if (existing_pinned() == nullptr) {
    PinnedArenaOptions options;
    options.most_bytes = config_.pinned_limit.of(read_host_memory().total_bytes);
    options.available_bytes = [] { return read_host_memory().available_bytes; };
    options.touch_threads = std::min(config_.pinned_threads.value, std::thread::hardware_concurrency());
    published_pinned.store(new PinnedBlocks(driver_, std::move(options)), std::memory_order_release);
    LiveWriter::instance().add_pinned(*existing_pinned());
  }
  return *existing_pinned();
}

Status Process::pin_ahead(Arena& arena) {
  const uint64_t bytes = config_.pinned_ahead.of(read_host_memory().total_bytes);
  if (growth_ == nullptr && bytes > 0) {
    growth_ = new PinnedGrowth(*driver_, arena.context(), make_pinned().arena());
    // A child of fork has no such thread, and nothing to wait for.
    static const pid_t kProcess = getpid();
    std::atexit([] {
      if (getpid() == kProcess) instance().stop_growth_at_exit();
    });
  }
  return growth_ == nullptr ? Status() : growth_->reach(bytes);
}

void Process::stop_growth_at_exit() noexcept {
  try {
    PinnedGrowth* growth = nullptr;
    {
      const Lock lock(mutex_);
      growth = growth_;
    }
    growth->stop();
  } catch (...) {
    // The process ends with the thread then.
  }
}

DiskTierOptions Process::disk_options() {
  const Lock lock(mutex_);
  load_config();
  return configured_disk();
}

bool Process::may_tune() const {
  const Config defaults;
  return config_.spill_tuning != Tuning::kOff && config_.spill_block.bytes == defaults.spill_block.bytes &&
         config_.spill_depth.value == defaults.spill_depth.value;
}

DiskTierOptions Process::disk_options(const std::string& directory, bool finds) {
  DiskTierOptions options;
  {
    const Lock lock(mutex_);
    load_config();
    options = configured_disk();
    if (directory.empty() || !may_tune()) return options;
    finds = finds || (config_.spill_tuning == Tuning::kAuto && directory == config_.spill_dir);
  }
  const TunedDisks kept;
  const bool is_direct = options.file.want_direct;
  if (const std::optional<IoOptions> known = kept.find(directory, options.io, is_direct)) {
    options.io = *known;
  } else if (finds) {
    // What goes wrong shows when the disk is used.
    Result<IoOptions> found = tune_disk(directory, options.io, is_direct);
    if (!found.ok()) return options;
    options.io = found.value();
    (void)kept.keep(directory, options.io, is_direct);
  }
  return options;
}

Result<EvictionResult> Process::idle(int device, const std::function<bool()>& goes_on) {
  Result<DeviceTiers*> below = tiers(device);
  if (!below.ok()) return below.take_status();
  uint64_t above = 0;
  uint64_t down_to = 0;
  {
    const Lock lock(mutex_);
    Result<uint64_t> total = total_bytes(device);
    if (!total.ok()) return total.take_status();
    above = config_.evict_above.of(total.value());
    down_to = std::min(above, config_.evict_below.of(total.value()));
  }
  Result<EvictionResult> result = below.value()->regions().relieve(above, down_to, goes_on);
  below.value()->disk().give_back();
  return result;
}

void Process::watch_for_idleness(Arena& arena) {
  const int device = arena.device();
  const auto calls = [&arena] {
    const spw_stat blocks = arena.stats().allocation.all;
    return static_cast<uint64_t>(blocks.allocated + blocks.freed) + Regions::uses();
  };
  // A region that the program uses says that it is back, and may need the next.
  const auto relieve = [this, device](const std::function<bool()>& goes_on) {
    const uint64_t before = Regions::uses();
    Result<EvictionResult> result = idle(device, [&] { return goes_on() && Regions::uses() == before; });
    return result.ok() && result->is_complete;
  };
  IdleWatch::instance().add(config_.idle_after.time, {.ordinal = device,
                                                      .calls = calls,
                                                      .is_quiet = [&arena] { return arena.is_quiet(); },
                                                      .relieve = relieve});
}

DiskTierOptions Process::configured_disk() const {
  DiskTierOptions options;
  options.file.directory = config_.spill_dir;
  const uint64_t total = config_.spill_dir.empty() ? 0 : file_system_bytes(config_.spill_dir);
  options.file.most_bytes = config_.spill_limit.of(total);
  options.file.allow_ram_backed = config_.spill_ram_backed;
  options.file.want_direct = config_.spill_direct;
  options.daily_write_bytes = config_.spill_daily_writes.of(total);
  options.io.block_bytes = config_.spill_block.bytes;
  options.io.depth = config_.spill_depth.value;
  options.io.threads = config_.spill_threads.value;
  options.io.is_idle = config_.spill_priority == DiskPriority::kIdle;
  options.buffers = config_.spill_buffers.value;
  options.pins_buffers = config_.spill_pinned;
  options.io.use_uring = config_.spill_engine == IoEngineKind::kAuto;
  return options;
}

DeviceTiers* Process::existing_tiers(int device) {
  const Lock lock(mutex_);
  const auto found = tiers_.find(device);
  return found == tiers_.end() ? nullptr : found->second;
}

void Process::trim_pinned() {
  std::vector<DeviceTiers*> all;
  {
    const Lock lock(mutex_);
    for (const auto& [device, tiers] : tiers_) all.push_back(tiers);
  }
  for (DeviceTiers* tiers : all) tiers->give_up_host_memory();
  if (PinnedBlocks* blocks = existing_pinned(); blocks != nullptr) blocks->trim();
}

Result<DeviceTiers*> Process::tiers(int device) {
  if (DeviceTiers* tiers = existing_tiers(device); tiers != nullptr) return tiers;
  Result<DeviceTiers*> tiers = make_tiers(device);
  if (tiers.ok()) begin_default_region(device);
  return tiers;
}

void Process::begin_default_region(int device) noexcept {
  if (!has_default_region_.load(std::memory_order_acquire)) return;
  Status status = caught([&]() -> Status {
    const Lock choosing(choosing_default_);
    Result<DeviceTiers*> tiers = make_tiers(device);
    return tiers.ok() ? tiers.value()->regions().set_default(default_region_) : tiers.take_status();
  });
  if (status.ok()) return;
  std::fprintf(stderr, "spillway: device %d has no default region: %s\n", device, status.text().c_str());
}

Status Process::set_default_region(const std::string& tag) {
  if (!tag.empty()) {
    if (Status status = Regions::check_tag(tag); !status.ok()) return status;
    const Config config = this->config();
    if (config.debug == Debug::kGuard || config.backend == Backend::kMalloc)
      return Status::unsupported("memory cannot be spilled with debug:guard, nor with backend:malloc");
  }
  const Lock choosing(choosing_default_);
  std::vector<Regions*> changed;
  for (int device = 0; device < Allocator::kMostDevices; ++device) {
    if (existing(device) == nullptr) continue;
    Result<DeviceTiers*> tiers = make_tiers(device);
    Status status = tiers.ok() ? tiers.value()->regions().set_default(tag) : tiers.take_status();
    if (!status.ok()) {
      for (Regions* regions : changed) (void)regions->set_default(default_region_);
      return status;
    }
    changed.push_back(&tiers.value()->regions());
  }
  default_region_ = tag;
  has_default_region_.store(!tag.empty(), std::memory_order_release);
  return {};
}

Result<DeviceTiers*> Process::make_tiers(int device) {
  if (DeviceTiers* tiers = existing_tiers(device); tiers != nullptr) return tiers;
  Result<PinnedBlocks*> blocks = pinned();
  if (!blocks.ok()) return blocks.take_status();
  const DiskTierOptions disk = disk_options(disk_options().file.directory);
  const Lock lock(mutex_);
  Result<Arena*> arena = create_arena(device);
  if (!arena.ok()) return arena.take_status();
  if (is_guarded()) return Status::unsupported("memory cannot be spilled with debug:guard");
  if (config_.backend == Backend::kMalloc)
    return Status::unsupported("memory cannot be spilled with backend:malloc");
  if (const auto found = tiers_.find(device); found != tiers_.end()) return found->second;
  Result<std::unique_ptr<DeviceTiers>> made =
      DeviceTiers::create(*driver_, *arena.value(), blocks.value()->arena(), disk, config_.spill_codec);
  if (!made.ok()) return made.take_status();
  DeviceTiers* tiers = tiers_[device] = made.value().release();
  LiveWriter::instance().add_tiers(device, *tiers);
  (void)pin_ahead(*arena.value());  // without a thread memory is pinned when it is needed
  watch_for_idleness(*arena.value());
  return tiers;
}

}  // namespace spillway
