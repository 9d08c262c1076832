#include "stats/trace_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zstd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "stats/whole_file.h"

namespace spillway {
namespace {

// This is as fast as the disk is: records pack ten times at this level.
constexpr int kCompressionLevel = 1;

bool defines(TraceKind kind) {
  return kind == TraceKind::kText || kind == TraceKind::kStack || kind == TraceKind::kTag;
}

}  // namespace

TraceFile::TraceFile(const TraceFileOptions& options)
    : options_(options),
      run_(fmt::format("{:x}-{:x}", options.process_id, clock_ns(CLOCK_REALTIME))),
      compressor_(ZSTD_createCCtx()) {
  ZSTD_CCtx_setParameter(compressor_, ZSTD_c_compressionLevel, kCompressionLevel);
  ZSTD_CCtx_setParameter(compressor_, ZSTD_c_checksumFlag, 1);
}

TraceFile::~TraceFile() {
  if (file_ >= 0) close(file_);
  ZSTD_freeCCtx(compressor_);
}

Result<std::unique_ptr<TraceFile>> TraceFile::create(const TraceFileOptions& options) {
  std::unique_ptr<TraceFile> file(new TraceFile(options));
  if (file->compressor_ == nullptr) return Status::out_of_memory("no host memory for a compressor");
  if (Status status = file->open(); !status.ok()) return status;
  // What an earlier run kept there is not this one's.
  if (file->is_bounded()) unlink((options.path + ".1").c_str());
  return file;
}

Status TraceFile::fail(const char* what) {
  return Status::io(fmt::format("{}: cannot {}: {}", options_.path, what, std::strerror(errno)));
}

Status TraceFile::open() {
  file_ = ::open(options_.path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file_ < 0) return fail("create it");
  file_bytes_ = 0;
  const nlohmann::ordered_json header{{"version", kTraceVersion},
                                      {"library_version", options_.library_version},
                                      {"process_id", options_.process_id},
                                      {"rank", options_.rank},
                                      {"run", run_},
                                      {"part", part_}};
  const std::string header_text = header.dump();
  std::string begin;
  TraceRecord record;
  record.kind = TraceKind::kHeader;
  record.requested_bytes = header_text.size();
  append(begin, record, header_text);
  begin += definitions_;
  if (lost_ > 0) {
    TraceRecord lost;
    lost.kind = TraceKind::kDropped;
    lost.block_bytes = lost_;
    append(begin, lost, {});
  }
  for (const auto& [address, live] : live_) {
    append(begin, live, {});
    begin[begin.size() - sizeof(TraceRecord) + offsetof(TraceRecord, kind)] =
        static_cast<char>(TraceKind::kLive);
  }
  gathered_.insert(0, begin);
  return write_frame();
}

void TraceFile::append(std::string& to, const TraceRecord& record, std::string_view payload) {
  to.append(reinterpret_cast<const char*>(&record), sizeof(record));
  to += payload;
  to.append(padded_payload(payload.size()) - payload.size(), '\0');
}

void TraceFile::add(const TraceRecord& record) {
  append(gathered_, record, {});
  if (record.kind == TraceKind::kDropped) lost_ += record.block_bytes;
  if (is_bounded()) note_live(record);
}

void TraceFile::add(TraceRecord record, std::string_view payload) {
  record.requested_bytes = payload.size();
  append(gathered_, record, payload);
  if (is_bounded() && defines(record.kind)) append(definitions_, record, payload);
}

void TraceFile::define(const TraceRecord& record) {
  append(gathered_, record, {});
  if (is_bounded()) append(definitions_, record, {});
}

void TraceFile::note_live(const TraceRecord& record) {
  switch (record.kind) {
    case TraceKind::kAllocate:
    case TraceKind::kPlace:
      live_[record.address] = record;
      break;
    case TraceKind::kFree:
    case TraceKind::kFreeCompleted:
    case TraceKind::kUnplace: {
      // Clocks of two threads may disagree by some ns: a free never ends what was allocated after it.
      const auto found = live_.find(record.address);
      if (found != live_.end() && found->second.ticks <= record.ticks) live_.erase(found);
      break;
    }
    default:
      break;
  }
}

Status TraceFile::flush() {
  if (gathered_.empty()) return {};
  if (file_ < 0) {
    gathered_.clear();
    return {};
  }
  if (Status status = write_frame(); !status.ok()) return status;
  return is_bounded() && file_bytes_ >= options_.most_bytes / 2 ? rotate() : Status();
}

Status TraceFile::write_frame() {
  packed_.resize(ZSTD_compressBound(gathered_.size()));
  const size_t bytes =
      ZSTD_compress2(compressor_, packed_.data(), packed_.size(), gathered_.data(), gathered_.size());
  gathered_.clear();
  if (ZSTD_isError(bytes) == 0 && write_all(file_, std::string_view(packed_).substr(0, bytes))) {
    file_bytes_ += bytes;
    return {};
  }
  Status status = ZSTD_isError(bytes) == 0 ? fail("write it") : Status::internal(ZSTD_getErrorName(bytes));
  // Readers need not meet half a frame.
  if (ftruncate(file_, static_cast<off_t>(file_bytes_)) != 0) errno = 0;
  close(std::exchange(file_, -1));
  return status;
}

Status TraceFile::rotate() {
  close(std::exchange(file_, -1));
  if (rename(options_.path.c_str(), (options_.path + ".1").c_str()) != 0)
    return fail("keep it as the older half");
  ++part_;
  return open();
}

}  // namespace spillway
