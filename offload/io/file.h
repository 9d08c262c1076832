// A file that blocks are spilled to: past the page cache where that was tried and works, else through it.
//
// That O_DIRECT opens says nothing about what it does: file systems refuse the first write, or buffer
// silently. So it is used only after a write, a read back and a comparison went well, and given up on the
// first refusal.
//
// Thread-safe. Owns its descriptors.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "driver/status.h"
#include "offload/io/file_calls.h"

namespace spillway {

// Tells whether this errno says that the disk, a quota or the process's limit has no room.
bool is_no_room(int error);
// Tells whether this errno of a read says that the bytes are not there any more: the device, or the file
// system's own checksums, or ENODATA, which is the end of the file too. Anything else may pass.
bool is_loss(int error);

class IoFile {
 public:
  // Takes ownership of `descriptor`, which is open for reading and writing, without O_DIRECT. Writes to the
  // file's beginning when it tries O_DIRECT, and leaves it empty.
  explicit IoFile(int descriptor, bool want_direct = true, FileCalls& calls = FileCalls::of_kernel());
  ~IoFile();
  IoFile(const IoFile&) = delete;
  IoFile& operator=(const IoFile&) = delete;

  int buffered() const { return buffered_; }
  // Returns those that operations may be of; -1: none.
  std::array<int, 2> descriptors() const { return {buffered_, direct_}; }
  // For this range of memory and file; the buffered descriptor where O_DIRECT does not serve.
  int descriptor_for(const void* memory, size_t bytes, uint64_t offset) const;
  bool is_direct() const { return direct_works_.load(std::memory_order_relaxed); }
  // A write went through the page cache, where an error may still be to come.
  void note_buffered_write() { is_unsynced_.store(true); }
  // Tells whether one did since the last call: for whoever syncs the file then.
  bool take_unsynced() { return is_unsynced_.exchange(false); }
  // An operation was refused with EINVAL: none is direct from now on.
  void give_up_direct(const std::string& reason);

  // Returns what memory, lengths and offsets of direct operations are multiples of; a power of two, at least
  // 512 bytes.
  size_t alignment_bytes() const { return alignment_bytes_; }
  // Why not direct; empty while it is. Not to be called while operations run.
  const std::string& buffered_reason() const { return buffered_reason_; }

 private:
  void open_direct(FileCalls& calls);
  std::string probe_direct(FileCalls& calls) const;

  int buffered_;
  int direct_ = -1;
  size_t alignment_bytes_ = 4096;
  std::atomic<bool> direct_works_{false};
  std::atomic<bool> is_unsynced_{false};
  std::string buffered_reason_;
};

}  // namespace spillway
