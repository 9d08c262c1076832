#include "offload/spill/disk_tier.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

// Inside the library: a program that Spillway is loaded into may have another version.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace spillway {
namespace {

uint64_t checksum(std::span<const std::byte> memory) {
  return XXH3_64bits(memory.data(), memory.size());
}

bool is_zero(std::span<const std::byte> memory) {
  // Each byte equals the one before it, and the first is 0.
  return memory.empty() || (memory.front() == std::byte{0} &&
                            std::memcmp(memory.data(), memory.data() + 1, memory.size() - 1) == 0);
}

template <typename Visit>
bool for_each_checksum(std::span<const std::byte> memory, Visit visit) {
  for (size_t i = 0; i * kChecksumBytes < memory.size(); ++i) {
    const size_t begin = i * kChecksumBytes;
    if (!visit(i, memory.subspan(begin, std::min(kChecksumBytes, memory.size() - begin)))) return false;
  }
  return true;
}

bool matches(std::span<const std::byte> memory, const DiskPiece& piece) {
  return for_each_checksum(memory, [&](size_t i, std::span<const std::byte> part) {
    return checksum(part) == piece.checksums[i];
  });
}

std::span<std::byte> whole_sectors(std::span<std::byte> memory) {
  constexpr size_t kMask = DiskTier::kAlignment - 1;
  return {memory.data(), (memory.size() + kMask) & ~kMask};
}

std::string reason(int error) {
  return error == ENODATA ? "the file ends before them" : std::system_category().message(error);
}

int64_t today() {
  using Days = std::chrono::duration<int64_t, std::ratio<86400>>;
  return std::chrono::duration_cast<Days>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

DiskPiece describe(std::span<const std::byte> memory) {
  DiskPiece piece;
  piece.is_zero = is_zero(memory);
  if (piece.is_zero) return piece;
  for_each_checksum(memory, [&](size_t i, std::span<const std::byte> part) {
    piece.checksums[i] = checksum(part);
    return true;
  });
  return piece;
}

struct DiskTier::Write {
  std::span<std::byte> memory;
  DiskPiece& piece;
  IoPriority priority;
  Done done;
  int writes = 0;
};

DiskTier::DiskTier(DiskTierOptions options)
    : options_(std::move(options)),
      engine_(options_.make_queue ? IoEngine(options_.io, options_.make_queue) : IoEngine(options_.io)) {}

DiskTier::~DiskTier() = default;

// ---- Room

Status DiskTier::open() {
  if (!exists()) return Status::unsupported("no directory for spilled memory is set: see spill_dir");
  if (file_ != nullptr) return {};
  Result<std::unique_ptr<ExtentFile>> file = ExtentFile::open(options_.file);
  if (!file.ok()) return file.take_status();
  file_ = std::move(file.value());
  return {};
}

Status DiskTier::budget(uint64_t bytes) {
  if (const int64_t day = today(); day != budget_day_) {
    budget_day_ = day;
    budget_used_bytes_ = 0;
  }
  if (bytes > options_.daily_write_bytes - std::min(budget_used_bytes_, options_.daily_write_bytes)) {
    return Status::out_of_memory(
        fmt::format("{}: {} of the {} bytes that may be written in a day are written; {} more are wanted",
                    options_.file.directory, budget_used_bytes_, options_.daily_write_bytes, bytes));
  }
  budget_used_bytes_ += bytes;
  return {};
}

Status DiskTier::reserve(uint64_t bytes, std::vector<DiskPiece>* pieces) {
  static_assert(kPieceBytes == kExtentBytes);
  const std::lock_guard lock(mutex_);
  if (Status status = open(); !status.ok()) return status;
  if (failures_in_a_row_ >= kMostFailures) {
    return Status::io(fmt::format("{}: {} writes in a row failed, so nothing more is spilled there",
                                  options_.file.directory, failures_in_a_row_));
  }
  if (Status status = budget(bytes); !status.ok()) return status;
  Result<std::vector<Extent>> extents = file_->reserve(piece_count(bytes) * kPieceBytes);
  if (!extents.ok()) {
    budget_used_bytes_ -= bytes;
    return extents.take_status();
  }
  std::vector<DiskPiece> made;
  made.reserve(piece_count(bytes));
  for (const Extent& extent : extents.value()) {
    for (uint64_t at = 0; at < extent.bytes; at += kPieceBytes)
      made.emplace_back().offset = extent.offset + at;
  }
  counters_.blocks_bytes += made.size() * kPieceBytes;
  *pieces = std::move(made);
  return {};
}

void DiskTier::release(std::vector<DiskPiece>& pieces) {
  std::vector<Extent> extents;
  for (const DiskPiece& piece : pieces) {
    if (piece.offset == DiskPiece::kNowhere) continue;
    if (!extents.empty() && extents.back().offset + extents.back().bytes == piece.offset) {
      extents.back().bytes += kPieceBytes;
    } else {
      extents.push_back({piece.offset, kPieceBytes});
    }
  }
  pieces.clear();
  if (extents.empty()) return;
  const std::lock_guard lock(mutex_);
  for (const Extent& extent : extents) counters_.blocks_bytes -= extent.bytes;
  file_->release(extents);
}

// ---- Writing

void DiskTier::write(std::span<std::byte> memory, DiskPiece& piece, IoPriority priority, Done done) {
  const uint64_t offset = piece.offset;
  piece = describe(memory);
  piece.offset = offset;
  if (piece.is_zero) {
    {
      const std::lock_guard lock(mutex_);
      counters_.zero_bytes += memory.size();
    }
    done({});
    return;
  }
  submit_write(std::make_shared<Write>(Write{memory, piece, priority, std::move(done)}));
}

void DiskTier::submit_write(const std::shared_ptr<Write>& write) {
  ++write->writes;
  IoRequest request{IoKind::kWrite, write->priority, &file_->file(), whole_sectors(write->memory),
                    write->piece.offset};
  Status status = engine_.submit(request, [this, write](int error) { write_ended(write, error); });
  if (!status.ok()) write->done(std::move(status));
}

void DiskTier::write_ended(const std::shared_ptr<Write>& write, int error) {
  bool again = false;
  {
    const std::lock_guard lock(mutex_);
    if (error == 0) {
      failures_in_a_row_ = 0;
      counters_.written_bytes += write->memory.size();
    } else if (write->writes < kMostWrites) {
      // Nobody gets the bad place again; another one is tried.
      Result<std::vector<Extent>> other = file_->reserve(kPieceBytes);
      if (other.ok()) {
        const Extent bad{write->piece.offset, kPieceBytes};
        file_->quarantine({&bad, 1});
        write->piece.offset = other->front().offset;
        ++counters_.repeated_writes;
        again = true;
      }
    }
    if (error != 0 && !again) {
      ++failures_in_a_row_;
      ++counters_.failed_writes;
    }
  }
  if (again) {
    submit_write(write);
  } else if (error == 0) {
    write->done({});
  } else {
    write->done(Status::io(fmt::format("{}: {} bytes at {} of the spill file could not be written: {}",
                                       options_.file.directory, write->memory.size(), write->piece.offset,
                                       reason(error))));
  }
}

// ---- Reading

void DiskTier::read(std::span<std::byte> memory, const DiskPiece& piece, IoPriority priority, Done done) {
  if (piece.is_zero) {
    std::fill(memory.begin(), memory.end(), std::byte{0});
    done({});
    return;
  }
  IoRequest request{IoKind::kRead, priority, &file_->file(), whole_sectors(memory), piece.offset};
  auto ended = std::make_shared<Done>(std::move(done));
  Status status = engine_.submit(request, [this, ended, size = memory.size(),
                                           offset = piece.offset](int error) {
    {
      const std::lock_guard lock(mutex_);
      if (error == 0) counters_.read_bytes += size;
    }
    (*ended)(error == 0
                 ? Status()
                 : Status::data_lost(fmt::format("{}: {} bytes at {} of the spill file could not be read: {}",
                                                 options_.file.directory, size, offset, reason(error))));
  });
  if (!status.ok()) (*ended)(std::move(status));
}

Status DiskTier::verify(std::span<std::byte> memory, const DiskPiece& piece) {
  if (piece.is_zero) return {};
  bool good = matches(memory, piece);
  if (!good) {
    // Once more, through the page cache: the way past it may be what is wrong.
    size_t done = 0;
    while (done < memory.size()) {
      const ssize_t got = ::pread(file_->file().buffered(), memory.data() + done, memory.size() - done,
                                  static_cast<off_t>(piece.offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      done += static_cast<size_t>(got);
    }
    good = done == memory.size() && matches(memory, piece);
  }
  const std::lock_guard lock(mutex_);
  counters_.verified_bytes += memory.size();
  if (good) return {};
  ++counters_.mismatches;
  return Status::data_lost(
      fmt::format("{}: {} bytes at {} of the spill file are not what was written there (checksum): nothing "
                  "is restored from them",
                  options_.file.directory, memory.size(), piece.offset));
}

// ---- For reports

DiskCounters DiskTier::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

ExtentFile::Usage DiskTier::usage() const {
  const std::lock_guard lock(mutex_);
  return file_ == nullptr ? ExtentFile::Usage{} : file_->usage();
}

std::string DiskTier::warning() const {
  const std::lock_guard lock(mutex_);
  return file_ == nullptr ? std::string() : file_->warning();
}

}  // namespace spillway
