#include "offload/io/extent_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "stats/held_signal.h"

namespace spillway {
namespace {

// A file system on which spilling is not what it seems.
struct Kind {
  int64_t magic;
  const char* name;
  bool is_memory;
  const char* warning;
};

constexpr Kind kKinds[] = {
    {TMPFS_MAGIC, "tmpfs", true, "spilling to it takes the host memory that it is meant to save"},
    {RAMFS_MAGIC, "ramfs", true, "spilling to it takes the host memory that it is meant to save"},
    {NFS_SUPER_MAGIC, "NFS", false, "spilling goes over the network"},
    {OVERLAYFS_SUPER_MAGIC, "overlayfs", false,
     "a container's own layer may be slow and small: mount a disk"},
};

const Kind* kind_of(FileCalls& calls, int descriptor) {
  const int64_t magic = calls.file_system(descriptor);
  const auto* found = std::find_if(std::begin(kKinds), std::end(kKinds),
                                   [&](const Kind& kind) { return kind.magic == magic; });
  return found == std::end(kKinds) ? nullptr : found;
}

// A file without a name, or -errno.
int open_unnamed(FileCalls& calls, const std::string& directory) {
  const int descriptor = calls.open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC);
  // EISDIR: a kernel or file system without O_TMPFILE (open(2)).
  if (descriptor != -EOPNOTSUPP && descriptor != -EISDIR) return descriptor;
  return calls.open_unlinked(directory + "/spillway-XXXXXX", O_CLOEXEC);
}

}  // namespace

// ---- RangeSet

void RangeSet::add(uint64_t offset, uint64_t bytes) {
  if (bytes == 0) return;
  auto after = by_offset_.upper_bound(offset);
  const auto before = after == by_offset_.begin() ? by_offset_.end() : std::prev(after);
  const bool joins_before = before != by_offset_.end() && before->first + before->second == offset;
  const bool joins_after = after != by_offset_.end() && after->first == offset + bytes;
  if (joins_before) {
    before->second += bytes;
    if (joins_after) {
      before->second += after->second;
      by_offset_.erase(after);
    }
  } else if (joins_after) {
    auto node = by_offset_.extract(after);
    node.key() = offset;
    node.mapped() += bytes;
    by_offset_.insert(std::move(node));
  } else {
    by_offset_.emplace_hint(after, offset, bytes);
  }
  total_bytes_ += bytes;
}

Extent RangeSet::take(uint64_t bytes) {
  auto best = by_offset_.end();
  for (auto range = by_offset_.begin(); range != by_offset_.end(); ++range) {
    const bool is_first = best == by_offset_.end();
    const bool has_all = range->second >= bytes;
    const bool best_has_all = !is_first && best->second >= bytes;
    const bool is_better = has_all ? !best_has_all || range->second < best->second
                                   : !best_has_all && !is_first && range->second > best->second;
    if (is_first || is_better) best = range;
  }
  if (best == by_offset_.end()) return {};
  const Extent taken{best->first, std::min(bytes, best->second)};
  auto node = by_offset_.extract(best);
  node.key() += taken.bytes;
  node.mapped() -= taken.bytes;
  if (node.mapped() > 0) by_offset_.insert(std::move(node));
  total_bytes_ -= taken.bytes;
  return taken;
}

// ---- ExtentFile

Result<std::unique_ptr<ExtentFile>> ExtentFile::open(const ExtentFileOptions& options) {
  const int descriptor = open_unnamed(*options.calls, options.directory);
  if (descriptor < 0) {
    return Status::io(fmt::format("no file can be made in the spill directory {}: {}", options.directory,
                                  std::strerror(-descriptor)));
  }
  std::string warning;
  if (const Kind* kind = kind_of(*options.calls, descriptor); kind != nullptr) {
    warning =
        fmt::format("the spill directory {} is on {}: {}", options.directory, kind->name, kind->warning);
    if (kind->is_memory && !options.allow_ram_backed) {
      close(descriptor);
      return Status::config(warning);
    }
  }
  return std::unique_ptr<ExtentFile>(new ExtentFile(options, descriptor, std::move(warning)));
}

ExtentFile::ExtentFile(const ExtentFileOptions& options, int descriptor, std::string warning)
    : options_(options),
      warning_(std::move(warning)),
      file_(std::make_unique<IoFile>(descriptor, options.want_direct, *options.calls)) {}

Result<std::vector<Extent>> ExtentFile::reserve(uint64_t bytes) {
  const Lock lock(mutex_);
  uint64_t left = (bytes + kExtentBytes - 1) / kExtentBytes * kExtentBytes;
  std::vector<Extent> out;
  const uint64_t have = free_.total_bytes() + holes_.total_bytes();
  Status status = caught([&] {
    mutex_.assert_held();  // caught() calls this here and now
    Status taken = left > have ? grow(left - have) : Status();
    if (taken.ok()) taken = take(free_, &left, &out);
    return taken.ok() ? take(holes_, &left, &out) : std::move(taken);
  });
  if (status.ok()) return out;
  for (const Extent& extent : out) free_.add(extent.offset, extent.bytes);
  return status;
}

