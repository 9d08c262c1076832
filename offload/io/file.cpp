#include "offload/io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "stats/held_signal.h"

namespace spillway {
namespace {

constexpr size_t kUsualAlignment = 4096;  // where the kernel does not say (before 6.1)

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using AlignedBytes = std::unique_ptr<std::byte, Free>;

AlignedBytes aligned_bytes(size_t alignment, size_t bytes) {
  return AlignedBytes(static_cast<std::byte*>(std::aligned_alloc(alignment, bytes)));
}

// statx(2), STATX_DIOALIGN: 0 in both members where the file has no direct I/O.
size_t alignment_of(int descriptor) {
#ifdef STATX_DIOALIGN
  struct statx about {};
  if (statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &about) == 0 &&
      (about.stx_mask & STATX_DIOALIGN) != 0 && about.stx_dio_offset_align != 0) {
    return std::max<size_t>({about.stx_dio_mem_align, about.stx_dio_offset_align, 512});
  }
#else
  (void)descriptor;
#endif
  return kUsualAlignment;
}

std::string text_of(const char* call, int error) {
  return fmt::format("{}: {}", call, std::strerror(error));
}

}  // namespace

bool is_no_room(int error) {
  return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

// Looks for what Linux makes of errors of block devices (block/blk-core.c, blk_errors) and of file systems
// (EFSCORRUPTED and EFSBADCRC are EUCLEAN and EBADMSG).
bool is_loss(int error) {
  constexpr std::array kLosses = {EIO, ENODATA, EREMOTEIO, EILSEQ, EUCLEAN, EBADMSG};
  return std::find(kLosses.begin(), kLosses.end(), error) != kLosses.end();
}

IoFile::IoFile(int descriptor, bool want_direct, FileCalls& calls) : buffered_(descriptor) {
  if (want_direct) {
    open_direct(calls);
  } else {
    buffered_reason_ = "not wanted";
  }
}

IoFile::~IoFile() {
  if (direct_ >= 0) close(direct_);
  close(buffered_);
}

void IoFile::open_direct(FileCalls& calls) {
  const std::string path = fmt::format("/proc/self/fd/{}", buffered_);
  const int descriptor = calls.open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
  if (descriptor < 0) {
    buffered_reason_ = text_of("open with O_DIRECT", -descriptor);
    return;
  }
  direct_ = descriptor;
  alignment_bytes_ = alignment_of(direct_);
  buffered_reason_ = probe_direct(calls);
  direct_works_ = buffered_reason_.empty();
}

// Empty: what was written was read.
std::string IoFile::probe_direct(FileCalls& calls) const {
  const size_t bytes = alignment_bytes_;
  const AlignedBytes written = aligned_bytes(bytes, bytes);
  const AlignedBytes read = aligned_bytes(bytes, bytes);
  if (written == nullptr || read == nullptr) return "no memory to try it";
  for (size_t i = 0; i < bytes; ++i) written.get()[i] = static_cast<std::byte>(i * 37 + 11);
  std::memset(read.get(), 0, bytes);
  const auto wanted = static_cast<ssize_t>(bytes);
  const HeldSignal held;
  errno = EIO;
  if (pwrite(direct_, written.get(), bytes, 0) != wanted) return text_of("a direct write", errno);
  errno = EIO;
  if (pread(direct_, read.get(), bytes, 0) != wanted) return text_of("a direct read", errno);
  if (std::memcmp(written.get(), read.get(), bytes) != 0)
    return "a direct read returned other bytes than were written";
  const int error = calls.resize(buffered_, 0);
  return error == 0 ? "" : text_of("ftruncate", error);
}

int IoFile::descriptor_for(const void* memory, size_t bytes, uint64_t offset) const {
  const uint64_t bits = reinterpret_cast<uintptr_t>(memory) | bytes | offset;
  return is_direct() && bits % alignment_bytes_ == 0 ? direct_ : buffered_;
}

void IoFile::give_up_direct(const std::string& reason) {
  if (!direct_works_.exchange(false)) return;
  buffered_reason_ = reason;
}

}  // namespace spillway
