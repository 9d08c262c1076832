#include "offload/io/measure.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "offload/io/extent_file.h"
#include "stats/lock.h"

namespace spillway {
namespace {

constexpr uint64_t kWindowBytes = uint64_t{64} << 20;
constexpr uint64_t kTrialBytes = uint64_t{128} << 20;
constexpr uint64_t kFirstTrialBytes = uint64_t{16} << 20;
constexpr double kTuningSeconds = 4.5;

struct Freed {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, Freed>;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double cpu_seconds() {
  rusage usage{};
  (void)getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Keeps as many requests in flight as the engine has operations for. Each that ends starts the next one
// itself: nobody is woken in between, and no more memory is used than the disk has at hand, which counts
// where a disk is as fast as memory.
class Window {
 public:
  Window(IoEngine& engine, IoFile& file, std::byte* memory, const IoOptions& options)
      : engine_(engine),
        file_(file),
        memory_(memory),
        request_bytes_(std::max<uint64_t>(options.block_bytes, kExtentBytes)),
        most_(std::max<uint64_t>(
            1, std::min(kWindowBytes, options.depth * options.block_bytes) / request_bytes_)) {}

  Status run(IoKind kind, const std::vector<Extent>& extents) {
    kind_ = kind;
    line_up(extents);
    for (uint64_t i = 0; i < most_; ++i) start_next(memory_ + i * request_bytes_);
    const Lock lock(mutex_);
    ended_.wait(mutex_, [&]() SPW_REQUIRES(mutex_) { return in_use_ == 0; });
    return error_ == 0 ? Status() : Status::io(std::strerror(error_));
  }

 private:
  void line_up(const std::vector<Extent>& extents) {
    mutex_.assert_held();  // as good as: no request is on its way that could look
    for (const Extent& extent : extents) {
      for (uint64_t at = 0; at < extent.bytes; at += request_bytes_) {
        waiting_.push_back({extent.offset + at, std::min(request_bytes_, extent.bytes - at)});
      }
    }
    in_use_ = most_;
  }
  // In memory that the caller has in use, and gives back where nothing is left to do. On any thread.
  void start_next(std::byte* memory) {
    Extent extent;
    {
      const Lock lock(mutex_);
      if (error_ != 0 || waiting_.empty()) {
        if (--in_use_ == 0) ended_.notify_all();
        return;
      }
      extent = waiting_.front();
      waiting_.pop_front();
    }
    const IoRequest request{kind_, IoPriority::kDemand, &file_, {memory, extent.bytes}, extent.offset};
    const auto end = [this, memory](int error) {
      note(error);
      start_next(memory);
    };
    if (!engine_.submit(request, end).ok()) end(EIO);
  }
  void note(int error) {
    const Lock lock(mutex_);
    if (error_ == 0) error_ = error;
  }

