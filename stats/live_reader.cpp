#include "stats/live_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway {
namespace {

namespace fs = std::filesystem;

class File {
 public:
  explicit File(const std::string& path)
      // Not blocked by a pipe, not led elsewhere by a link.
      : number_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) {}
  ~File() {
    if (number_ >= 0) close(number_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  explicit operator bool() const { return number_ >= 0; }
  int number() const { return number_; }

  // All of it, or false.
  bool read(void* to, size_t bytes, size_t offset) const {
    auto* out = static_cast<char*>(to);
    while (bytes > 0) {
      const ssize_t count = pread(number_, out, bytes, static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return false;
      out += count;
      offset += static_cast<size_t>(count);
      bytes -= static_cast<size_t>(count);
    }
    return true;
  }

 private:
  int number_;
};

Status refused(const std::string& path, const std::string& why) {
  return Status::invalid_argument(fmt::format("{}: {}", path, why));
}

// Text of a page, and the name of its file, are shown on terminals.
std::string printable(std::string text) {
  for (char& letter : text) {
    if (letter < ' ' || letter > '~') letter = '?';
  }
  return text;
}

template <size_t capacity>
std::string text_of(const char (&field)[capacity]) {
  return printable(std::string(field, strnlen(field, capacity)));
}

template <size_t capacity>
void make_printable(char (&field)[capacity]) {
  const std::string text = text_of(field);
  std::memset(field, 0, capacity);
  text.copy(field, capacity - 1);
}

std::string text_file(const std::string& path) {
  const File file(path);
  std::array<char, 1024> text{};
  const ssize_t count = file ? ::read(file.number(), text.data(), text.size()) : 0;
  return {text.data(), static_cast<size_t>(std::max<ssize_t>(count, 0))};
}

// State letter and start time of a process; nothing where there is none (proc(5), /proc/pid/stat). The second
// field, the name, may hold anything, so what follows is counted from its last bracket.
struct ProcessState {
  char letter = '?';
  uint64_t start_ticks = 0;
};
std::optional<ProcessState> process_state(pid_t pid) {
  const std::string text = text_file(fmt::format("/proc/{}/stat", pid));
  const size_t bracket = text.rfind(')');
  if (bracket == std::string::npos || bracket + 2 >= text.size()) return std::nullopt;
  constexpr int kFieldsToStart = 19;  // from the third field, the state, to the 22nd
  size_t at = bracket + 2;
  ProcessState state;
  state.letter = text[at];
  for (int i = 0; i < kFieldsToStart; ++i) {
    at = text.find(' ', at);
    if (at == std::string::npos) return std::nullopt;
    ++at;
  }
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), state.start_ticks);
  if (error != std::errc()) return std::nullopt;
  return state;
}

uint64_t own_pid_namespace() {
  struct stat found {};
  return stat("/proc/self/ns/pid", &found) == 0 ? uint64_t{found.st_ino} : 0;
}

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Returns how long ago that was. Times of a hostile page may be anything.
int64_t age_of(int64_t written_ns) {
  int64_t age_ns = 0;
  return __builtin_sub_overflow(now_ns(), written_ns, &age_ns) ? INT64_MAX : age_ns;
}

// A process of another namespace cannot be asked after: it has ended if it missed many of its turns to write,
// or is stopped, and then no longer shown at worst.
LiveLife life_of(const LiveProcess& process, int64_t age_ns, uint64_t interval_ns) {
  constexpr int64_t kTurns = 20;
  constexpr int64_t kLeastNs = int64_t{60} * 1'000'000'000;
  if (process.pid_namespace != own_pid_namespace()) {
    int64_t patience_ns = 0;
    if (__builtin_mul_overflow(kTurns, interval_ns, &patience_ns)) patience_ns = INT64_MAX;
    return age_ns < std::max(kLeastNs, patience_ns) ? LiveLife::kElsewhere : LiveLife::kEnded;
  }
  const std::optional<ProcessState> state = process_state(process.pid);
  if (!state.has_value() || state->start_ticks != process.start_ticks) return LiveLife::kEnded;
  if (state->letter == 'Z' || state->letter == 'X') return LiveLife::kEnded;
  return state->letter == 'T' || state->letter == 't' ? LiveLife::kStopped : LiveLife::kRunning;
}

// ---- One page

Status check_file(const std::string& path, const File& file) {
  if (!file) return Status::io(fmt::format("{}: cannot open it: {}", path, std::strerror(errno)));
  struct stat found {};
  if (fstat(file.number(), &found) != 0) return Status::io(fmt::format("{}: cannot look at it", path));
  if (!S_ISREG(found.st_mode)) return refused(path, "is no file");
  if (geteuid() != 0 && found.st_uid != geteuid()) return refused(path, "is another user's page");
  if ((found.st_mode & 077) != 0)
    return refused(path, "may be read by others: pages are made with mode 0600");
  return {};
}

Status check_header(const std::string& path, const File& file, const LiveHeader& header) {
  if (std::memcmp(header.magic, kLivePageMagic, sizeof header.magic) != 0)
    return refused(path, "is no live page");
  if (header.version != kLivePageVersion || header.device_bytes != sizeof(LiveDevice)) {
    return refused(path,
                   fmt::format("was written by another version: its pages are of version {}, this command "
                               "reads {}",
                               header.version, kLivePageVersion));
  }
  struct stat found {};
  if (fstat(file.number(), &found) != 0 || found.st_size != static_cast<off_t>(sizeof(LiveFile))) {
    return refused(path, fmt::format("has {} bytes, a page has {}", found.st_size, sizeof(LiveFile)));
  }
  // Who it says it is of decides nothing but what is shown, yet it must not be somebody else.
  if (header.user != found.st_uid) return refused(path, "names another user than its owner");
  if (header.pid <= 0) return refused(path, "names no process");
  return {};
}

Status read_header(const std::string& path, const File& file, LiveHeader* header) {
  if (Status status = check_file(path, file); !status.ok()) return status;
  if (!file.read(header, sizeof *header, 0)) return refused(path, "is too short for a page");
  return check_header(path, file, *header);
}

struct Snapshot {
  uint64_t sequence = 0;  // 0: none
  std::unique_ptr<LiveState> state = std::make_unique<LiveState>();
};

// The reader's half of the seqlock. Nothing where the slot was being written, was never, or is nonsense.
Snapshot read_slot(const File& file, size_t index) {
  const size_t offset = offsetof(LiveFile, slots) + index * sizeof(LiveFile::Slot);
  const size_t state_offset = offset + offsetof(LiveFile::Slot, state);
  Snapshot out;
  uint64_t before = 0;
  uint64_t after = 0;
  LiveState& state = *out.state;
  if (!file.read(&before, sizeof before, offset) || before == 0 || before % 2 != 0) return out;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!file.read(&state, LiveState::bytes_with(0), state_offset)) return out;
  if (state.devices > LiveState::kMostDevices) return out;
  if (!file.read(state.device, state.devices * sizeof(LiveDevice), state_offset + LiveState::bytes_with(0))) {
    return out;
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!file.read(&after, sizeof after, offset) || after != before) return out;
  out.sequence = before;
  return out;
}

