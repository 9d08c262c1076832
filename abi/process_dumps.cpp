// The dumps of a process: what goes into them, and when they are written.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "abi/block_origins.h"
#include "abi/dump_path.h"
#include "abi/dump_trigger.h"
#include "abi/process.h"
#include "driver/context.h"
#include "include/spillway/offload.h"
#include "include/spillway/pinned.h"
#include "stats/dump.h"
#include "stats/dump_prometheus.h"
#include "stats/oom_report.h"
#include "stats/redact.h"
#include "stats/snapshot.h"
#include "stats/whole_file.h"

namespace spillway {
namespace {

using Clock = std::chrono::steady_clock;

// Programs catch errors and try again, some for ever.
constexpr std::chrono::seconds kBetweenOomDumps{10};
constexpr int kMostOomDumps = 32;

std::string text_of(const Dump& dump, DumpFormat format) {
  switch (format) {
    case DumpFormat::kPrometheus:
      return prometheus_text({dump});
    case DumpFormat::kSnapshot:
      return snapshot_pickle(dump);
    case DumpFormat::kJson:
      break;
  }
  return dump_to_json(dump);
}

DumpTiers tiers_of(int device) {
  DumpTiers tiers;
  tiers.stats.size = sizeof tiers.stats;
  (void)spw_tier_stats_get(device, &tiers.stats);
  const spw_region_visitor add = [](const char* tag, const spw_region_stats* stats, void* context) {
    static_cast<DumpTiers*>(context)->regions.push_back({tag, *stats});
    return 0;
  };
  (void)spw_region_walk(device, add, &tiers);
  return tiers;
}

// The arena is null where the device's last context has ended: of it the counters remain.
DumpDevice row_of(int device, const DeviceStats& counted, const Arena* arena, const Driver& driver) {
  DumpDevice row;
  row.ordinal = device;
  if (Result<DeviceProperties> properties = query_device(driver, device); properties.ok()) {
    row.name = properties->name;
    row.uuid = uuid_text(properties->uuid);
    row.total_bytes = properties->total_bytes;
  }
  row.stats = counted;
  if (arena == nullptr) return row;
  row.segments = arena->segments();
  row.free_bytes = arena->device_free_bytes();
  row.climbs = arena->recent_slow_paths();
  for (const auto& [id, held] : arena->pool_bytes()) row.pools.push_back({id.first, id.second, held});
  return row;
}

std::optional<spw_pinned_stats> pinned_stats() {
  if (Process::existing_pinned() == nullptr) return std::nullopt;
  spw_pinned_stats stats{};
  stats.size = sizeof stats;
  if (spw_pinned_stats_get(&stats) != SPW_OK) return std::nullopt;
  return stats;
}

}  // namespace

// The process's mutex is not held while the arenas are looked through: tiers, which may be moving memory, are
// waited for. An arena that is to end waits for the dump.
Dump Process::collect(const char* reason) {
  Dump dump;
  dump.library_version = spw_version();
  dump.process_id = getpid();
  dump.rank = process_rank();
  dump.time_seconds = std::time(nullptr);
  dump.reason = reason;
  bool is_redacted = false;
  std::shared_ptr<const Driver> driver;
  Annotations annotations;
  {
    const Lock lock(mutex_);
    load_config();
    dump.config = config_.values();
    is_redacted = config_.dump_redact;
    driver = driver_;
    annotations = annotations_;
  }
  const SharedLock look(looks_);
  if (driver != nullptr) list_devices(*driver, annotations, dump);
  dump.pinned = pinned_stats();
  BlockOrigins::name_stacks(dump);
  if (is_redacted) redact(dump, this_machine());
  return dump;
}

void Process::list_devices(const Driver& driver, Annotations& annotations, Dump& dump) {
  Allocator* const allocator = published.load(std::memory_order_acquire);
  if (allocator == nullptr) return;
  for (int device = 0; device < Allocator::kMostDevices; ++device) {
    const std::optional<DeviceStats> counted = allocator->counted(device);
    if (!counted) continue;
    DumpDevice& row =
        dump.devices.emplace_back(row_of(device, *counted, allocator->existing(device), driver));
    row.annotations = annotations[device];
    if (existing_tiers(device) != nullptr) row.tiers = tiers_of(device);
  }
}

Status Process::dump(const std::string& path, DumpFormat format, const char* reason) {
  if (Status status = check_dump_path(path); !status.ok()) return status;
  Dump all = collect(reason);
  if (!is_per_device(path)) {
    return write_whole_file(expand_dump_path(path, -1, all.time_seconds), text_of(all, format));
  }
  const std::vector<DumpDevice> devices = std::move(all.devices);
  for (const DumpDevice& device : devices) {
    all.devices = {device};
    Status status =
        write_whole_file(expand_dump_path(path, device.ordinal, all.time_seconds), text_of(all, format));
    if (!status.ok()) return status;
  }
  return {};
}

void Process::read_stats_path(std::vector<std::string>& complaints) {
  const char* path = std::getenv("SPILLWAY_STATS");
  if (path == nullptr || *path == '\0') return;
  if (Status status = check_dump_path(path); !status.ok()) {
    complaints.push_back(fmt::format("SPILLWAY_STATS: {}; no dump will be written", status.text()));
    return;
  }
  stats_path_ = path;
  owner_ = getpid();
  (void)Status().text();  // what the handler uses must outlive it, so must be made before it is registered
  (void)DumpTrigger::instance();
  std::atexit([] { instance().dump_at_exit(); });
}

void Process::start_dumps() {
  owner_ = getpid();
  if (stats_path_.empty()) return;
  dumps_on_oom_.store(config_.dump_on_oom, std::memory_order_relaxed);
  DumpTrigger::instance().start(config_.dump_signal.number, config_.dump_interval.time,
                                [this](const char* reason) { dump_as_asked(stats_path_, reason); });
}

bool Process::notes_origins() const {
  if (config_.dump_stacks != DumpStacks::kAuto) return config_.dump_stacks == DumpStacks::kOn;
  return !stats_path_.empty() && format_of(stats_path_) != DumpFormat::kPrometheus;
}

void Process::dump_as_asked(const std::string& path, const char* reason) noexcept {
  const auto complain = [this](const char* text) {
    if (!complained_.exchange(true)) std::fprintf(stderr, "spillway: SPILLWAY_STATS: %s\n", text);
  };
  try {
    if (Status status = dump(path, format_of(stats_path_), reason); !status.ok()) {
      complain(status.text().c_str());
    }
  } catch (...) {
    complain("no dump was written");
  }
}

void Process::dump_at_exit() noexcept {
  DumpTrigger::instance().stop();
  // A child of fork has its parent's counters, and not its device. Who used no device has nothing to say, and
  // may share its name with who did: torchrun has no rank, as its first worker has rank 0.
  const Allocator* const allocator = published.load(std::memory_order_acquire);
  if (owner_ == getpid() && allocator != nullptr && allocator->was_used()) dump_as_asked(stats_path_, "exit");
}

bool Process::is_new_oom(int device) {
  const Arena* arena = existing(device);
  if (arena == nullptr || oom_dumps_ >= kMostOomDumps) return false;
  const Clock::time_point now = Clock::now();
  if (oom_dumps_ > 0 && now - last_oom_dump_ < kBetweenOomDumps) return false;
  // Asked again with nothing changed in between, it is the same moment.
  const spw_stat blocks = arena->stats().allocation.all;
  const OomMoment moment{device, blocks.allocated, blocks.freed};
  if (oom_dumps_ > 0 && moment == last_oom_) return false;
  last_oom_ = moment;
  last_oom_dump_ = now;
  ++oom_dumps_;
  return true;
}

void Process::dump_on_oom(int device) noexcept {
  if (!dumps_on_oom_.load(std::memory_order_relaxed) || owner_ != getpid()) return;
  // What a callback was refused inside of a climb is not the end of that climb.
  if (LastRungs::is_inside()) return;
  try {
    // Others that fail meanwhile are of the same moment.
    if (!oom_mutex_.try_lock()) return;
    const Lock lock(oom_mutex_, kAdoptLock);
    if (is_new_oom(device)) dump_as_asked(with_word(stats_path_, "oom"), "oom");
  } catch (...) {
    // The program gets its error in any case.
  }
}

std::string Process::oom_holders_text(int device) {
  const std::string sites = BlockOrigins::largest_text(
      BlockOrigins::are_noted() ? existing(device)->segments() : std::vector<SegmentRow>{});
  return existing_tiers(device) == nullptr ? sites : sites + oom_tiers(tiers_of(device));
}

Status Process::failed_alloc(int device, Status status) {
  if (status.code() != SPW_ERROR_OUT_OF_MEMORY || existing(device) == nullptr) return status;
  dump_on_oom(device);
  return Status::out_of_memory(status.text() + oom_holders_text(device));
}

}  // namespace spillway
