// The block size and depth that serve each disk best, kept for the processes to come: one small file of the
// user's, by the number of the file system (st_dev). What is damaged, or of a disk used in another way,
// counts as not there.
//
// Written whole or not at all. Of two processes that keep something at once one may win: the other disk is
// tuned again. Thread-safe.
#pragma once

#include <optional>
#include <string>

#include "driver/status.h"
#include "offload/io/engine.h"

namespace spillway {

class TunedDisks {
 public:
  // In $XDG_CACHE_HOME, else in ~/.cache; without either nothing is kept.
  TunedDisks();
  explicit TunedDisks(std::string path) : path_(std::move(path)) {}

  // `options` with what serves the directory's disk best, if that is known. `is_direct`: past the page cache.
  std::optional<IoOptions> find(const std::string& directory, const IoOptions& options, bool is_direct) const;
  // Errors: io (no such directory; the file cannot be written).
  Status keep(const std::string& directory, const IoOptions& options, bool is_direct) const;

  // Empty where nothing is kept.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace spillway
