#include "cli/trace/file.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

namespace spillway {

namespace {

constexpr uint64_t kMaxBytes = uint64_t{4} << 30;
// Snapshots pack 10 to 60 times; deflate itself ends near 1030.
constexpr uint64_t kMaxInflateRatio = 256;
constexpr uint64_t kInflateFloor = 64 << 20;

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

Status file_error(const std::string& path, const char* why) {
  return Status::io(fmt::format("{}: {}", path, why));
}

}  // namespace

Result<std::string> inflate_gzip(const std::string& packed) {
  const uint64_t limit = std::min(kMaxBytes, kInflateFloor + kMaxInflateRatio * packed.size());
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) return Status::internal("zlib refused to start");
  std::string out;
  std::string chunk(1 << 16, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  uint64_t left = packed.size();
  Status error;
  for (bool done = false; !done && error.ok();) {
    if (stream.avail_in == 0 && left > 0) {
      stream.avail_in = static_cast<uInt>(std::min<uint64_t>(left, 1 << 30));
      left -= stream.avail_in;
    }
    stream.next_out = reinterpret_cast<Bytef*>(chunk.data());
    stream.avail_out = static_cast<uInt>(chunk.size());
    const int code = inflate(&stream, Z_NO_FLUSH);
    out.append(chunk.data(), chunk.size() - stream.avail_out);
    const uint64_t at = packed.size() - left - stream.avail_in;
    if (out.size() > limit) {
      error = Status::invalid_argument(fmt::format("the gzip'd data unpacks to more than {} bytes", limit));
    } else if (code == Z_STREAM_END) {
      // A file may be several archives one after the other; zero padding ends it.
      done = left == 0 && stream.avail_in == 0;
      if (!done && *stream.next_in == 0) done = true;
      if (!done && inflateReset(&stream) != Z_OK) error = Status::internal("zlib refused to go on");
    } else if (code == Z_BUF_ERROR && left == 0 && stream.avail_in == 0) {
      error = Status::invalid_argument(fmt::format("at byte {}: the gzip'd data is truncated", at));
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      error = Status::invalid_argument(fmt::format("at byte {}: damaged gzip'd data ({})", at,
                                                   stream.msg != nullptr ? stream.msg : "unknown"));
    }
  }
  inflateEnd(&stream);
  if (!error.ok()) return error;
  return out;
}

Result<std::string> read_file(const std::string& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return file_error(path, std::strerror(errno));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return file_error(path, std::strerror(errno));
  if (S_ISDIR(info.st_mode)) return file_error(path, "is a folder; allowed: a file");
  if (!S_ISREG(info.st_mode)) return file_error(path, "is not a regular file");
  if (static_cast<uint64_t>(info.st_size) > kMaxBytes) return file_error(path, "is larger than 4 GiB");

  std::string data(static_cast<size_t>(info.st_size), '\0');
  size_t have = 0;
  while (have < data.size()) {
    const ssize_t got = ::read(fd.get(), data.data() + have, data.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return file_error(path, std::strerror(errno));
    if (got == 0) break;
    have += static_cast<size_t>(got);
  }
  data.resize(have);
  if (data.size() < 2 || data[0] != '\x1f' || data[1] != '\x8b') return data;

  auto unpacked = inflate_gzip(data);
  if (!unpacked.ok()) return Status::invalid_argument(fmt::format("{}: {}", path, unpacked.status().text()));
  return unpacked;
}

}  // namespace spillway
