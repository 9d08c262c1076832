#include "abi/process.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "abi/block_origins.h"
#include "abi/live.h"
#include "abi/machine_limits.h"
#include "abi/trace.h"
#include "allocator/size_classes.h"
#include "driver/context.h"
#include "include/spillway/spillway.h"

namespace spillway {
namespace {

static_assert(SmallSize::kLargest == kLargestSmallBytes);

Status check_annotation(const std::string& name) {
  constexpr size_t kMostLetters = 64;
  const bool is_name = std::all_of(name.begin(), name.end(), [](char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9') || letter == '_';
  });
  if (is_name && !name.empty() && name.size() <= kMostLetters) return {};
  return Status::invalid_argument(
      fmt::format("'{}' is no name for an annotation: use 1 to {} lower-case letters, digits and _",
                  name.substr(0, 80), kMostLetters));
}

}  // namespace

std::atomic<Allocator*> Process::published{nullptr};
std::atomic<PinnedBlocks*> Process::published_pinned{nullptr};
std::atomic<bool> Process::guarded{false};
std::atomic<bool> Process::watched{false};
std::array<std::atomic<Guard*>, Allocator::kMostDevices> Process::guards{};

Process& Process::instance() {
  static Process& process = *new Process;
  return process;
}

void Process::load_config() {
  if (config_loaded_) return;
  config_loaded_ = true;
  std::vector<std::string> complaints;
  config_ = config_from_environment(complaints);
  read_stats_path(complaints);
  for (const std::string& complaint : complaints) {
    if (!config_.strict) std::fprintf(stderr, "spillway: %s\n", complaint.c_str());
  }
  if (config_.strict && !complaints.empty()) strict_error_ = Status::config(complaints.front());
}

Status Process::open_driver() {
  load_config();
  if (!strict_error_.ok()) return strict_error_;
  if (owned_allocator_ != nullptr) return {};
  Result<std::shared_ptr<const Driver>> driver = Driver::open();
  if (!driver.ok()) return driver.take_status();
  driver_ = driver.value();
  if (Status status = check_limits(); !status.ok()) return status;
  Result<std::unique_ptr<Allocator>> made =
      Allocator::create(driver_, [this](int device) SPW_REQUIRES(mutex_) -> Result<ArenaOptions> {
        Result<uint64_t> total = total_bytes(device);
        if (!total.ok()) return total.take_status();
        return options_for(total.value());
      });
  if (!made.ok()) return made.take_status();
  owned_allocator_ = std::move(made.value());
  published.store(owned_allocator_.get(), std::memory_order_release);
  start_dumps();
  return {};
}

Status Process::check_limits() {
  const std::optional<std::string> mistake =
      beyond_devices(Config(), config_, [this]() SPW_REQUIRES(mutex_) { return largest_device_bytes(); });
  if (!mistake.has_value()) return {};
  if (config_.strict) return Status::config(*mistake);
  if (!std::exchange(has_complained_of_limits_, true))
    std::fprintf(stderr, "spillway: %s; all of it may be used\n", mistake->c_str());
  return {};
}

uint64_t Process::largest_device_bytes() const {
  uint64_t most = 0;
  int count = 0;
  if (driver_->cuDeviceGetCount(&count) != CUDA_SUCCESS) return UINT64_MAX;
  for (int device = 0; device < count; ++device) {
    Result<uint64_t> total = total_bytes(device);
    if (!total.ok()) return UINT64_MAX;
    most = std::max(most, total.value());
  }
  return most;
}

ArenaOptions Process::options_for(uint64_t total_bytes) const {
  ArenaOptions options;
  options.limit_bytes = config_.limit.of(total_bytes);
  options.soft_limit_bytes = config_.soft_limit.of(total_bytes);
  options.reserve_bytes = config_.reserve.of(total_bytes);
  options.headroom_bytes = config_.headroom_of(total_bytes);
  options.slack_percent = config_.slack.percent;
  options.use_vmm = config_.backend == Backend::kVmm;
  options.exportable = config_.ipc;
  options.share_edges = config_.share_edges;
  options.check_streams = config_.check_streams;
  options.careful = config_.is_careful();
  options.on_broken = [](const Status& found) {
    std::fprintf(stderr, "spillway: the counters are wrong: %s\n", found.text().c_str());
  };
  options.small_limit_bytes = config_.max_small_size.bytes;
  options.tracer = tracer_;
  return options;
}

Result<uint64_t> Process::total_bytes(int device) const {
  Result<DeviceProperties> properties = query_device(*driver_, device);
  if (!properties.ok()) return properties.take_status();
  return uint64_t{properties->total_bytes};
}

Result<Arena*> Process::arena(int device) {
  if (Arena* arena = existing(device); arena != nullptr) return arena;
  Result<Arena*> arena = [&] {
    const Lock lock(mutex_);
    return create_arena(device);
  }();
  if (arena.ok()) begin_default_region(device);
  return arena;
}

Result<Arena*> Process::create_arena(int device) {
  if (Status status = open_driver(); !status.ok()) return status;
  // Fixed once there is an arena: see configure().
  guarded.store(config_.debug == Debug::kGuard, std::memory_order_relaxed);
  tracer_ = ProcessTrace::start(config_);
  if (notes_origins()) BlockOrigins::start();
  watched.store(is_guarded() || ProcessTrace::notes_stacks() || BlockOrigins::are_noted(),
                std::memory_order_relaxed);
  const bool is_new = owned_allocator_->existing(device) == nullptr;
  Result<Arena*> arena = owned_allocator_->arena(device);
  if (arena.ok() && is_new && config_.overflow == Overflow::kHost) place_in_host_memory(*arena.value());
  if (arena.ok() && is_new && config_.live) show_live(*arena.value());
  return arena;
}

Guard* Process::existing_guard(int device) {
  if (device < 0 || device >= Allocator::kMostDevices) return nullptr;
  return guards[static_cast<size_t>(device)].load(std::memory_order_acquire);
}

Result<Guard*> Process::guard(int device) {
  if (Guard* guard = existing_guard(device); guard != nullptr) return guard;
  const Lock lock(mutex_);
  return create_guard(device);
}

Result<Guard*> Process::create_guard(int device) {
  Result<Arena*> arena = create_arena(device);
  if (!arena.ok()) return arena.take_status();
  if (!is_guarded()) return nullptr;
  if (Guard* guard = existing_guard(device); guard != nullptr) return guard;
  Result<uint64_t> total = total_bytes(device);
  if (!total.ok()) return total.take_status();
  const auto print = [](const std::string& text) {
    (void)std::fwrite(text.data(), 1, text.size(), stderr);
    (void)std::fflush(stderr);
  };
  const bool is_first = std::none_of(
      guards.begin(), guards.end(), [](const std::atomic<Guard*>& guard) { return guard.load() != nullptr; });
  auto made =
      std::make_unique<Guard>(driver_, *arena.value(), Guard::default_quarantine_bytes(total.value()), print);
  std::atomic<Guard*>& slot = guards[static_cast<size_t>(device)];
  slot.store(made.release(), std::memory_order_release);
  if (is_first) {
    (void)Status().text();  // as for the dump
    // A child of fork has the memory of its parent, and no device.
    static const pid_t kProcess = getpid();
    std::atexit([] {
      if (getpid() == kProcess) instance().check_guards_at_exit();
    });
  }
  return slot.load(std::memory_order_relaxed);
}

Guard* Process::guard_of(const void* pointer) {
  for (const std::atomic<Guard*>& slot : guards) {
    if (Guard* guard = slot.load(std::memory_order_acquire); guard != nullptr && guard->holds(pointer))
      return guard;
  }
  for (const std::atomic<Guard*>& slot : guards) {
    if (Guard* guard = slot.load(std::memory_order_acquire); guard != nullptr && guard->remembers(pointer))
      return guard;
  }
  return nullptr;
}

void Process::check_guards_at_exit() noexcept {
  for (const std::atomic<Guard*>& slot : guards) {
    try {
      // The program may have taken the device down already: then there is nothing left to check.
      if (Guard* guard = slot.load(std::memory_order_acquire); guard != nullptr) (void)guard->check();
    } catch (...) {
      std::fprintf(stderr, "spillway: guard: no check at the end of the program\n");
    }
  }
}

Status Process::add_oom_callback(int device, spw_oom_callback callback, void* context) {
  if (callback == nullptr) return Status::invalid_argument("callback is NULL");
  const Lock lock(mutex_);
  Result<Arena*> arena = create_arena(device);
  if (!arena.ok()) return arena.take_status();
  const auto [entry, is_new] = oom_callbacks_.try_emplace({device, callback, context}, LastRungs::Id{});
  if (!is_new) {
    return Status::invalid_state(
        fmt::format("device {}: this callback was added already with this context", device));
  }
  try {
    entry->second = arena.value()->last_rungs().add(
        Rung::kCallback, [=](uint64_t bytes) { return callback(device, bytes, context); });
  } catch (...) {
    oom_callbacks_.erase(entry);
    throw;
  }
  return {};
}

Status Process::remove_oom_callback(int device, spw_oom_callback callback, void* context) {
  LastRungs::Id id = 0;
  {
    const Lock lock(mutex_);
    const auto found = oom_callbacks_.find({device, callback, context});
    if (found == oom_callbacks_.end()) {
      return Status::invalid_state(fmt::format("device {}: no such callback was added", device));
    }
    id = found->second;
    oom_callbacks_.erase(found);
  }
  // Without the lock: a call in progress, which is waited for, may need it.
  existing(device)->last_rungs().remove(id);
  return {};
}

Status Process::annotate(int device, const std::string& name, uint64_t bytes) {
  constexpr size_t kMostNames = 64;
  if (Status status = check_annotation(name); !status.ok()) return status;
  if (Result<Arena*> arena = used_arena(device); !arena.ok()) return arena.take_status();
  const Lock lock(mutex_);
  std::map<std::string, uint64_t>& names = annotations_[device];
  if (names.size() >= kMostNames && names.count(name) == 0) {
    return Status::invalid_argument(
        fmt::format("device {} has {} annotations already: use one of their names", device, kMostNames));
  }
  names[name] = bytes;
  return {};
}

Result<uint64_t> Process::annotation(int device, const std::string& name) {
  if (Status status = check_annotation(name); !status.ok()) return status;
  if (Result<Arena*> arena = used_arena(device); !arena.ok()) return arena.take_status();
  const Lock lock(mutex_);
  const auto names = annotations_.find(device);
  if (names == annotations_.end()) return uint64_t{0};
  const auto found = names->second.find(name);
  return found == names->second.end() ? uint64_t{0} : uint64_t{found->second};
}

Result<Arena*> Process::used_arena(int device) {
  if (Arena* arena = existing(device); arena != nullptr) return arena;
  const Lock lock(mutex_);
  if (Status status = open_driver(); !status.ok()) return status;
  if (Result<uint64_t> total = total_bytes(device); !total.ok()) return total.take_status();
  return existing(device);
}

Result<std::shared_ptr<const Driver>> Process::driver() {
  const Lock lock(mutex_);
  if (Status status = open_driver(); !status.ok()) return status;
  return driver_;
}

Config Process::config() {
  const Lock lock(mutex_);
  load_config();
  return config_;
}

namespace {

std::string& thread_error() {
  thread_local std::string text;
  return text;
}

}  // namespace

spw_status report(const Status& status) noexcept {
  if (status.ok()) return SPW_OK;
  try {
    thread_error() = status.text();
  } catch (...) {
    // The code still says what happened.
  }
  return status.code();
}

const char* last_error() noexcept {
  try {
    return thread_error().c_str();
  } catch (...) {
    return "";
  }
}

}  // namespace spillway