// What comes out of a hole is reserved first.
Status ExtentFile::take(RangeSet& set, uint64_t* left, std::vector<Extent>* out) {
  while (*left > 0 && set.total_bytes() > 0) {
    Extent& extent = out->emplace_back();  // first: what was taken must have its place
    extent = set.take(*left);
    if (&set == &holes_) {
      if (Status status = allocate(extent.offset, extent.bytes); !status.ok()) {
        holes_.add(extent.offset, extent.bytes);
        out->pop_back();
        return status;
      }
    }
    *left -= extent.bytes;
  }
  return {};
}

// Makes the file longer by a whole step, or by the least that serves where a step has no room.
Status ExtentFile::grow(uint64_t least_bytes) {
  if (least_bytes > options_.most_bytes || file_bytes_ > options_.most_bytes - least_bytes) {
    return Status::out_of_memory(no_room(least_bytes));
  }
  const uint64_t step =
      std::min(options_.growth_bytes, options_.most_bytes - file_bytes_) / kExtentBytes * kExtentBytes;
  uint64_t bytes = std::max(least_bytes, step);
  Status status = extend(bytes);
  if (status.code() == SPW_ERROR_OUT_OF_MEMORY && bytes > least_bytes) {
    bytes = least_bytes;
    status = extend(bytes);
  }
  if (!status.ok()) return status;
  free_.add(file_bytes_, bytes);
  file_bytes_ += bytes;
  return {};
}

// Where there is not all of it, ext4 and xfs keep what there was.
Status ExtentFile::extend(uint64_t bytes) {
  Status status = allocate(file_bytes_, bytes);
  if (!status.ok()) (void)options_.calls->resize(file_->buffered(), file_bytes_);
  return status;
}

// Where the file system cannot reserve (EOPNOTSUPP), a write may still find the disk full.
Status ExtentFile::allocate(uint64_t offset, uint64_t bytes) {
  const HeldSignal held;
  int error = 0;
  do {
    error = options_.calls->reserve(file_->buffered(), offset, bytes);
  } while (error == EINTR);
  if (error == EOPNOTSUPP) {
    error = options_.calls->resize(file_->buffered(), std::max(file_bytes_, offset + bytes));
  }
  if (error == 0) return {};
  if (is_no_room(error)) return Status::out_of_memory(no_room(bytes) + ": " + std::strerror(error));
  return Status::io(fmt::format("{} bytes of the spill file in {} are not reserved: {}", bytes,
                                options_.directory, std::strerror(error)));
}

std::string ExtentFile::no_room(uint64_t bytes) const {
  return fmt::format("no room for {} more bytes in the spill directory {}; the file has {}, {} of them free",
                     bytes, options_.directory, file_bytes_, free_.total_bytes());
}

void ExtentFile::release(std::span<const Extent> extents) {
  const Lock lock(mutex_);
  for (const Extent& extent : extents) free_.add(extent.offset, extent.bytes);
}

void ExtentFile::quarantine(std::span<const Extent> extents) {
  const Lock lock(mutex_);
  for (const Extent& extent : extents) quarantined_bytes_ += extent.bytes;
}

Status ExtentFile::give_back() {
  const Lock lock(mutex_);
  RangeSet ranges = std::exchange(free_, {});
  int error = 0;
  while (ranges.total_bytes() > 0) {
    const Extent range = ranges.take(ranges.total_bytes());
    const int failed = options_.calls->punch_hole(file_->buffered(), range.offset, range.bytes);
    if (failed != 0) error = failed;
    // Without host memory to note it, it is not used again.
    (void)caught([&]() -> Status {
      mutex_.assert_held();  // caught() calls this here and now
      (failed == 0 ? holes_ : free_).add(range.offset, range.bytes);
      return {};
    });
  }
  if (error == 0) return {};
  return Status::io(fmt::format("free space of the spill file in {} is not given back: {}",
                                options_.directory, std::strerror(error)));
}

ExtentFile::Usage ExtentFile::usage() const {
  const Lock lock(mutex_);
  Usage usage;
  usage.file_bytes = file_bytes_;
  usage.free_bytes = free_.total_bytes();
  usage.hole_bytes = holes_.total_bytes();
  usage.quarantined_bytes = quarantined_bytes_;
  usage.extent_bytes = file_bytes_ - usage.free_bytes - usage.hole_bytes - usage.quarantined_bytes;
  return usage;
}

}  // namespace spillway
