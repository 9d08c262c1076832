// Addresses into which handles are mapped in a row, from the beginning. Whatever is mapped is unmapped with
// the range; its users must be done by then. Move-only; not thread-safe.
#pragma once

#include <cstdint>
#include <utility>

#include "driver/driver.h"
#include "driver/memory.h"

namespace spillway {

class MappedRange {
 public:
  MappedRange() = default;
  MappedRange(MappedRange&& other) noexcept { swap(other); }
  MappedRange& operator=(MappedRange&& other) noexcept {
    MappedRange(std::move(other)).swap(*this);
    return *this;
  }
  ~MappedRange() { (void)unmap_all(); }

  // Errors: as AddressRange::reserve.
  static Result<MappedRange> reserve(const Driver& driver, uint64_t bytes);
  // Maps the handle behind what is mapped already. Errors: invalid_argument (there is no room), driver.
  Status append(const PhysicalHandle& handle);
  // What is left mapped after an error stays the object's.
  Status unmap_all();
  // Nothing is unmapped any more: something may still use it, or the driver is gone.
  void leave_to_driver() {
    pieces_ = 0;
    mapped_bytes_ = 0;
  }

  CUdeviceptr base() const { return range_.base(); }
  uint64_t bytes() const { return range_.bytes(); }
  bool is_full() const { return mapped_bytes_ == bytes(); }
  uint32_t pieces() const { return pieces_; }

 private:
  void swap(MappedRange& other) noexcept {
    range_.swap(other.range_);
    std::swap(driver_, other.driver_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
    std::swap(pieces_, other.pieces_);
  }

  AddressRange range_;
  const Driver* driver_ = nullptr;
  uint64_t mapped_bytes_ = 0;
  uint32_t pieces_ = 0;
};

}  // namespace spillway
