// Keeps how many bytes of each simulated device other processes hold, where several share it: a file in which
// every process has a slot with its own figures. A slot is its owner's by a lock on one byte of the open
// file, so that what a process held is free again when it ends, however it ends. Guarded by State's lock; the
// functions lock out other processes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "sim/cuda/config.h"

namespace spillway::sim {

class SharedAccount {
 public:
  SharedAccount() = default;
  ~SharedAccount() { close(); }
  SharedAccount(SharedAccount&& other) noexcept { *this = std::move(other); }
  SharedAccount& operator=(SharedAccount&& other) noexcept;

  // Made if it is not there. False when it cannot be opened, or has no free slot; errno says why.
  bool open(const std::string& path);
  void close();

  // 0 where nothing is shared.
  uint64_t held_by_others(int device) const;
  // Notes that this process holds `after` bytes now, unless that and what others hold exceed the capacity.
  bool change(int device, uint64_t after, uint64_t capacity_bytes);

 private:
  static constexpr int kSlots = 64;
  using Slot = std::array<uint64_t, kMaxDevices>;  // bytes by device
  struct Table {
    std::array<Slot, kSlots> slots;
  };
  class Exclusive;

  uint64_t sum_of_others(int device) const;

  int file_ = -1;
  int own_ = -1;
  Table* table_ = nullptr;
};

}  // namespace spillway::sim
