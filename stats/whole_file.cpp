#include "stats/whole_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "stats/held_signal.h"
#include "stats/lock.h"

namespace spillway {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }
  bool close() { return ::close(std::exchange(number_, -1)) == 0; }

 private:
  int number_;
};

struct Place {
  std::string folder;
  std::string name;
};

Place place_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

// Removes what killed processes left in the folder: files that nobody holds the lock of.
void remove_abandoned(const std::string& folder) {
  DIR* const entries = opendir(folder.c_str());
  if (entries == nullptr) return;
  const int at = dirfd(entries);
  while (const dirent* entry = readdir(entries)) {
    if (entry->d_name[0] != '.' || !std::string_view(entry->d_name).ends_with(kTemporarySuffix)) continue;
    const Descriptor file(openat(at, entry->d_name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (file.get() < 0 || flock(file.get(), LOCK_EX | LOCK_NB) != 0) continue;
    // The name may be another file's by now, or the file may have got its own.
    struct stat named {};
    struct stat opened {};
    const bool is_it = fstatat(at, entry->d_name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
                       fstat(file.get(), &opened) == 0 && named.st_ino == opened.st_ino &&
                       S_ISREG(opened.st_mode);
    if (is_it) (void)unlinkat(at, entry->d_name, 0);
  }
  closedir(entries);
}

// A process leaves nothing behind that is its own: each folder is looked through once.
void remove_abandoned_once(const std::string& folder) {
  struct Last {
    BlockingMutex mutex;
    std::string folder SPW_GUARDED_BY(mutex);
  };
  static Last& last = *new Last;
  const Lock lock(last.mutex);
  if (last.folder == folder) return;
  last.folder = folder;
  remove_abandoned(folder);
}

// Returns what could not be done, or null.
const char* write_beside(const std::string& temporary, const std::string& path, std::string_view text) {
  const Descriptor file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (file.get() < 0) return "create a file beside it";
  // Where the file system has no locks, files are never taken for abandoned.
  (void)flock(file.get(), LOCK_EX | LOCK_NB);
  // Closing a second descriptor makes file systems that write late say whether they could; the lock stays
  // until the file has its name.
  const bool is_written = write_all(file.get(), text) && Descriptor(dup(file.get())).close();
  if (is_written && rename(temporary.c_str(), path.c_str()) == 0) return nullptr;
  const int error = errno;
  (void)unlink(temporary.c_str());
  errno = error;
  return is_written ? "put it in its place" : "write it";
}

}  // namespace

bool write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(file, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) errno = ENOSPC;
    if (count <= 0) return false;
    text.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

Status write_whole_file(const std::string& path, std::string_view text) {
  static std::atomic<uint32_t> number{0};
  struct stat there {};
  if (stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    return Status::io(fmt::format("{}: cannot write it: it is not a regular file", path));
  }
  const Place place = place_of(path);
  remove_abandoned_once(place.folder);
  const HeldSignal held;
  // A name of the greatest length would leave no room for the rest.
  const std::string temporary = fmt::format("{}/.{}.{}.{}{}", place.folder, place.name.substr(0, 100),
                                            getpid(), number.fetch_add(1), kTemporarySuffix);
  const char* failed = write_beside(temporary, path, text);
  // Another process may take a file for abandoned between its making and its lock.
  if (failed != nullptr && errno == ENOENT) failed = write_beside(temporary, path, text);
  if (failed == nullptr) return {};
  return Status::io(fmt::format("{}: cannot {}: {}", path, failed, std::strerror(errno)));
}

}  // namespace spillway
