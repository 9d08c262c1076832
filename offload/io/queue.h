// A queue of disk operations in flight: what the kernel offers for it, behind one interface.
//
// An operation is one call of the kernel: it may do fewer bytes than asked, or fail with any errno, and
// neither is looked at here. IoEngine makes whole requests out of them.
//
// A queue belongs to the thread that made it; only wake() may be called from others. Memory and files belong
// to the caller and outlive their operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "driver/status.h"

namespace spillway {

enum class IoKind : uint8_t { kRead, kWrite, kSync };  // kSync: fdatasync(2), of no bytes

struct IoOperation {
  IoKind kind = IoKind::kRead;
  int file = -1;  // descriptor
  std::byte* memory = nullptr;
  size_t bytes = 0;
  uint64_t offset = 0;
  uint32_t token = 0;  // comes back with the completion
};

struct IoCompletion {
  uint32_t token = 0;
  int64_t result = 0;  // bytes done, or -errno
};

class IoQueue {
 public:
  virtual ~IoQueue() = default;

  // No more than depth() operations may be in flight.
  virtual void push(const IoOperation& operation) = 0;
  // Starts what was pushed, waits until something is complete or wake() was called, and returns how many
  // completions it wrote: 0 after a wake() alone. What the kernel refuses to start for a second ends with
  // EBUSY.
  virtual size_t wait(std::span<IoCompletion> out) = 0;
  virtual void wake() = 0;
  // Memory that many operations will use; it may be prepared for them. Must stay mapped until it is
  // forgotten, or while the queue lives.
  virtual void use_memory(std::span<std::byte> memory) = 0;
  // The memory may be unmapped: no operation in flight is of it, and what was prepared is undone. False where
  // the kernel refuses that; then it stays as it is.
  virtual bool forget_memory(std::span<std::byte> memory) = 0;
  // A descriptor that many operations will be of, prepared likewise. Must stay open while the queue lives.
  virtual void use_file(int file) = 0;

  virtual uint32_t depth() const = 0;
  // Says what serves, and why nothing better does: for reports.
  virtual std::string description() const = 0;
};

// io_uring. Errors: SPW_ERROR_UNSUPPORTED, where the kernel lacks it or does not allow it.
Result<std::unique_ptr<IoQueue>> make_uring_queue(uint32_t depth);

// pread and pwrite on `threads` threads; `reason` says why not io_uring. Errors: SPW_ERROR_IO, where no
// thread can be started.
Result<std::unique_ptr<IoQueue>> make_thread_queue(uint32_t depth, uint32_t threads, std::string reason);

}  // namespace spillway
