#include "offload/io/file_calls.h"

#include <fcntl.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace spillway {
namespace {

int answer_of(int result) {
  return result == 0 ? 0 : errno;
}

}  // namespace

int FileCalls::open(const std::string& path, int flags) {
  const int file = ::open(path.c_str(), flags, 0600);
  return file >= 0 ? file : -errno;
}

int FileCalls::open_unlinked(const std::string& pattern, int flags) {
  std::string path = pattern;
  const int file = mkostemp(path.data(), flags);
  if (file < 0) return -errno;
  unlink(path.c_str());
  return file;
}

int FileCalls::reserve(int file, uint64_t offset, uint64_t bytes) {
  return answer_of(fallocate(file, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)));
}

int FileCalls::punch_hole(int file, uint64_t offset, uint64_t bytes) {
  constexpr int kMode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  return answer_of(fallocate(file, kMode, static_cast<off_t>(offset), static_cast<off_t>(bytes)));
}

int FileCalls::resize(int file, uint64_t bytes) {
  return answer_of(ftruncate(file, static_cast<off_t>(bytes)));
}

int64_t FileCalls::file_system(int file) {
  struct statfs about {};
  return fstatfs(file, &about) == 0 ? static_cast<int64_t>(about.f_type) : -errno;
}

FileCalls& FileCalls::of_kernel() {
  static FileCalls calls;
  return calls;
}

}  // namespace spillway
