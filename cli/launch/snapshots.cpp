#include "cli/launch/snapshots.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "cli/output.h"
#include "cli/report/html.h"
#include "cli/report/job.h"
#include "cli/report/json.h"

namespace spillway {
namespace {

using Parsed = nlohmann::json;
namespace fs = std::filesystem;

uint64_t peak_of(const Parsed& process) {
  uint64_t most = 0;
  for (const Parsed& device : process["devices"])
    most = std::max(most, device.value("peak_reserved_bytes", uint64_t{0}));
  return most;
}

std::string snapshot_of(const Parsed& process) {
  return process.value("snapshot", std::string());
}

Status copy(const std::string& from, const std::string& to, bool says_where) {
  std::error_code error;
  fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
  if (error) return Status::io(fmt::format("{}: {}", to, error.message()));
  if (says_where) say_written(to, fs::file_size(from, error));
  return {};
}

Status write_out(const std::string& out, const DryrunResults& results, const std::string& most,
                 bool says_where) {
  const size_t at = out.find("%r");
  if (at == std::string::npos) return copy(most, out, says_where);
  for (const Parsed& process : results.users) {
    std::string file = out;
    file.replace(at, 2, std::to_string(process.value("rank", 0)));
    if (snapshot_of(process).empty()) continue;
    if (Status status = copy(snapshot_of(process), file, says_where); !status.ok()) return status;
  }
  return {};
}

Status write_page(const std::string& file, const std::string& snapshot, const nlohmann::ordered_json& answer,
                  bool says_where) {
  JobReport job = report_job({snapshot}, {});
  if (!job.shown) {
    return Status::io(fmt::format("{}: no page, {}", file,
                                  job.complaints.empty() ? "no memory was used" : job.complaints[0]));
  }
  nlohmann::ordered_json page = page_json(job, {});
  page["dryrun"] = answer;
  // The snapshot's own file is gone by then.
  page["shown"]["source"] = answer["program"];
  for (nlohmann::ordered_json& row : page["ranks"]) row["source"] = answer["program"];
  redact_json(page);
  const std::string title = fmt::format("Spillway: dry run of {}", answer["program"].get<std::string>());
  const std::string text = page_html(page, title, SPILLWAY_VERSION);
  return says_where ? write_and_say(file, text) : write_file(file, text);
}

}  // namespace

Status check_folders(const SnapshotFiles& files) {
  for (const std::string& file : {files.out, files.html}) {
    if (Status status = check_folder(file); !status.ok()) return status;
  }
  return {};
}

Status write_snapshots(const SnapshotFiles& files, const DryrunResults& results,
                       const nlohmann::ordered_json& answer, bool says_where) {
  const auto most =
      std::max_element(results.users.begin(), results.users.end(),
                       [](const Parsed& a, const Parsed& b) { return peak_of(a) < peak_of(b); });
  if (most == results.users.end() || snapshot_of(*most).empty()) {
    return Status::io(fmt::format("{}: not written, as no process left a snapshot",
                                  files.out.empty() ? files.html : files.out));
  }
  if (!files.out.empty()) {
    if (Status status = write_out(files.out, results, snapshot_of(*most), says_where); !status.ok())
      return status;
  }
  return files.html.empty() ? Status{} : write_page(files.html, snapshot_of(*most), answer, says_where);
}

}  // namespace spillway
