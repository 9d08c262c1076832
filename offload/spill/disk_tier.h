// The disk below the host: pieces of blocks in one file, each with the checksums of what was written.
//
// Room is reserved before anything is written. A write that fails is tried again elsewhere in the file, up to
// kMostWrites times in all; places that could not be written are not used again. After kMostFailures failed
// writes in a row the tier takes nothing more; one that finds the disk full is not tried again, and not
// counted. What is read is compared with its checksums; a mismatch is read once more, past the way it was
// read before, and then reported. Lost is what differs then, or what the disk says is lost (is_loss); a read
// that fails for another reason leaves the piece as it is.
//
// Checksums and packing are the work of a few threads of their own: neither whoever submits nor the disk
// waits for them. The file is made by the first reserve(). Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "driver/status.h"
#include "offload/io/daily_writes.h"
#include "offload/io/engine.h"
#include "offload/io/extent_file.h"
#include "offload/spill/block.h"
#include "offload/spill/packer.h"
#include "offload/spill/workers.h"
#include "stats/lock.h"

namespace spillway {

struct DiskTierOptions {
  ExtentFileOptions file;  // an empty directory: there is no disk tier
  IoOptions io;
  size_t buffers = 8;  // of Staging::kBufferBytes, between the device and the disk
  bool pins_buffers = true;
  // So much may be written to the directory in any day, by all processes together: flash wears.
  uint64_t daily_write_bytes = ~uint64_t{0};
  IoEngine::MakeQueue make_queue;  // instead of the kernel's: for faults
  double write_bytes_per_s = 0;    // what packing has to beat; 0: what is measured
};

struct DiskCounters {
  uint64_t blocks_bytes = 0;  // reserved for pieces now
  uint64_t written_bytes = 0;
  uint64_t read_bytes = 0;
  uint64_t zero_bytes = 0;   // that needed no write
  uint64_t saved_bytes = 0;  // of those written, by packing
  uint64_t verified_bytes = 0;
  uint64_t mismatches = 0;
  uint64_t repeated_writes = 0;
  uint64_t failed_writes = 0;  // for good
  // Written on this day (UTC), or about to be; with a bound also by others, as of the last reserve().
  uint64_t today_bytes = 0;
};

class DiskTier {
 public:
  static constexpr int kMostWrites = 3;
  static constexpr uint32_t kMostFailures = 8;
  // Whoever holds the file of what all have written may hold it for long, and everybody waits meanwhile.
  static constexpr std::chrono::seconds kBetweenFailedClaims{60};

  explicit DiskTier(DiskTierOptions options);
  ~DiskTier();
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  uint64_t limit_bytes() const { return options_.file.most_bytes; }
  const DiskTierOptions& options() const { return options_; }
  bool exists() const { return !options_.file.directory.empty(); }
  // Places for a block of so many bytes. Errors: unsupported (no directory is set), out_of_memory (no room
  // within the limit, the disk, a quota, or what may be written today), io (the directory; or the tier was
  // given up).
  Status reserve(uint64_t bytes, std::vector<DiskPiece>* pieces);
  // Where the host has no memory left the file's room for them is not used again.
  void release(std::vector<DiskPiece>& pieces) noexcept;

  // Memory that many pieces will pass through: it stays mapped until it is forgotten, or while the tier
  // lives.
  void use_memory(std::span<std::byte> memory) { (void)engine_.use_memory(memory); }
  // No operation may be using it. False where it must stay mapped all the same.
  bool forget_memory(std::span<std::byte> memory) { return engine_.forget_memory(memory); }

  // One operation on a piece. It lives until `done` was called, on any thread, and so does the memory: a
  // piece's, or what is left of the block, and its last bytes up to a multiple of kAlignment are the caller's
  // too.
  using Done = std::function<void(Status status)>;  // throws nothing
  static constexpr size_t kAlignment = 4096;
  // `packer` may be null, and lives as long. Errors: out_of_memory (the disk is full after all, or the host
  // has no memory left), io.
  void write(std::span<std::byte> memory, DiskPiece& piece, IoPriority priority, Packer* packer,
             Done done) noexcept;
  // Waits until what was written through the page cache is on the disk; before that the bytes must not be
  // given up elsewhere. `since` is sync_failures() from before the first of the writes: an error that another
  // thread's call was told is an error for them too. Errors: as of write().
  Status sync(uint64_t since);
  uint64_t sync_failures() const { return sync_failures_.load(); }
  // Ends with the bytes that were written there, compared with their checksums. Errors: data_lost (they
  // cannot be read any more); io, out_of_memory (not now: they are as they were).
  void read(std::span<std::byte> memory, const DiskPiece& piece, IoPriority priority, Done done) noexcept;

