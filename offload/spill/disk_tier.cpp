#include "offload/spill/disk_tier.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "offload/spill/checksum.h"

namespace spillway {
namespace {

constexpr unsigned kMostThreads = 4;
constexpr uint32_t kMostPackedWrites = 32;

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

// What was written of a piece is read to the begin of its memory, and unpacked from there.
std::span<std::byte> stored_part(std::span<std::byte> memory, const DiskPiece& piece) {
  return piece.packed_bytes > 0 ? memory.first(piece.packed_bytes) : memory;
}

std::string reason(int error) {
  return error == ENODATA ? "the file ends before them" : std::system_category().message(error);
}

int64_t today() {
  using Days = std::chrono::duration<int64_t, std::ratio<86400>>;
  return std::chrono::duration_cast<Days>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

struct DiskTier::Write {
  struct Freed {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };

  std::span<std::byte> memory;
  DiskPiece& piece;
  IoPriority priority;
  Packer* packer;
  Done done = nullptr;
  int writes = 0;
  std::unique_ptr<std::byte, Freed> packed = nullptr;  // what is written instead, if anything

  std::span<std::byte> stored() const {
    return packed == nullptr ? memory : std::span(packed.get(), piece.packed_bytes);
  }
};

struct DiskTier::Read {
  std::span<std::byte> memory;
  const DiskPiece& piece;
  Done done = nullptr;
};

DiskTier::DiskTier(DiskTierOptions options)
    : options_(std::move(options)),
      all_writes_(options_.file.directory),
      threads_(std::clamp(std::thread::hardware_concurrency() / 2, 1u, kMostThreads)),
      workers_(threads_),
      engine_(options_.make_queue ? IoEngine(options_.io, options_.make_queue) : IoEngine(options_.io)) {}

DiskTier::~DiskTier() {
  // A thread that has submitted a request may not have returned from that.
  workers_.drain();
}

// ---- Room

Status DiskTier::open() {
  if (!exists()) return Status::unsupported("no directory for spilled memory is set: see spill_dir");
  if (file_ != nullptr) return {};
  Result<std::unique_ptr<ExtentFile>> file = ExtentFile::open(options_.file);
  if (!file.ok()) return file.take_status();
  file_ = std::move(file.value());
  if (const std::string& warning = file_->warning(); !warning.empty())
    std::fprintf(stderr, "spillway: %s\n", warning.c_str());
  (void)engine_.use_file(file_->file());  // an engine that does not start says so when it is asked
  return {};
}

uint64_t DiskTier::planned_today() const {
  const uint64_t written_bytes = engine_.counters().written_bytes;
  return written_bytes - (today() == day_ ? written_before_day_bytes_ : written_bytes) + planned_bytes_;
}

uint64_t DiskTier::used_today() const {
  return planned_today() + (today() == day_ ? others_bytes_ : 0);
}

Status DiskTier::plan(uint64_t bytes) {
  if (const int64_t day = today(); day != day_) {
    day_ = day;
    written_before_day_bytes_ = engine_.counters().written_bytes;
    others_bytes_ = 0;
  }
  const uint64_t most = options_.daily_write_bytes;
  const auto now = std::chrono::steady_clock::now();
  if (most != ~uint64_t{0} && now >= next_claim_) {
    Result<DailyWrites::Answer> answer = all_writes_.claim(day_, planned_today(), bytes, most);
    if (answer.ok()) {
      others_bytes_ = answer->others_bytes;
    } else {
      next_claim_ = now + kBetweenFailedClaims;
    }
    if (!answer.ok() && !std::exchange(has_complained_, true)) {
      std::fprintf(stderr, "spillway: %s: spill_daily_writes bounds what this process alone writes\n",
                   answer.status().text().c_str());
    }
  }
  const uint64_t used = used_today();
  if (bytes > most - std::min(used, most)) {
    return Status::out_of_memory(fmt::format(
        "{}: {} of the {} bytes that may be written in a day are written or about to be; {} more are wanted",
        options_.file.directory, used, options_.daily_write_bytes, bytes));
  }
  planned_bytes_ += bytes;
  return {};
}

void DiskTier::end_plan(DiskPiece& piece) {
  planned_bytes_ -= std::exchange(piece.planned_bytes, 0);
}

Status DiskTier::reserve(uint64_t bytes, std::vector<DiskPiece>* pieces) {
  static_assert(kPieceBytes == kExtentBytes);
  std::vector<DiskPiece> made;
  made.reserve(piece_count(bytes));
  const Lock lock(mutex_);
  if (Status status = open(); !status.ok()) return status;
  if (failures_in_a_row_ >= kMostFailures) {
    return Status::io(fmt::format("{}: {} writes in a row failed, so nothing more is spilled there",
                                  options_.file.directory, failures_in_a_row_));
  }
  if (Status status = plan(bytes); !status.ok()) return status;
  Result<std::vector<Extent>> extents = file_->reserve(piece_count(bytes) * kPieceBytes);
  if (!extents.ok()) {
    planned_bytes_ -= bytes;
    return extents.take_status();
  }
  for (const Extent& extent : extents.value()) {
    for (uint64_t at = 0; at < extent.bytes; at += kPieceBytes) {
      const uint64_t before = made.size() * kPieceBytes;
      DiskPiece& piece = made.emplace_back();
      piece.offset = extent.offset + at;
      piece.planned_bytes = static_cast<uint32_t>(std::min<uint64_t>(kPieceBytes, bytes - before));
    }
  }
  counters_.blocks_bytes += made.size() * kPieceBytes;
  *pieces = std::move(made);
  return {};
}

void DiskTier::release(std::vector<DiskPiece>& pieces) noexcept {
  const std::vector<DiskPiece> released = std::exchange(pieces, {});
  const Lock lock(mutex_);
  size_t placed = 0;
  for (const DiskPiece& piece : released) {
    planned_bytes_ -= piece.planned_bytes;
    placed += piece.offset == DiskPiece::kNowhere ? 0 : 1;
  }
  counters_.blocks_bytes -= placed * kPieceBytes;
  (void)caught([&]() -> Status {
    mutex_.assert_held();  // caught() calls this here and now
    std::vector<Extent> extents;
    for (const DiskPiece& piece : released) {
      if (piece.offset == DiskPiece::kNowhere) continue;
      if (!extents.empty() && extents.back().offset + extents.back().bytes == piece.offset) {
        extents.back().bytes += kPieceBytes;
      } else {
        extents.push_back({piece.offset, kPieceBytes});
      }
    }
    if (!extents.empty()) file_->release(extents);
    return {};
  });
}

// ---- Writing

void DiskTier::write(std::span<std::byte> memory, DiskPiece& piece, IoPriority priority, Packer* packer,
                     Done done) noexcept {
  std::shared_ptr<Write> write;
  Status status = caught([&]() -> Status {
    write = std::make_shared<Write>(Write{memory, piece, priority, packer});
    write->done.swap(done);
    workers_.run([this, write] {
      Status begun = caught([&] { return begin_write(write); });
      if (!begun.ok()) write->done(std::move(begun));
    });
    return {};
  });
  if (!status.ok()) (write == nullptr ? done : write->done)(std::move(status));
}

Status DiskTier::begin_write(const std::shared_ptr<Write>& write) {
  DiskPiece& piece = write->piece;
  const DiskPiece reserved = piece;
  piece = {};
  piece.offset = reserved.offset;
  piece.planned_bytes = reserved.planned_bytes;
  piece.is_zero = is_zero(write->memory);
  if (piece.is_zero) {
    {
      const Lock lock(mutex_);
      counters_.zero_bytes += write->memory.size();
      end_plan(piece);
    }
    write->done({});
    return {};
  }
  if (write->packer != nullptr) pack(*write);
  for_each_checksum(write->stored(), [&](size_t i, std::span<const std::byte> part) {
    piece.checksums[i] = checksum(part);
    return true;
  });
  return submit_write(write);
}

void DiskTier::pack(Write& write) {
  std::optional<double> per_ns;
  {
    const Lock lock(mutex_);
    per_ns = disk_bytes_per_ns();
    if (!per_ns.has_value() || packed_writes_ == kMostPackedWrites) return;
    ++packed_writes_;
  }
  std::unique_ptr<std::byte, Write::Freed> out(
      static_cast<std::byte*>(std::aligned_alloc(kAlignment, whole_sectors(write.memory).size())));
  std::optional<Packer::Packed> packed;
  const Status tried = caught([&]() -> Status {
    if (out != nullptr)
      packed = write.packer->pack(write.memory, {out.get(), write.memory.size()}, *per_ns / threads_);
    return {};
  });
  if (!tried.ok() || !packed.has_value()) {
    const Lock lock(mutex_);
    --packed_writes_;
    return;
  }
  write.piece.packing = packed->packing;
  write.piece.packed_bytes = static_cast<uint32_t>(packed->bytes);
  write.packed = std::move(out);
  // The rest of the last sector is written too.
  const std::span<std::byte> sectors = whole_sectors(write.stored());
  std::fill(sectors.begin() + static_cast<ptrdiff_t>(packed->bytes), sectors.end(), std::byte{0});
}

std::optional<double> DiskTier::disk_bytes_per_ns() const {
  if (options_.daily_write_bytes != ~uint64_t{0}) return 0.0;  // every byte counts
  if (options_.write_bytes_per_s > 0) return options_.write_bytes_per_s / 1e9;
  if (writing_ns_ == 0) return std::nullopt;
  return static_cast<double>(timed_bytes_) / writing_ns_;
}

Status DiskTier::submit_write(const std::shared_ptr<Write>& write) noexcept {
  ++write->writes;
  {
    const Lock lock(mutex_);
    if (writes_++ == 0) writing_since_ = std::chrono::steady_clock::now();
  }
  const IoRequest request{IoKind::kWrite, write->priority, &file().file(), whole_sectors(write->stored()),
                          write->piece.offset};
  Status status = caught(
      [&] { return engine_.submit(request, [this, write](int error) { write_ended(write, error); }); });
  if (status.ok()) return status;
  const Lock lock(mutex_);
  --writes_;
  if (write->packed != nullptr) --packed_writes_;
  return status;
}

void DiskTier::count_failure(bool is_full) {
  ++counters_.failed_writes;
  if (!is_full) ++failures_in_a_row_;
}

bool DiskTier::replace_bad_place(Write& write) {
  const Extent bad{write.piece.offset, kPieceBytes};
  file_->quarantine({&bad, 1});
  write.piece.offset = DiskPiece::kNowhere;
  counters_.blocks_bytes -= kPieceBytes;
  if (write.writes == kMostWrites) return false;
  Result<std::vector<Extent>> other = file_->reserve(kPieceBytes);
  if (!other.ok()) return false;
  write.piece.offset = other->front().offset;
  counters_.blocks_bytes += kPieceBytes;
  ++counters_.repeated_writes;
  return true;
}

void DiskTier::write_ended(const std::shared_ptr<Write>& write, int error) noexcept {
  const bool is_full = is_no_room(error);
  const uint64_t offset = write->piece.offset;
  bool again = false;
  {
    const Lock lock(mutex_);
    if (--writes_ == 0) {
      writing_ns_ +=
          std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - writing_since_).count();
    }
    if (error == 0) {
      // What is in the page cache is not written yet.
      if (file_->file().is_direct()) failures_in_a_row_ = 0;
      const size_t bytes = write->stored().size();
      counters_.written_bytes += bytes;
      counters_.saved_bytes += write->memory.size() - bytes;
      timed_bytes_ += bytes;
    } else if (!is_full) {
      (void)caught([&]() -> Status {
        mutex_.assert_held();  // caught() calls this here and now
        again = replace_bad_place(*write);
        return {};
      });
    }
    if (!again) end_plan(write->piece);
    if (!again && write->packed != nullptr) --packed_writes_;
    if (error != 0 && !again) count_failure(is_full);
  }
  if (again) {
    if (Status status = submit_write(write); !status.ok()) write->done(std::move(status));
    return;
  }
  write->done(caught([&]() -> Status {
    if (error == 0) return {};
    std::string text = fmt::format("{}: {} bytes at {} of the spill file could not be written: {}",
                                   options_.file.directory, write->memory.size(), offset, reason(error));
    return is_full ? Status::out_of_memory(std::move(text)) : Status::io(std::move(text));
  }));
}

Status DiskTier::sync_file() {
  if (!file().file().take_unsynced()) return {};
  // Whoever else wrote meanwhile must hear of it where this could not even begin.
  Status status = caught([&] {
    return engine_.run({IoKind::kSync, IoPriority::kEvict, &file().file(), {}, 0});
  });
  const Lock lock(mutex_);
  if (status.ok()) {
    failures_in_a_row_ = 0;
  } else {
    ++sync_failures_;
    count_failure(status.code() == SPW_ERROR_OUT_OF_MEMORY);
  }
  return status;
}

Status DiskTier::sync(uint64_t since) {
  const Lock sync_lock(sync_mutex_);
  const Status status = sync_file();
  if (status.ok() && sync_failures_ == since) return {};
  std::string text = fmt::format("{}: what was written to the spill file may not have reached the disk{}{}",
                                 options_.file.directory, status.ok() ? "" : ": ", status.text());
  return Status(status.ok() ? SPW_ERROR_IO : status.code(), std::move(text));
}

// ---- Reading

void DiskTier::read(std::span<std::byte> memory, const DiskPiece& piece, IoPriority priority,
                    Done done) noexcept {
  if (piece.is_zero) {
    std::fill(memory.begin(), memory.end(), std::byte{0});
    done({});
    return;
  }
  std::shared_ptr<Read> read;
  Status status = caught([&] {
    read = std::make_shared<Read>(Read{memory, piece});
    read->done.swap(done);
    const IoRequest request{IoKind::kRead, priority, &file().file(),
                            whole_sectors(stored_part(memory, piece)), piece.offset};
    return engine_.submit(request, [this, read](int error) { read_ended(read, error); });
  });
  if (!status.ok()) (read == nullptr ? done : read->done)(std::move(status));
}

void DiskTier::read_ended(const std::shared_ptr<Read>& read, int error) noexcept {
  const size_t bytes = stored_part(read->memory, read->piece).size();
  Status status = caught([&]() -> Status {
    if (error != 0) {
      return unreadable(read->piece, bytes, error);
    }
    {
      const Lock lock(mutex_);
      counters_.read_bytes += bytes;
    }
    workers_.run([this, read] { read->done(caught([&] { return verify(read->memory, read->piece); })); });
    return {};
  });
  if (!status.ok()) read->done(std::move(status));
}

// What is not lost may be read another time: for now there is no memory for it, say.
Status DiskTier::unreadable(const DiskPiece& piece, size_t bytes, int error) const {
  std::string text = fmt::format("{}: {} bytes at {} of the spill file could not be read: {}",
                                 options_.file.directory, bytes, piece.offset, reason(error));
  return is_loss(error) ? Status::data_lost(std::move(text)) : Status::io(std::move(text));
}

Status DiskTier::verify(std::span<std::byte> memory, const DiskPiece& piece) {
  const std::span<std::byte> stored = stored_part(memory, piece);
  bool good = matches(stored, piece);
  if (!good) {
    // Once more, through the page cache: the way past it may be what is wrong.
    size_t done = 0;
    while (done < stored.size()) {
      const ssize_t got = ::pread(file().file().buffered(), stored.data() + done, stored.size() - done,
                                  static_cast<off_t>(piece.offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && !is_loss(errno)) return unreadable(piece, stored.size(), errno);
      if (got <= 0) break;
      done += static_cast<size_t>(got);
    }
    good = done == stored.size() && matches(stored, piece);
  }
  if (good && piece.packed_bytes > 0) {
    const std::vector<std::byte> packed(stored.begin(), stored.end());
    if (!unpack(piece.packing, packed, memory)) {
      // They are what was written: the codec had no memory, say.
      return Status::io(fmt::format("{}: {} bytes at {} of the spill file could not be unpacked",
                                    options_.file.directory, stored.size(), piece.offset));
    }
  }
  const Lock lock(mutex_);
  counters_.verified_bytes += stored.size();
  if (good) return {};
  ++counters_.mismatches;
  return Status::data_lost(
      fmt::format("{}: {} bytes at {} of the spill file are not what was written there (checksum): nothing "
                  "is restored from them",
                  options_.file.directory, stored.size(), piece.offset));
}

// ---- For reports

DiskCounters DiskTier::counters() const {
  const Lock lock(mutex_);
  DiskCounters counters = counters_;
  counters.today_bytes = used_today();
  return counters;
}

ExtentFile::Usage DiskTier::usage() const {
  const Lock lock(mutex_);
  return file_ == nullptr ? ExtentFile::Usage{} : file_->usage();
}

void DiskTier::give_back() {
  const Lock lock(mutex_);
  if (file_ != nullptr) (void)file_->give_back();
}

}  // namespace spillway
