#include "offload/io/daily_writes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <thread>

namespace spillway {
namespace {

constexpr int kMostTries = 100;
constexpr std::chrono::milliseconds kBetweenTries{1};

// An open file, locked. A child of fork has the file too, so closing it here would not end the lock.
class LockedFile {
 public:
  // An errno, or 0. A link in a directory that others may write to is not followed.
  int open(const std::string& path) {
    file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (file_ < 0) return errno;
    for (int i = 0; flock(file_, LOCK_EX | LOCK_NB) != 0; ++i) {
      if ((errno != EWOULDBLOCK && errno != EINTR) || i == kMostTries) return errno;
      std::this_thread::sleep_for(kBetweenTries);
    }
    return 0;
  }
  LockedFile() = default;
  ~LockedFile() {
    if (file_ < 0) return;
    (void)flock(file_, LOCK_UN);
    close(file_);
  }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

  int get() const { return file_; }

 private:
  int file_ = -1;
};

// Two numbers of fixed width, so that one write replaces them whole.
constexpr size_t kTextBytes = 2 * 20 + 2;
// More was written in no day.
constexpr int64_t kMostBytes = int64_t{1} << 60;

uint64_t read_bytes(int file, int64_t day) {
  std::array<char, kTextBytes + 1> text{};
  if (pread(file, text.data(), kTextBytes, 0) != static_cast<ssize_t>(kTextBytes)) return 0;
  std::istringstream numbers(text.data());
  int64_t written_day = 0;
  int64_t bytes = 0;
  const bool is_whole = numbers >> written_day >> bytes && bytes >= 0 && bytes <= kMostBytes;
  return is_whole && written_day == day ? static_cast<uint64_t>(bytes) : 0;
}

bool write_bytes(int file, int64_t day, uint64_t bytes) {
  const std::string text = fmt::format("{:>20} {:>20}\n", day, bytes);
  errno = EIO;
  return pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
}

// The program may go to another directory.
std::string absolute(const std::string& path) {
  std::error_code error;
  const std::filesystem::path found = std::filesystem::absolute(path, error);
  return error ? path : found.string();
}

}  // namespace

DailyWrites::DailyWrites(const std::string& directory) : path_(absolute(directory + "/" + kName)) {}

Result<DailyWrites::Answer> DailyWrites::claim(int64_t day, uint64_t own_bytes, uint64_t more_bytes,
                                               uint64_t most_bytes) {
  const auto failed = [&](int error) {
    return Status::io(fmt::format("{}: {}", path_, std::strerror(error)));
  };
  LockedFile file;
  if (const int error = file.open(path_); error != 0) return failed(error);
  if (day != day_) said_bytes_ = 0;
  day_ = day;
  const uint64_t all_bytes = read_bytes(file.get(), day);
  Answer answer;
  answer.others_bytes = all_bytes - std::min(all_bytes, said_bytes_);
  const uint64_t left_bytes = most_bytes - std::min(most_bytes, answer.others_bytes);
  answer.is_granted = own_bytes <= left_bytes && more_bytes <= left_bytes - own_bytes;
  const uint64_t said_bytes = own_bytes + (answer.is_granted ? more_bytes : 0);
  if (!write_bytes(file.get(), day, answer.others_bytes + said_bytes)) return failed(errno);
  said_bytes_ = said_bytes;
  return answer;
}

}  // namespace spillway
