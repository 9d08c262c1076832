#include "cli/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>

#include <fmt/format.h>

#include "cli/size.h"

namespace spillway {

namespace {

// 0, or the errno of what failed.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t done = ::write(fd, text.data(), text.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return errno;
    text.remove_prefix(static_cast<size_t>(done));
  }
  return 0;
}

Status output_error(std::string_view where, int error) {
  return Status::io(fmt::format("{}: {}", where, std::strerror(error)));
}

}  // namespace

Status write_stdout(std::string_view text) {
  const int error = write_all(STDOUT_FILENO, text);
  return error == 0 ? Status() : output_error("stdout", error);
}

Status write_file(const std::string& path, std::string_view text) {
  struct stat info {};
  const bool in_place = ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
  const std::string name = in_place ? path : fmt::format("{}.{}.tmp", path, getpid());
  const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return output_error(path, errno);
  int error = write_all(fd, text);
  if (::close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && !in_place && std::rename(name.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0 && !in_place) ::unlink(name.c_str());
  return error == 0 ? Status() : output_error(path, error);
}

Status check_folder(const std::string& path) {
  if (path.empty()) return {};
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode))
    return Status::io(fmt::format("{}: cannot be written: it is a folder", path));
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  if (::access(folder.c_str(), W_OK) == 0) return {};
  return Status::io(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
}

void say_written(const std::string& path, uint64_t bytes) {
  std::fprintf(stderr, "wrote %s (%s)\n", path.c_str(), format_size(bytes).c_str());
}

Status write_and_say(const std::string& path, std::string_view text) {
  Status status = write_file(path, text);
  if (status.ok()) say_written(path, text.size());
  return status;
}

std::string made_by(std::string_view version) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  const size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M UTC", &utc);
  return fmt::format("Spillway {}, {}", version, std::string_view(text.data(), size));
}

Status write_answer(const std::string& path, std::string_view text) {
  return path.empty() ? write_stdout(text) : write_file(path, text);
}

int complain(const Status& status) {
  std::fprintf(stderr, "spillway: %s\n", status.text().c_str());
  return 1;
}

int complain(std::string_view command, const Status& status) {
  std::string text = status.text();
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::fprintf(stderr, "spillway %.*s: %s\n", static_cast<int>(command.size()), command.data(), text.c_str());
  return 1;
}

}  // namespace spillway
