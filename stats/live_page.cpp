#include "stats/live_page.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <type_traits>

#include "stats/live_reader.h"

namespace spillway {
namespace {

static_assert(std::is_trivially_copyable_v<LiveFile>);
static_assert(sizeof(LiveHeader) % sizeof(uint64_t) == 0 && sizeof(LiveDevice) % sizeof(uint64_t) == 0);
static_assert(offsetof(LiveState, device) % sizeof(uint64_t) == 0);
static_assert(std::atomic_ref<uint64_t>::is_always_lock_free);

// The last state of a process that died is kept that long.
constexpr int64_t kKeptNs = int64_t{3600} * 1'000'000'000;

std::atomic_ref<uint64_t> word(void* address) {
  return std::atomic_ref<uint64_t>(*static_cast<uint64_t*>(address));
}

void store_words(void* to, const void* from, size_t bytes) {
  auto* out = static_cast<uint64_t*>(to);
  const auto* in = static_cast<const uint64_t*>(from);
  for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i) word(out + i).store(in[i], std::memory_order_relaxed);
}

Status failed(const std::string& path, const char* what) {
  return Status::io(fmt::format("{}: cannot {}: {}", path, what, std::strerror(errno)));
}

template <size_t capacity>
void copy_text(char (&to)[capacity], const std::string& from) {
  from.copy(to, capacity - 1);
}

LiveHeader header_of(const LivePage::Description& description, const LiveProcess& process) {
  LiveHeader header{};
  std::memcpy(header.magic, kLivePageMagic, sizeof header.magic);
  header.version = kLivePageVersion;
  header.device_bytes = sizeof(LiveDevice);
  header.pid = process.pid;
  header.user = geteuid();
  header.start_ticks = process.start_ticks;
  header.pid_namespace = process.pid_namespace;
  header.rank = description.rank;
  header.interval_ns = description.interval_ns;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  header.began_ns = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  copy_text(header.program, description.program);
  copy_text(header.library_version, description.library_version);
  return header;
}

// The user's folder, made if need be. Somebody else's, or one that others may enter, is not used.
Status make_folder(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return failed(path, "make the folder");
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0) return failed(path, "look at the folder");
  if (!S_ISDIR(found.st_mode) || found.st_uid != geteuid() || (found.st_mode & 077) != 0) {
    return Status::io(fmt::format("{}: is no folder that only this user may enter (mode 0700)", path));
  }
  return {};
}

// Maps `bytes` of a new file. All of it is there before it is used: a full disk shows here, not as a signal.
Result<void*> map_new_file(const std::string& path, size_t bytes) {
  unlink(path.c_str());
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return failed(path, "create it");
  void* mapped = MAP_FAILED;
  errno = posix_fallocate(file, 0, static_cast<off_t>(bytes));
  if (errno == 0) mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  Status status = mapped == MAP_FAILED ? failed(path, "map it") : Status();
  close(file);
  if (status.ok()) return mapped;
  unlink(path.c_str());
  return status;
}

}  // namespace

std::vector<std::string> live_folders(const std::string& chosen) {
  if (!chosen.empty()) return {chosen};
  std::vector<std::string> folders;
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime == '/') {
    folders.emplace_back(runtime);
  }
  folders.emplace_back("/dev/shm");
  folders.emplace_back("/tmp");
  return folders;
}

LivePage::~LivePage() {
  if (file_ == nullptr || owner_ != getpid()) return;
  munmap(file_, sizeof(LiveFile));
  unlink(path_.c_str());
}

Status LivePage::open(const std::string& chosen_folder, const Description& description) {
  Status first;
  for (const std::string& folder : live_folders(chosen_folder)) {
    Status status = open_in(folder, description);
    if (status.ok()) return status;
    if (first.ok()) first = std::move(status);
  }
  return first;
}

Status LivePage::open_in(const std::string& folder, const Description& description) {
  const LiveProcess process = this_process();
  const std::string own = fmt::format("{}/spillway-{}", folder, geteuid());
  if (Status status = make_folder(own); !status.ok()) return status;
  remove_dead_pages(own, kKeptNs);
  const std::string path = fmt::format("{}/{}-{}.page", own, process.pid, process.start_ticks);
  Result<void*> mapped = map_new_file(path, sizeof(LiveFile));
  if (!mapped.ok()) return mapped.take_status();
  // A child of fork is no owner of the page.
  (void)madvise(mapped.value(), sizeof(LiveFile), MADV_DONTFORK);
  file_ = static_cast<LiveFile*>(mapped.value());
  file_->header = header_of(description, process);
  path_ = path;
  owner_ = process.pid;
  return {};
}

// The order of a seqlock's writer: odd number, fence, words, even number.
void LivePage::write(const LiveState& state) {
  LiveFile::Slot& slot = file_->slots[passes_ % 2];
  ++passes_;
  word(&slot.sequence).store(2 * passes_ - 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  const size_t rows = std::min<size_t>(state.devices, LiveState::kMostDevices);
  store_words(&slot.state, &state, LiveState::bytes_with(rows));
  word(&slot.sequence).store(2 * passes_, std::memory_order_release);
}

}  // namespace spillway
