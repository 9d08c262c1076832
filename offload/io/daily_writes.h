// Records what was written on one day to the disk of a directory, by all processes of a user that spill there
// and bound it: in one small file in that directory, which outlives them. What one of them has reserved and
// not written when it dies counts as written.
//
// A file that is damaged, or of another day, counts as none. Each claim is a few calls of the kernel under
// flock(2). Belongs to whoever guards it; the file is the
// user's.
#pragma once

#include <cstdint>
#include <string>

#include "driver/status.h"

namespace spillway {

class DailyWrites {
 public:
  static constexpr const char* kName = "spillway-written-today";

  explicit DailyWrites(const std::string& directory);

  struct Answer {
    bool is_granted = false;
    uint64_t others_bytes = 0;  // of that day
  };
  // Claims `own_bytes` that the caller wrote on `day`, or is about to, and `more_bytes` that it wants to:
  // granted where all of them and those of others are at most `most_bytes`. What it said before of that day
  // is replaced. Errors: io (the file cannot be made or written, or somebody holds it for a tenth of a
  // second).
  Result<Answer> claim(int64_t day, uint64_t own_bytes, uint64_t more_bytes, uint64_t most_bytes);

  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  int64_t day_ = -1;
  uint64_t said_bytes_ = 0;  // in the file, of ours, on that day
};

}  // namespace spillway
