// The kernel's calls that make the spill file, change its size and say where it is, behind one interface, as
// IoQueue is for what is read and written: each of them can be made to fail.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace spillway {

class FileCalls {
 public:
  FileCalls() = default;
  virtual ~FileCalls() = default;
  FileCalls(const FileCalls&) = delete;
  FileCalls& operator=(const FileCalls&) = delete;

  // open(2) and mkostemp(3) with an unlink(2) behind it: a descriptor, or -errno.
  virtual int open(const std::string& path, int flags);
  virtual int open_unlinked(const std::string& pattern, int flags);
  // fallocate(2) and ftruncate(2): 0, or an errno.
  virtual int reserve(int file, uint64_t offset, uint64_t bytes);
  virtual int punch_hole(int file, uint64_t offset, uint64_t bytes);
  virtual int resize(int file, uint64_t bytes);
  // fstatfs(2): the number of its kind of file system (linux/magic.h), or -errno.
  virtual int64_t file_system(int file);

  static FileCalls& of_kernel();
};

}  // namespace spillway
