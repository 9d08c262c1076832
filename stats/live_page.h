// The live page: a file of some hundred KiB in which a process keeps its counters, for other processes to
// look at while it runs, while it is stopped, and after it has died.
//
// The file is mapped by its process and read with read() by others, so nothing a reader meets can harm it. It
// holds a header that never changes and two slots that are written in turn. A slot's sequence number is odd
// while it is being written: a reader who meets an odd number, or one that changed meanwhile, takes the other
// slot, which is the last complete state. A process that dies at any moment therefore leaves a state behind.
// Two successive states also make rates without a second look.
//
// It is at <folder>/spillway-<user id>/<process id>-<start time>.page; the folder of the user is 0700, the
// file 0600. Process id and start time name one process for all time, so a page whose process has gone is
// known as such.
//
// Times are nanoseconds. Errors: io unless said otherwise.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "driver/status.h"
#include "include/spillway/offload.h"
#include "include/spillway/stats.h"

namespace spillway {

// Changes with every change of the structures below, of the public ones in them included.
inline constexpr uint32_t kLivePageVersion = 2;
inline constexpr char kLivePageMagic[8] = "SPWLIVE";

struct LiveHeader {
  char magic[8];
  uint32_t version;
  uint32_t device_bytes;  // sizeof(LiveDevice), a second check of the version
  int32_t pid;
  uint32_t user;
  uint64_t start_ticks;    // since the machine's boot: field 22 of /proc/<pid>/stat
  uint64_t pid_namespace;  // the inode of /proc/<pid>/ns/pid
  int64_t rank;
  uint64_t interval_ns;
  int64_t began_ns;  // since 1970
  char program[64];
  char library_version[32];
};

struct LiveDevice {
  int64_t ordinal;
  uint64_t total_bytes;
  char name[64];
  char uuid[48];
  spw_stats stats;
  uint64_t has_tiers;  // whether anything was spilled so far; else tiers is zero
  spw_tier_stats tiers;
};

struct LiveState {
  static constexpr size_t kMostDevices = 64;

  int64_t time_ns;    // since 1970
  int64_t steady_ns;  // for differences: CLOCK_MONOTONIC
  uint64_t devices;   // rows in use
  uint64_t has_pinned;
  spw_pinned_stats pinned;
  LiveDevice device[kMostDevices];

  static constexpr size_t bytes_with(size_t rows) {
    return offsetof(LiveState, device) + rows * sizeof(LiveDevice);
  }
};

// Describes what is in the file. Everything is a multiple of 8 bytes, which the writer stores word by word.
struct LiveFile {
  struct Slot {
    uint64_t sequence;  // 0: never written; odd: being written
    LiveState state;
  };
  LiveHeader header;
  Slot slots[2];
};

struct LiveProcess {
  pid_t pid = 0;
  uint64_t start_ticks = 0;
  uint64_t pid_namespace = 0;
};
// The calling process.
LiveProcess this_process();

// Lists where pages are looked for, and in which order a process tries to make its own: `chosen` alone unless
// it is empty, else the folders of the system.
std::vector<std::string> live_folders(const std::string& chosen);

// The page of the calling process. One thread writes.
class LivePage {
 public:
  struct Description {
    std::string program;  // a name for people
    std::string library_version;
    int64_t rank = 0;
    uint64_t interval_ns = 0;
  };

  LivePage() = default;
  LivePage(const LivePage&) = delete;
  LivePage& operator=(const LivePage&) = delete;
  ~LivePage();  // removes the file, in the process that made it

  // Makes the file in the first folder that serves. Errors: io (none does; the text says why).
  Status open(const std::string& chosen_folder, const Description& description);
  // Nanoseconds to microseconds, no system call. Only the rows in use are written.
  void write(const LiveState& state);
  const std::string& path() const { return path_; }

 private:
  Status open_in(const std::string& folder, const Description& description);

  std::string path_;
  pid_t owner_ = 0;
  uint64_t passes_ = 0;
  LiveFile* file_ = nullptr;
};

}  // namespace spillway
