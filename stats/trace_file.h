// Puts records into a trace file: see trace_record.h for its form.
//
// Records are gathered and become one zstd frame by flush(). With a bound, the file is begun anew when it has
// reached half of it, and the old one kept beside it as PATH.1: the two together are the tail. A new file
// begins with what the old one defined, with how many records were dropped before it, and with the blocks
// that live, so it can be read alone.
//
// One thread's. Errors: io; after the first, nothing more is written, and the file ends with its last whole
// frame.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "driver/status.h"
#include "stats/trace_record.h"

struct ZSTD_CCtx_s;

namespace spillway {

struct TraceFileOptions {
  std::string path;
  uint64_t most_bytes = UINT64_MAX;  // of the two files together
  std::string library_version;
  int64_t process_id = 0;
  int64_t rank = 0;
};

class TraceFile {
 public:
  // Creates the file, or empties it. Errors: io.
  static Result<std::unique_ptr<TraceFile>> create(const TraceFileOptions& options);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  void add(const TraceRecord& record);
  // Adds it with the payload that the kind has, which is kept for the next file where it defines something.
  void add(TraceRecord record, std::string_view payload);
  // Kept for the next file: a frame's record.
  void define(const TraceRecord& record);
  Status flush();

 private:
  explicit TraceFile(const TraceFileOptions& options);
  Status open();
  Status rotate();
  Status write_frame();
  Status fail(const char* what);
  bool is_bounded() const { return options_.most_bytes != UINT64_MAX; }
  void note_live(const TraceRecord& record);
  static void append(std::string& to, const TraceRecord& record, std::string_view payload);

  const TraceFileOptions options_;
  const std::string run_;  // the same in both files, and in no other run's
  ZSTD_CCtx_s* const compressor_;
  int file_ = -1;
  uint64_t file_bytes_ = 0;
  uint32_t part_ = 0;
  uint64_t lost_ = 0;  // records, in all parts
  std::string gathered_;
  std::string packed_;
  std::string definitions_;
  std::unordered_map<uint64_t, TraceRecord> live_;  // by address; kept only where bounded
};

}  // namespace spillway
