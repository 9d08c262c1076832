// A source of segments for pools, which unmaps what it takes back at once, as NCCL's does: the race detector
// then reports a segment that goes back too early.
#pragma once

#include <functional>
#include <map>

#include "tests/support/device.h"

namespace spillway::test {

class Source {
 public:
  explicit Source(const Driver& driver, uint64_t offset = 0) : driver_(driver), offset_(offset) {}

  SegmentSource functions() {
    return {[this](uint64_t bytes, CUstream) { return allocate(bytes); },
            [this](const SegmentMemory& memory) { held_.erase(memory.pointer); }};
  }
  size_t held() const { return held_.size(); }
  bool begins_at(const void* pointer) const { return held_.count(const_cast<void*>(pointer)) > 0; }
  bool holds(const void* pointer) const {
    const auto va = reinterpret_cast<uint64_t>(pointer);
    for (const auto& [at, range] : held_) {
      if (va - range.base() < range.bytes()) return true;
    }
    return false;
  }

  uint64_t most_bytes = UINT64_MAX;
  int asked = 0;
  std::function<void()> inside;  // what the source does with the allocator

 private:
  void* allocate(uint64_t bytes) {
    ++asked;
    if (inside) inside();
    if (bytes > most_bytes) return nullptr;
    const uint64_t rounded = (bytes + offset_ + kPageBytes - 1) / kPageBytes * kPageBytes;
    Result<MappedRange> range = MappedRange::reserve(driver_, rounded);
    if (!range.ok() || !fill(range.value()).ok()) return nullptr;
    void* pointer = reinterpret_cast<void*>(range->base() + offset_);
    held_[pointer] = std::move(range.value());
    return pointer;
  }

  Status fill(MappedRange& range) const {
    Result<PhysicalHandle> handle = PhysicalHandle::create(driver_, 0, range.bytes());
    if (!handle.ok()) return handle.take_status();
    if (Status status = range.append(handle.value()); !status.ok()) return status;
    return set_access(driver_, range.base(), range.bytes(), 0);
  }

  const Driver& driver_;
  const uint64_t offset_;  // where in a page its memory begins
  std::map<void*, MappedRange> held_;
};

}  // namespace spillway::test