// Newest first. A writer is one pass further at most, so one of the two is whole at a second look at the
// latest.
std::pair<Snapshot, Snapshot> read_slots(const File& file) {
  std::pair<Snapshot, Snapshot> slots;
  for (int attempt = 0; attempt < 4 && slots.first.sequence == 0; ++attempt) {
    slots.first = read_slot(file, 0);
    slots.second = read_slot(file, 1);
    if (slots.first.sequence < slots.second.sequence) std::swap(slots.first, slots.second);
  }
  return slots;
}

void add_devices(const LiveState& now, const LiveState* before, LiveReading& reading) {
  for (size_t i = 0; i < now.devices; ++i) {
    LiveRow row;
    row.now = now.device[i];
    make_printable(row.now.name);
    make_printable(row.now.uuid);
    for (size_t k = 0; before != nullptr && k < before->devices; ++k) {
      if (before->device[k].ordinal == row.now.ordinal) row.before = before->device[k];
    }
    reading.devices.push_back(row);
  }
}

}  // namespace

const char* life_name(LiveLife life) {
  switch (life) {
    case LiveLife::kRunning:
      return "running";
    case LiveLife::kStopped:
      return "stopped";
    case LiveLife::kEnded:
      return "ended";
    case LiveLife::kElsewhere:
      break;
  }
  return "elsewhere";
}

LiveProcess this_process() {
  LiveProcess process;
  process.pid = getpid();
  process.pid_namespace = own_pid_namespace();
  if (const auto state = process_state(process.pid); state.has_value()) {
    process.start_ticks = state->start_ticks;
  }
  return process;
}

