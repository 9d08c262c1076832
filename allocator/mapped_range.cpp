#include "allocator/mapped_range.h"

#include <fmt/format.h>

#include "allocator/units.h"

namespace spillway {

Result<MappedRange> MappedRange::reserve(const Driver& driver, uint64_t bytes) {
  Result<AddressRange> range = AddressRange::reserve(driver, bytes, kPageBytes);
  if (!range.ok()) return range.take_status();
  MappedRange made;
  made.range_ = std::move(range.value());
  made.driver_ = &driver;
  return made;
}

Status MappedRange::append(const PhysicalHandle& handle) {
  if (handle.bytes() > bytes() - mapped_bytes_) {
    return Status::invalid_argument(fmt::format("{} bytes do not fit into the {} that are left of a range",
                                                handle.bytes(), bytes() - mapped_bytes_));
  }
  if (Status status = map(*driver_, base() + mapped_bytes_, handle); !status.ok()) return status;
  mapped_bytes_ += handle.bytes();
  ++pieces_;
  return {};
}

Status MappedRange::unmap_all() {
  if (mapped_bytes_ == 0) return {};
  if (Status status = unmap(*driver_, base(), mapped_bytes_); !status.ok()) return status;
  mapped_bytes_ = 0;
  pieces_ = 0;
  return {};
}

}  // namespace spillway
