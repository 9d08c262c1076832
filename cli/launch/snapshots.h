// The snapshot of a dry run's memory (--out), and a page of it (--html).
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/launch/results.h"
#include "driver/status.h"

namespace spillway {

struct SnapshotFiles {
  std::string out;   // of the rank with most; with %r in it of each rank, by its number
  std::string html;  // of the rank with most
  bool any() const { return !out.empty() || !html.empty(); }
};

// Before a program runs for minutes: whether what is to be written has a folder that takes it. Errors: io.
Status check_folders(const SnapshotFiles& files);

// From what the processes kept. `answer`: of dryrun_page(), which is part of the page. With `says_where` each
// file is named on stderr. Errors: io.
Status write_snapshots(const SnapshotFiles& files, const DryrunResults& results,
                       const nlohmann::ordered_json& answer, bool says_where);

}  // namespace spillway
