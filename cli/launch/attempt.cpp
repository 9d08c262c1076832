#include "cli/launch/attempt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>

#include "cli/launch/allocators.h"
#include "cli/launch/child.h"
#include "cli/launch/descendants.h"
#include "cli/launch/meeting.h"
#include "cli/launch/refusals.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

Result<std::shared_ptr<const fs::path>> temporary_folder() {
  std::string folder = (fs::temp_directory_path() / "spillway-dryrun-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return Status::io(fmt::format("no temporary folder: {}", folder));
  return std::shared_ptr<const fs::path>(new fs::path(folder), [](const fs::path* path) {
    std::error_code ignored;
    fs::remove_all(*path, ignored);
    delete path;
  });
}

void set_environment(const AttemptSetting& setting, uint64_t capacity_bytes, const fs::path& folder) {
  // Host memory is used for what is copied to the device, not for what is only allocated there.
  const std::string device = fmt::format("capacity:{}B,devices:{},races:off,backing:{}", capacity_bytes,
                                         setting.devices, setting.keeps_bytes ? "memfd" : "none");
  ::setenv("SPILLWAY_SIM", device.c_str(), 1);
  ::setenv("SPILLWAY_DRYRUN", folder.c_str(), 1);
  if (setting.keeps_snapshots) {
    const fs::path snapshots = folder / "snapshots";
    std::error_code ignored;
    fs::create_directory(snapshots, ignored);
    ::setenv("SPILLWAY_DRYRUN_SNAPSHOTS", snapshots.c_str(), 1);
  } else {
    ::unsetenv("SPILLWAY_DRYRUN_SNAPSHOTS");
  }
}

// By which the program was ended, or asked to end; 0: it was not. A crash is none.
int ending_signal(const Ended& ended) {
  if (const int asked = asked_to_end(); asked != 0) return asked;
  constexpr std::array kEndings = {SIGTERM, SIGHUP, SIGINT, SIGQUIT};
  return std::find(kEndings.begin(), kEndings.end(), ended.signal) == kEndings.end() ? 0 : ended.signal;
}

}  // namespace

int signal_after(const Attempt& made) {
  return made.signal != 0 ? made.signal : asked_to_end();
}

Result<Attempt> attempt(const AttemptSetting& setting, const std::string& allocator,
                        uint64_t capacity_bytes) {
  Result<std::shared_ptr<const fs::path>> folder = temporary_folder();
  if (!folder.ok()) return folder.take_status();
  set_environment(setting, capacity_bytes, *folder.value());
  const AllocatorEnvironment environment(allocator);
  Meeting meeting;
  if (Status status = meeting.start(setting.libraries, setting.ranks); !status.ok()) return status;
  adopt_descendants();
  Result<Ended> ended = run_and_wait(setting.program);
  const int signal = ended.ok() ? ending_signal(ended.value()) : 0;
  if (signal != 0) end_descendants(signal);
  Attempt made{allocator, capacity_bytes, results_in(*folder.value()), 0, 0, {}, folder.value()};
  made.results.met = meeting.end();
  if (!ended.ok()) return ended.take_status();
  made.code = ended->exit_code();
  made.signal = signal;
  forgive_refusals(made.results.users, made.code);
  made.verdict = judge(made.results, made.code, signal != 0);
  // SPILLWAY_DISABLE may have the last word.
  const auto& users = made.results.users;
  if (!users.empty() && allocator == "spillway") made.allocator = users.front().value("allocator", allocator);
  return made;
}

}  // namespace spillway
