// The bytes of one device (or of host-located handles): a sparse memfd seen through one window of host
// memory. Pages that were never written take no memory. What a freed range held is kept up to some bytes,
// which saves the kernel's work for new pages; it reads as zero when it is allocated again.
//
// The window spans several times the capacity, so that a contiguous piece is found however memory is
// fragmented: a device scatters the pages of a handle, a file cannot. Capacity itself is accounted elsewhere.
#pragma once

#include <cstdint>
#include <map>

namespace spillway::sim {

class Backing {
 public:
  Backing() = default;
  ~Backing() { close_all(); }
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;

  // Anew, with nothing allocated. False when the kernel refuses; the object is then empty.
  bool open(uint64_t capacity_bytes);
  void close_all();

  // Offset of a piece of a multiple of 4 KiB, or UINT64_MAX.
  uint64_t allocate(uint64_t bytes);
  void free(uint64_t offset, uint64_t bytes);

  bool is_open() const { return window_ != nullptr; }
  char* at(uint64_t offset) const { return window_ + offset; }
  int file() const { return file_; }

 private:
  uint64_t held_bytes() const;  // by the file

  int file_ = -1;
  char* window_ = nullptr;
  uint64_t span_ = 0;
  std::map<uint64_t, uint64_t> free_;  // offset to size
};

}  // namespace spillway::sim