Result<LiveReading> read_live_page(const std::string& path) {
  const File file(path);
  LiveHeader header{};
  if (Status status = read_header(path, file, &header); !status.ok()) return status;
  const auto [now, before] = read_slots(file);
  if (now.sequence == 0) {
    return Status::invalid_state(fmt::format("{}: holds no complete state", path));
  }
  LiveReading reading;
  reading.path = path;
  reading.process = {header.pid, header.start_ticks, header.pid_namespace};
  reading.user = header.user;
  reading.program = text_of(header.program);
  reading.library_version = text_of(header.library_version);
  reading.rank = header.rank;
  reading.interval_ns = header.interval_ns;
  reading.began_ns = header.began_ns;
  reading.written_ns = now.state->time_ns;
  const int64_t age_ns = age_of(std::max(reading.began_ns, reading.written_ns));
  reading.life = life_of(reading.process, age_ns, reading.interval_ns);
  const bool has_before = before.sequence != 0 && before.sequence + 2 == now.sequence &&
                          before.state->steady_ns < now.state->steady_ns;
  // Times of a hostile page may be anything.
  if (has_before &&
      __builtin_sub_overflow(now.state->steady_ns, before.state->steady_ns, &reading.apart_ns)) {
    reading.apart_ns = 0;
  }
  if (now.state->has_pinned != 0) reading.pinned = now.state->pinned;
  add_devices(*now.state, reading.apart_ns > 0 ? before.state.get() : nullptr, reading);
  return reading;
}

// ---- All of them

namespace {

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    out.push_back(at->path());
  }
  return out;
}

// A user's folder in which only that user can have put anything.
bool is_user_folder(const fs::path& path) {
  constexpr std::string_view kBegin = "spillway-";
  const std::string name = path.filename().string();
  if (!name.starts_with(kBegin)) return false;
  uid_t user = 0;
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + kBegin.size(), end, user);
  if (error != std::errc() || rest != end) return false;
  if (geteuid() != 0 && user != geteuid()) return false;
  struct stat found {};
  return lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == user &&
         (found.st_mode & 077) == 0;
}

std::vector<fs::path> user_folders(const std::string& chosen) {
  std::set<fs::path> bases;
  for (const std::string& folder : live_folders(chosen)) bases.insert(folder);
  // Where systemd gives each user a folder of its own.
  if (chosen.empty() && geteuid() == 0) {
    for (const fs::path& folder : entries("/run/user")) bases.insert(folder);
  }
  if (chosen.empty()) bases.insert(fmt::format("/run/user/{}", geteuid()));
  std::vector<fs::path> out;
  for (const fs::path& base : bases) {
    for (const fs::path& folder : entries(base)) {
      if (is_user_folder(folder)) out.push_back(folder);
    }
  }
  return out;
}

}  // namespace

LiveListing list_live_pages(const std::string& chosen) {
  LiveListing listing;
  for (const fs::path& folder : user_folders(chosen)) {
    for (const fs::path& file : entries(folder)) {
      if (file.extension() != ".page") continue;
      Result<LiveReading> reading = read_live_page(file.string());
      if (reading.ok()) {
        listing.pages.push_back(std::move(reading.value()));
        // A process that just began or ended is no problem.
      } else if (reading.status().code() == SPW_ERROR_INVALID_ARGUMENT) {
        listing.problems.push_back(printable(reading.status().text()));
      }
    }
  }
  std::sort(listing.pages.begin(), listing.pages.end(),
            [](const LiveReading& left, const LiveReading& right) {
              return std::pair(left.process.pid, left.path) < std::pair(right.process.pid, right.path);
            });
  return listing;
}

namespace {

// Returns how long ago a page was written whose process has ended.
std::optional<int64_t> silent_ns(const std::string& path) {
  const File file(path);
  LiveHeader header{};
  if (!read_header(path, file, &header).ok()) return std::nullopt;
  int64_t written_ns = header.began_ns;
  for (size_t i = 0; i < std::extent_v<decltype(LiveFile::slots)>; ++i) {
    int64_t time_ns = 0;
    const size_t offset = offsetof(LiveFile, slots) + i * sizeof(LiveFile::Slot) +
                          offsetof(LiveFile::Slot, state) + offsetof(LiveState, time_ns);
    if (file.read(&time_ns, sizeof time_ns, offset)) written_ns = std::max(written_ns, time_ns);
  }
  const int64_t age_ns = age_of(written_ns);
  const LiveProcess process{header.pid, header.start_ticks, header.pid_namespace};
  return life_of(process, age_ns, header.interval_ns) == LiveLife::kEnded ? std::optional(age_ns)
                                                                          : std::nullopt;
}

}  // namespace

void remove_dead_pages(const std::string& user_folder, int64_t kept_ns) {
  std::vector<std::pair<int64_t, fs::path>> dead;  // by how long they have been
  for (const fs::path& file : entries(user_folder)) {
    if (file.extension() != ".page") continue;
    const std::optional<int64_t> age_ns = silent_ns(file.string());
    if (!age_ns.has_value()) continue;
    if (*age_ns > kept_ns) {
      unlink(file.c_str());
    } else {
      dead.emplace_back(*age_ns, file);
    }
  }
  // Every process that starts looks through them.
  if (dead.size() <= kMostDeadPages) return;
  std::sort(dead.begin(), dead.end());
  for (size_t i = kMostDeadPages; i < dead.size(); ++i) unlink(dead[i].second.c_str());
}

}  // namespace spillway