  IoEngine& engine_;
  IoFile& file_;
  std::byte* const memory_;
  const uint64_t request_bytes_;
  const uint64_t most_;          // requests in flight
  IoKind kind_ = IoKind::kRead;  // the same while requests are on their way
  BlockingMutex mutex_;
  Condition ended_;
  std::deque<Extent> waiting_ SPW_GUARDED_BY(mutex_);
  uint64_t in_use_ SPW_GUARDED_BY(mutex_) = 0;  // pieces of memory
  int error_ SPW_GUARDED_BY(mutex_) = 0;
};

}  // namespace

Result<DiskSpeed> measure_disk(const std::string& directory, uint64_t bytes, const IoOptions& options,
                               bool want_direct) {
  ExtentFileOptions file_options;
  file_options.directory = directory;
  file_options.allow_ram_backed = true;
  file_options.want_direct = want_direct;
  file_options.growth_bytes = kExtentBytes;
  Result<std::unique_ptr<ExtentFile>> file = ExtentFile::open(file_options);
  if (!file.ok()) return file.take_status();
  Result<std::vector<Extent>> extents = file.value()->reserve(bytes);
  if (!extents.ok()) return extents.take_status();
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(kExtentBytes, kWindowBytes)));
  if (memory == nullptr) return Status::out_of_memory("the host has no memory to measure a disk with");
  // It is made as pinned memory is: of small pages a disk's driver may need two operations where one would
  // do.
  (void)madvise(memory.get(), kWindowBytes, MADV_HUGEPAGE);
  // Not all zero: some file systems and disks do not store that.
  uint64_t value = 1;
  for (uint64_t at = 0; at < kWindowBytes; at += sizeof(value)) {
    value = value * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(memory.get() + at, &value, sizeof(value));
  }
  IoEngine engine(options);
  if (Status status = engine.use_memory({memory.get(), kWindowBytes}); !status.ok()) return status;
  if (Status status = engine.use_file(file.value()->file()); !status.ok()) return status;
  Window window(engine, file.value()->file(), memory.get(), options);
  DiskSpeed speed;
  for (const Extent& extent : extents.value()) speed.bytes += extent.bytes;
  speed.block_bytes = options.block_bytes;
  speed.depth = options.depth;
  for (const IoKind kind : {IoKind::kWrite, IoKind::kRead}) {
    // What the disk still has in hand of the writes is no part of the reads.
    if (kind == IoKind::kRead) (void)fdatasync(file.value()->file().buffered());
    const double cpu = cpu_seconds();
    const auto begin = std::chrono::steady_clock::now();
    if (Status status = window.run(kind, extents.value()); !status.ok()) {
      return Status::io(directory + ": " + status.text());
    }
    const double per_s = static_cast<double>(speed.bytes) / seconds_since(begin);
    (kind == IoKind::kWrite ? speed.write_bytes_per_s : speed.read_bytes_per_s) = per_s;
    (kind == IoKind::kWrite ? speed.write_cpu_s : speed.read_cpu_s) = cpu_seconds() - cpu;
  }
  speed.is_direct = file.value()->file().is_direct();
  speed.engine = engine.description();
  speed.warning = file.value()->warning();
  if (!speed.is_direct && speed.warning.empty()) speed.warning = file.value()->file().buffered_reason();
  return speed;
}

Result<IoOptions> tune_disk(const std::string& directory, const IoOptions& options, bool want_direct) {
  IoOptions best = options;
  double best_speed = 0;
  const auto begin = std::chrono::steady_clock::now();
  // A slow disk has less to write. What this costs is over before the trials.
  Result<DiskSpeed> first = measure_disk(directory, kFirstTrialBytes, options, want_direct);
  if (!first.ok()) return first.take_status();
  double trial_s = seconds_since(begin) * kTrialBytes / kFirstTrialBytes;
  const bool is_slow = trial_s > kTuningSeconds / 6;
  const uint64_t trial_bytes = is_slow ? kFirstTrialBytes : kTrialBytes;
  if (is_slow) trial_s = seconds_since(begin);
  // Tries what research and measurement found worth trying, the likeliest first, for as long as there is
  // time.
  constexpr std::pair<uint64_t, uint32_t> kSettings[] = {{1, 32}, {4, 8}, {1, 8}, {4, 16}, {1, 16}, {4, 4}};
  for (const auto& [block_mib, depth] : kSettings) {
    if (seconds_since(begin) + trial_s > kTuningSeconds) break;
    IoOptions trial = options;
    trial.block_bytes = block_mib << 20;
    trial.depth = depth;
    const auto trial_begin = std::chrono::steady_clock::now();
    Result<DiskSpeed> speed = measure_disk(directory, trial_bytes, trial, want_direct);
    if (!speed.ok()) return speed.take_status();
    trial_s = std::max(trial_s, seconds_since(trial_begin));
    // Both ways count alike.
    const double both = 2 / (1 / speed->write_bytes_per_s + 1 / speed->read_bytes_per_s);
    if (both <= best_speed) continue;
    best_speed = both;
    best = trial;
  }
  return best;
}

}  // namespace spillway
