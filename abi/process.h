// Holds what the C ABI works on: the one allocator of the process, its configuration, and each thread's last
// error.
//
// The configuration is read from the environment when something first needs it. The driver is opened, and the
// allocator made, by the first call that needs a device; a failure to do so is reported and tried again by
// the next call. Nothing is torn down at exit: the driver may be gone by then, and it takes the memory back
// itself.
//
// With debug:guard, each arena has a guard, and the program's memory comes from that.
//
// Thread-safe. The way to an arena that exists takes no lock.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "abi/config.h"
#include "abi/dump_path.h"
#include "allocator/allocator.h"
#include "allocator/guard.h"
#include "driver/driver.h"
#include "driver/status.h"
#include "include/spillway/spillway.h"
#include "offload/pinned_blocks.h"
#include "offload/pinned_growth.h"
#include "offload/spill/device_tiers.h"
#include "stats/dump.h"
#include "stats/lock.h"

namespace spillway {

class Process {
 public:
  static Process& instance();

  // Null where the device was not used yet.
  static Arena* existing(int device) {
    Allocator* allocator = published.load(std::memory_order_acquire);
    return allocator == nullptr ? nullptr : allocator->existing(device);
  }
  // See Allocator::counted.
  static std::optional<DeviceStats> counted(int device) {
    const Allocator* allocator = published.load(std::memory_order_acquire);
    return allocator == nullptr ? std::nullopt : allocator->counted(device);
  }
  // Created if need be. Errors: config (strict), those of Driver::open and Arena::create.
  Result<Arena*> arena(int device);
  // Null where the device was not used yet. Errors: invalid_argument (no such device), those of Driver::open.
  Result<Arena*> used_arena(int device);

  // Tells whether memory comes from guards. To be asked after existing(): an arena appears after this is
  // known.
  static bool is_guarded() { return guarded.load(std::memory_order_relaxed); }
  // Tells whether an allocation has more to do than to allocate: a guard, or a stack for the trace or the
  // dumps. To be asked likewise.
  static bool is_watched() { return watched.load(std::memory_order_relaxed); }
  // The guard of a device, made if need be with its arena; null without debug:guard. Errors: as arena().
  Result<Guard*> guard(int device);
  // Null where there is none.
  static Guard* existing_guard(int device);
  // The guard that knows the address: of a live block or one in quarantine, or else of one that was; or null.
  static Guard* guard_of(const void* pointer);

  // See spw_add_oom_callback.
  Status add_oom_callback(int device, spw_oom_callback callback, void* context);
  Status remove_oom_callback(int device, spw_oom_callback callback, void* context);

  Result<std::shared_ptr<const Driver>> driver();
  Status configure(const char* text);
  Config config();

  // The pinned blocks of the process, made if need be. Errors: config (strict), those of Driver::open.
  Result<PinnedBlocks*> pinned();
  // Null where there are none.
  static PinnedBlocks* existing_pinned() { return published_pinned.load(std::memory_order_acquire); }

  // Returns what lies below a device, made if need be. Errors: unsupported (debug:guard, backend:malloc),
  // those of arena() and DeviceTiers::create.
  Result<DeviceTiers*> tiers(int device);
  // Null where there is nothing.
  DeviceTiers* existing_tiers(int device);
  // See spw_region_set_default; empty is none.
  Status set_default_region(const std::string& tag);
  // Pinned memory that nothing is in goes back to the host.
  void trim_pinned();

  // Returns what the configuration says of the disk below a device.
  DiskTierOptions disk_options();
  // Returns the same for this directory's disk, with the settings that are known to serve it. `finds`: or
  // that are found and kept now, in up to 5 s.
  DiskTierOptions disk_options(const std::string& directory, bool finds = false);

  // See spw_phase. Asks before each region that would go.
  Result<EvictionResult> idle(int device, const std::function<bool()>& goes_on);