  DiskCounters counters() const;
  IoCounters io_counters() const { return engine_.counters(); }
  ExtentFile::Usage usage() const;
  // What nothing is written to goes back to the file system, as far as it takes that.
  void give_back();
  std::string engine() const { return engine_.description(); }

 private:
  struct Write;

  Status open() SPW_REQUIRES(mutex_);
  // For whoever has a piece: the reserve() that gave it has made the file, which stays.
  ExtentFile& file() const {
    mutex_.assert_held();  // as good as: file_ does not change any more
    return *file_;
  }
  // Errors: it did not begin, and `done` is still to be called.
  Status begin_write(const std::shared_ptr<Write>& write);
  void pack(Write& write);
  // Nothing before anything was measured.
  std::optional<double> disk_bytes_per_ns() const SPW_REQUIRES(mutex_);
  // Errors: as of begin_write().
  Status submit_write(const std::shared_ptr<Write>& write) noexcept;
  // A disk that is full is not broken: it takes something again when there is room.
  void count_failure(bool is_full) SPW_REQUIRES(mutex_);
  // Nobody gets the place again. Answers whether another one is to be tried.
  bool replace_bad_place(Write& write) SPW_REQUIRES(mutex_);
  void write_ended(const std::shared_ptr<Write>& write, int error) noexcept;
  // Errors: as of write().
  Status sync_file() SPW_REQUIRES(sync_mutex_);
  struct Read;
  void read_ended(const std::shared_ptr<Read>& read, int error) noexcept;
  // The error of a read that failed.
  Status unreadable(const DiskPiece& piece, size_t bytes, int error) const;
  // Compares what was read, reads again where it differs, and unpacks it. Errors: data_lost, io. Throws what
  // unpacking throws for want of memory.
  Status verify(std::span<std::byte> memory, const DiskPiece& piece);
  uint64_t planned_today() const SPW_REQUIRES(mutex_);
  uint64_t used_today() const SPW_REQUIRES(mutex_);  // by others, too
  Status plan(uint64_t bytes) SPW_REQUIRES(mutex_);
  void end_plan(DiskPiece& piece) SPW_REQUIRES(mutex_);

  const DiskTierOptions options_;
  mutable BlockingMutex mutex_;
  std::unique_ptr<ExtentFile> file_ SPW_GUARDED_BY(mutex_);
  DiskCounters counters_ SPW_GUARDED_BY(mutex_);
  uint32_t failures_in_a_row_ SPW_GUARDED_BY(mutex_) = 0;
  // What is written in a day is what the engine has written since its begin; the rest is still to come.
  int64_t day_ SPW_GUARDED_BY(mutex_) = 0;
  uint64_t written_before_day_bytes_ SPW_GUARDED_BY(mutex_) = 0;
  uint64_t planned_bytes_ SPW_GUARDED_BY(mutex_) = 0;
  DailyWrites all_writes_ SPW_GUARDED_BY(mutex_);
  uint64_t others_bytes_ SPW_GUARDED_BY(mutex_) = 0;  // on that day
  // After one that failed.
  std::chrono::steady_clock::time_point next_claim_ SPW_GUARDED_BY(mutex_);
  bool has_complained_ SPW_GUARDED_BY(mutex_) = false;  // that what others write cannot be known
  uint32_t packed_writes_ SPW_GUARDED_BY(mutex_) = 0;   // in hand, each with memory of its own
  BlockingMutex sync_mutex_;                            // the kernel tells an error of write-back once
  std::atomic<uint64_t> sync_failures_{0};
  // The time in which something was being written, for the disk's speed.
  uint32_t writes_ SPW_GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point writing_since_ SPW_GUARDED_BY(mutex_);
  double writing_ns_ SPW_GUARDED_BY(mutex_) = 0;
  uint64_t timed_bytes_ SPW_GUARDED_BY(mutex_) = 0;
  const unsigned threads_;
  Workers workers_;
  IoEngine engine_;  // ends first: its requests use the file
};

}  // namespace spillway
