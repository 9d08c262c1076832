// The thread that keeps this process's live page (stats/live_page.h).
//
// It begins with the first device and wakes once an interval: a program that never allocates has none, and
// the way of a request is not touched (docs/decisions/live-page.md has the alternatives, measured). It calls
// no driver, waits for no operation of a device or a disk, and blocks all signals. Around a fork it stands
// still, so no lock it needs is held in the child, where it does not run and the page is not the child's. At
// exit it is ended and the page is removed; a process that is killed leaves its page with the last state.
//
// What it cannot do is not worth the program's trouble: without a page or a thread there is no live view.
// Thread-safe.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "allocator/arena.h"
#include "driver/context.h"
#include "offload/pinned_blocks.h"
#include "offload/spill/device_tiers.h"
#include "stats/live_page.h"
#include "stats/lock.h"

namespace spillway {

class LiveWriter {
 public:
  struct Options {
    std::string folder;  // empty: the system's
    std::chrono::milliseconds interval{1000};
    std::string library_version;
    int64_t rank = 0;
  };

  static LiveWriter& instance();

  // From now on the page shows this arena, which must be removed before it ends. The first call makes the
  // page and the thread.
  void add_device(const Arena& arena, const DeviceProperties& properties, const Options& options);
  // Nothing of the device's arena is looked at from now on. The page shows its last counters, then those that
  // are kept. The device may be added again.
  void release_device(int ordinal);
  void keep_counters(int ordinal, const DeviceStats& counted);
  // These live as long as the process.
  void add_tiers(int device, DeviceTiers& tiers);
  void add_pinned(const PinnedBlocks& pinned);

 private:
  struct Device {
    const Arena* arena = nullptr;  // null: its context has ended
    DeviceTiers* tiers = nullptr;
    LiveDevice row{};  // name and size; the tiers as they were last seen
  };

  LiveWriter() = default;
  Device* find(int ordinal) SPW_REQUIRES(mutex_);
  void start(const Options& options) SPW_REQUIRES(mutex_);
  void work();
  void write() SPW_REQUIRES(mutex_);
  void fill(Device& device, LiveDevice& row) SPW_REQUIRES(mutex_);
  void finish();  // at exit

  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();

  BlockingMutex mutex_;  // held while the thread looks, and around a fork
  Condition changed_;
  bool is_stopping_ SPW_GUARDED_BY(mutex_) = false;
  bool is_working_ SPW_GUARDED_BY(mutex_) = false;
  bool is_changed_ SPW_GUARDED_BY(mutex_) = false;  // a device came or ended since the thread looked
  bool was_started_ SPW_GUARDED_BY(mutex_) = false;
  std::vector<Device> devices_ SPW_GUARDED_BY(mutex_);
  const PinnedBlocks* pinned_ SPW_GUARDED_BY(mutex_) = nullptr;
  std::chrono::milliseconds interval_ SPW_GUARDED_BY(mutex_){1000};
  // Set by start(). The page and its state are the thread's, until finish() finds that it has ended.
  pid_t owner_ = 0;
  std::unique_ptr<LivePage> page_;
  std::unique_ptr<LiveState> state_;  // too large for a stack
  std::thread thread_;
};

}  // namespace spillway