  // See spw_annotate.
  Status annotate(int device, const std::string& name, uint64_t bytes);
  Result<uint64_t> annotation(int device, const std::string& name);

  // process_dumps.cpp. See spw_dump; `reason` goes into the dump.
  Status dump(const std::string& path, DumpFormat format, const char* reason);
  // Returns what an allocation on the device that failed is to say to the program: of device memory that has
  // run out also what lies outside, and a dump is written where SPILLWAY_STATS asks for it. No lock may be
  // held.
  Status failed_alloc(int device, Status status);
  // Ends the arena of a device whose context ends; false where more than blocks depends on it (spilled
  // regions, guards, callbacks), and it stays. No call of the program may be using it; the process's own
  // dumps and its live page are waited for.
  bool drop_arena(int device);

  // The dump that SPILLWAY_STATS asks for, if it does. A failure costs one line on stderr.
  void dump_at_exit() noexcept;
  void check_guards_at_exit() noexcept;
  void stop_growth_at_exit() noexcept;

 private:
  Process() = default;
  void load_config() SPW_REQUIRES(mutex_);
  Status open_driver() SPW_REQUIRES(mutex_);
  Result<Arena*> create_arena(int device) SPW_REQUIRES(mutex_);
  Result<Guard*> create_guard(int device) SPW_REQUIRES(mutex_);
  // Limits beyond every device: a line on stderr, once. Errors: config (strict).
  Status check_limits() SPW_REQUIRES(mutex_);
  // UINT64_MAX where the driver does not say.
  uint64_t largest_device_bytes() const SPW_REQUIRES(mutex_);
  ArenaOptions options_for(uint64_t total_bytes) const SPW_REQUIRES(mutex_);
  Result<uint64_t> total_bytes(int device) const SPW_REQUIRES(mutex_);
  DiskTierOptions configured_disk() const SPW_REQUIRES(mutex_);
  // Tells whether the disk's settings are not the user's own.
  bool may_tune() const SPW_REQUIRES(mutex_);
  PinnedBlocks& make_pinned() SPW_REQUIRES(mutex_);
  // Without the default region.
  Result<DeviceTiers*> make_tiers(int device) SPW_EXCLUDES(mutex_);
  // On a device that is used for the first time. What goes wrong is one line on stderr.
  void begin_default_region(int device) noexcept SPW_EXCLUDES(choosing_default_, mutex_);
  // Pins Config::pinned_ahead, on the node of the arena's device.
  Status pin_ahead(Arena& arena) SPW_REQUIRES(mutex_);
  void place_in_host_memory(Arena& arena) SPW_REQUIRES(mutex_);
  // Watches as Config::idle_after asks.
  void watch_for_idleness(Arena& arena) SPW_REQUIRES(mutex_);

  // process_options.cpp. An option that may change at run time, and what its change does beyond being there
  // for whoever reads it next.
  struct RunTimeOption {
    std::string_view name;
    // To a device in use, before the change is kept.
    Status (*set_on_device)(Arena&, const Config&, uint64_t device_bytes) = nullptr;
    // To pinned memory, before the change is kept.
    void (*set_on_pinned)(PinnedArena&, const Config&, uint64_t host_bytes) = nullptr;
    // In the process, once it is kept.
    Status (Process::*follow)() = nullptr;
  };
  static std::span<const RunTimeOption> run_time_options();
  // Refuses what may be set only before a device is in use, and what is more than a device has. Errors:
  // invalid_state, config.
  Status check_in_use(const Config& changed) SPW_REQUIRES(mutex_);
  // Errors: the first of any device.
  Status set_on_devices(const Config& changed) SPW_REQUIRES(mutex_);
  Status follow_pinned_ahead() SPW_REQUIRES(mutex_);

