// The file that blocks are spilled to: one for a process and device, without a name, so that a crash leaves
// nothing.
//
// Its space is reserved before anything is written: a full disk, a quota or a limit shows when extents are
// reserved, while the bytes are still where they were. Free space is kept reserved, and given back to the
// file system by give_back().
//
// Every byte of the file is in one of four places: an extent that is handed out, a free range that is
// reserved, a hole, or quarantine. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "driver/status.h"
#include "offload/io/file.h"
#include "offload/io/file_calls.h"
#include "stats/lock.h"

namespace spillway {

struct Extent {
  uint64_t offset = 0;
  uint64_t bytes = 0;  // a multiple of kExtentBytes
};
inline constexpr uint64_t kExtentBytes = uint64_t{2} << 20;

struct ExtentFileOptions {
  std::string directory;
  uint64_t most_bytes = ~uint64_t{0};
  uint64_t growth_bytes = uint64_t{1} << 30;  // reserved at a time, where there is room
  bool allow_ram_backed = false;              // tmpfs is memory too, and rarely what a spill tier is for
  bool want_direct = true;
  FileCalls* calls = &FileCalls::of_kernel();  // outlives the file
};

// Ranges of bytes that do not touch each other.
class RangeSet {
 public:
  void add(uint64_t offset, uint64_t bytes);
  // Takes up to `bytes`, from the smallest range that has them all, else from the largest. 0 bytes where it
  // is empty.
  Extent take(uint64_t bytes);
  uint64_t total_bytes() const { return total_bytes_; }

 private:
  std::map<uint64_t, uint64_t> by_offset_;  // offset to bytes
  uint64_t total_bytes_ = 0;
};

class ExtentFile {
 public:
  // Errors: SPW_ERROR_IO, where no file can be made in the directory; SPW_ERROR_CONFIG, where it is in memory
  // and that is not allowed.
  static Result<std::unique_ptr<ExtentFile>> open(const ExtentFileOptions& options);
  ExtentFile(const ExtentFile&) = delete;
  ExtentFile& operator=(const ExtentFile&) = delete;

  // Extents of together `bytes`, rounded up to whole ones; few, and in the order of the bytes they are for.
  // Errors: SPW_ERROR_OUT_OF_MEMORY, where the disk, a quota or `most_bytes` has no room; SPW_ERROR_IO.
  Result<std::vector<Extent>> reserve(uint64_t bytes);
  void release(std::span<const Extent> extents);
  // Extents that could not be written: nobody gets them again.
  void quarantine(std::span<const Extent> extents);
  // Makes holes of what is free.
  Status give_back();

  IoFile& file() { return *file_; }
  // Returns what a user should know of the directory; empty where all is well.
  const std::string& warning() const { return warning_; }

  struct Usage {
    uint64_t file_bytes = 0;
    uint64_t extent_bytes = 0;
    uint64_t free_bytes = 0;
    uint64_t hole_bytes = 0;
    uint64_t quarantined_bytes = 0;
  };
  Usage usage() const;

 private:
  ExtentFile(const ExtentFileOptions& options, int descriptor, std::string warning);

  Status allocate(uint64_t offset, uint64_t bytes) SPW_REQUIRES(mutex_);
  Status extend(uint64_t bytes) SPW_REQUIRES(mutex_);
  Status grow(uint64_t least_bytes) SPW_REQUIRES(mutex_);
  Status take(RangeSet& set, uint64_t* left, std::vector<Extent>* out) SPW_REQUIRES(mutex_);
  std::string no_room(uint64_t bytes) const SPW_REQUIRES(mutex_);

  const ExtentFileOptions options_;
  const std::string warning_;
  const std::unique_ptr<IoFile> file_;
  mutable BlockingMutex mutex_;
  RangeSet free_ SPW_GUARDED_BY(mutex_);  // reserved
  RangeSet holes_ SPW_GUARDED_BY(mutex_);
  uint64_t file_bytes_ SPW_GUARDED_BY(mutex_) = 0;
  uint64_t quarantined_bytes_ SPW_GUARDED_BY(mutex_) = 0;
};

}  // namespace spillway
