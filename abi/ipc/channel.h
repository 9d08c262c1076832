// Messages with file descriptors between processes of one user on one machine: Unix sockets by name, in the
// abstract namespace, which needs no file and ends with the process.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "driver/status.h"

namespace spillway {

// Owner of one file descriptor. Move-only.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int file) : file_(file) {}
  Descriptor(Descriptor&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  ~Descriptor();

  int get() const { return file_; }
  explicit operator bool() const { return file_ >= 0; }

 private:
  int file_ = -1;
};

// Errors: io.
Result<Descriptor> listen_at(const std::string& name);
// A caller of the same user, or the superuser; empty when it was another, or gone.
Descriptor accept_caller(const Descriptor& listener);
// Waits for answers a limited time only. Errors: io (nobody listens there).
Result<Descriptor> connect_to(const std::string& name);

constexpr size_t kMostDescriptors = 64;  // of a message

// One message, whole or not at all; false when the other side is gone or does not read.
bool send_message(const Descriptor& to, const void* data, size_t bytes, const std::vector<Descriptor>& files);
// Errors: io (the other side is gone, or does not answer; this process can have no more descriptors; another
// size).
Status receive_message(const Descriptor& from, void* data, size_t bytes, std::vector<Descriptor>& files);

}  // namespace spillway