  struct OomMoment {
    int device = -1;
    int64_t allocated = 0;  // blocks so far
    int64_t freed = 0;
    bool operator==(const OomMoment&) const = default;
  };
  // Adds what is wrong with SPILLWAY_STATS to the complaints.
  void read_stats_path(std::vector<std::string>& complaints) SPW_REQUIRES(mutex_);
  void start_dumps() SPW_REQUIRES(mutex_);
  // Tells what dump_stacks comes to: whether stacks are noted.
  bool notes_origins() const SPW_REQUIRES(mutex_);
  // Takes the mutex, and then the locks of what it looks through.
  Dump collect(const char* reason) SPW_EXCLUDES(mutex_);
  using Annotations = std::map<int, std::map<std::string, uint64_t>>;  // by device, then name
  void list_devices(const Driver& driver, Annotations& annotations, Dump& dump) SPW_REQUIRES_SHARED(looks_);
  // A dump that SPILLWAY_STATS asks for. The first failure costs one line on stderr.
  void dump_as_asked(const std::string& path, const char* reason) noexcept;
  void dump_on_oom(int device) noexcept;
  // Tells whether this out-of-memory error is to be dumped, which is then noted.
  bool is_new_oom(int device) SPW_REQUIRES(oom_mutex_);
  std::string oom_holders_text(int device);
  void show_live(const Arena& arena) const SPW_REQUIRES(mutex_);
  void end_arena(int device) SPW_REQUIRES(looks_, mutex_);

  static std::atomic<Allocator*> published;            // owned_allocator_, for those without the mutex
  static std::atomic<PinnedBlocks*> published_pinned;  // never freed
  static std::atomic<bool> guarded;
  static std::atomic<bool> watched;
  static std::array<std::atomic<Guard*>, Allocator::kMostDevices> guards;  // never freed

  // Shared while a dump looks through the arenas, exclusive while one of them ends. Before mutex_.
  SharedMutex looks_;
  BlockingMutex mutex_;
  bool has_complained_of_limits_ SPW_GUARDED_BY(mutex_) = false;
  bool config_loaded_ SPW_GUARDED_BY(mutex_) = false;
  Config config_ SPW_GUARDED_BY(mutex_);
  Status strict_error_ SPW_GUARDED_BY(mutex_);
  // These belong to the dumps that SPILLWAY_STATS asks for. The path is set once, before any of them.
  std::string stats_path_;
  std::atomic<pid_t> owner_{0};  // the process whose counters these are
  std::atomic<bool> dumps_on_oom_{false};
  std::atomic<bool> complained_{false};
  BlockingMutex oom_mutex_;
  OomMoment last_oom_ SPW_GUARDED_BY(oom_mutex_);
  std::chrono::steady_clock::time_point last_oom_dump_ SPW_GUARDED_BY(oom_mutex_);
  int oom_dumps_ SPW_GUARDED_BY(oom_mutex_) = 0;
  std::shared_ptr<const Driver> driver_ SPW_GUARDED_BY(mutex_);
  Tracer* tracer_ SPW_GUARDED_BY(mutex_) = nullptr;
  std::unique_ptr<Allocator> owned_allocator_ SPW_GUARDED_BY(mutex_);
  std::map<std::tuple<int, spw_oom_callback, void*>, LastRungs::Id> oom_callbacks_ SPW_GUARDED_BY(mutex_);
  std::map<int, DeviceTiers*> tiers_ SPW_GUARDED_BY(mutex_);  // never freed
  BlockingMutex choosing_default_;                            // before mutex_
  std::string default_region_ SPW_GUARDED_BY(choosing_default_);
  std::atomic<bool> has_default_region_{false};
  PinnedGrowth* growth_ SPW_GUARDED_BY(mutex_) = nullptr;  // never freed; null while nothing is pinned ahead
  Annotations annotations_ SPW_GUARDED_BY(mutex_);
};

// Keeps the text as the thread's last error, and returns the code. Success passes through.
spw_status report(const Status& status) noexcept;
const char* last_error() noexcept;

}  // namespace spillway
