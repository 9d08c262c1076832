#include "abi/live.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

#include "abi/process.h"
#include "abi/tier_stats.h"
#include "stats/dump.h"
#include "stats/own_thread.h"
#include "stats/trace_record.h"

namespace spillway {
namespace {

std::string base_name(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

// The program and its first argument that is no option, without folders: "python train.py".
std::string program_name() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string words(std::istreambuf_iterator<char>(file), {});
  std::string name;
  for (size_t at = 0; at < words.size();) {
    const std::string word(words.c_str() + at);
    at += word.size() + 1;
    if (name.empty()) {
      name = base_name(word);
    } else if (!word.empty() && word.front() != '-') {
      return name + " " + base_name(word);
    }
  }
  return name;
}

template <size_t capacity>
void copy_text(char (&to)[capacity], const std::string& from) {
  from.copy(to, capacity - 1);
}

// Gives the page a second name in the folder of who started this process and wants to read it after its end:
// cli/launch/served.h. A name more or less is no error.
void link_for_launcher(const std::string& page) {
  constexpr int kMostLinks = 256;
  const char* folder = std::getenv("SPILLWAY_LIVE_LINKS");
  if (folder == nullptr) return;
  std::error_code error;
  int links = 0;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    ++links;
  if (error || links >= kMostLinks) return;
  (void)link(page.c_str(), (std::string(folder) + "/" + base_name(page)).c_str());
}

// Tells whether this thread holds the mutex of the writer for its fork.
thread_local bool live_holds_for_fork = false;

}  // namespace

LiveWriter& LiveWriter::instance() {
  static LiveWriter& writer = *new LiveWriter;
  return writer;
}

void LiveWriter::add_device(const Arena& arena, const DeviceProperties& properties, const Options& options) {
  const Lock lock(mutex_);
  if (!was_started_) start(options);
  Device* known = find(properties.ordinal);
  if (known == nullptr && devices_.size() == LiveState::kMostDevices) return;
  Device& device = known != nullptr ? *known : devices_.emplace_back();
  device.arena = &arena;
  device.row.ordinal = properties.ordinal;
  device.row.total_bytes = properties.total_bytes;
  copy_text(device.row.name, properties.name);
  copy_text(device.row.uuid, uuid_text(properties.uuid));
  is_changed_ = true;
  changed_.notify_all();
}

LiveWriter::Device* LiveWriter::find(int ordinal) {
  for (Device& device : devices_) {
    if (device.row.ordinal == ordinal) return &device;
  }
  return nullptr;
}

void LiveWriter::release_device(int ordinal) {
  const Lock lock(mutex_);
  if (Device* device = find(ordinal); device != nullptr) device->arena = nullptr;
}

void LiveWriter::keep_counters(int ordinal, const DeviceStats& counted) {
  const Lock lock(mutex_);
  Device* device = find(ordinal);
  if (device == nullptr) return;
  device->row.stats = counted;
  is_changed_ = true;
  changed_.notify_all();
}

void LiveWriter::add_tiers(int device, DeviceTiers& tiers) {
  const Lock lock(mutex_);
  if (Device* known = find(device); known != nullptr) known->tiers = &tiers;
}

void LiveWriter::add_pinned(const PinnedBlocks& pinned) {
  const Lock lock(mutex_);
  pinned_ = &pinned;
}

void LiveWriter::start(const Options& options) {
  was_started_ = true;
  interval_ = options.interval;
  owner_ = getpid();
  LivePage::Description description;
  description.program = program_name();
  description.library_version = options.library_version;
  description.rank = options.rank;
  description.interval_ns = static_cast<uint64_t>(std::chrono::nanoseconds(options.interval).count());
  page_ = std::make_unique<LivePage>();
  state_ = std::make_unique<LiveState>();
  if (!page_->open(options.folder, description).ok()) return;
  link_for_launcher(page_->path());
  if (pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) != 0) return;
  try {
    thread_ = start_own_thread([this] { work(); });
    is_working_ = true;
  } catch (const std::exception&) {
    page_.reset();
  }
  if (is_working_) std::atexit([] { instance().finish(); });
}

void LiveWriter::work() {
  pthread_setname_np(pthread_self(), "spillway-live");
  const Lock lock(mutex_);
  while (true) {
    const bool is_last = is_stopping_;  // what the process ended with is written as well
    try {
      write();
    } catch (const std::exception&) {
      // The host has no memory left: the page keeps the state before.
    }
    if (is_last) break;
    is_changed_ = false;
    changed_.wait_for(mutex_, interval_,
                      [this]() SPW_REQUIRES(mutex_) { return is_stopping_ || is_changed_; });
  }
  is_working_ = false;
  changed_.notify_all();
}

void LiveWriter::write() {
  state_->devices = devices_.size();
  for (size_t i = 0; i < devices_.size(); ++i) fill(devices_[i], state_->device[i]);
  state_->has_pinned = pinned_ != nullptr ? 1 : 0;
  if (pinned_ != nullptr) state_->pinned = pinned_->stats();
  state_->time_ns = static_cast<int64_t>(clock_ns(CLOCK_REALTIME));
  state_->steady_ns = static_cast<int64_t>(clock_ns(CLOCK_MONOTONIC));
  page_->write(*state_);
}

void LiveWriter::fill(Device& device, LiveDevice& row) {
  if (device.tiers != nullptr) {
    // While a region moves, its tier is not known, and the page shows where it was.
    if (const auto regions = device.tiers->regions().try_usage(); regions.has_value()) {
      device.row.tiers = tier_stats(*device.tiers, *regions);
      device.row.has_tiers = 1;
    }
  }
  if (device.arena != nullptr) device.row.stats = device.arena->stats();
  row = device.row;
}

// The thread is told to end and waited for, a second at most: it may stand behind a slow disk.
void LiveWriter::finish() {
  if (getpid() != owner_) return;
  PausableLock lock(mutex_);
  is_stopping_ = true;
  changed_.notify_all();
  const bool has_ended =
      changed_.wait_for(mutex_, std::chrono::seconds(1), [&]() SPW_REQUIRES(mutex_) { return !is_working_; });
  lock.unlock();
  if (has_ended) {
    thread_.join();
    page_.reset();
  } else {
    thread_.detach();
  }
}

// ---- Fork

void LiveWriter::before_fork() {
  live_holds_for_fork = lock_for_fork(instance().mutex_);
}

void LiveWriter::after_fork_in_parent() {
  unlock_after_fork(instance().mutex_, std::exchange(live_holds_for_fork, false));
}

void LiveWriter::after_fork_in_child() {
  after_fork_in_parent();
}

// ---- From the process

void Process::show_live(const Arena& arena) const {
  Result<DeviceProperties> properties = query_device(*driver_, arena.device());
  if (!properties.ok()) return;
  LiveWriter::Options options;
  options.folder = config_.live_dir;
  options.interval = std::chrono::milliseconds(config_.live_interval.value);
  options.library_version = spw_version();
  options.rank = process_rank();
  LiveWriter::instance().add_device(arena, properties.value(), options);
}

}  // namespace spillway
