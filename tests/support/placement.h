// A placement of blocks in host memory that nobody touches: it counts addresses up, and keeps account.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <vector>

#include "allocator/last_rungs.h"

namespace spillway::test {

class Placement {
 public:
  // Must not outlive this.
  std::shared_ptr<const HostPlacement> functions() {
    return std::make_shared<HostPlacement>(HostPlacement{
        [this](uint64_t bytes, CUstream) { return place(bytes); },
        [this](void* block, const std::vector<CUstream>& streams) { release(block, streams); }});
  }
  size_t held() const { return held_.size(); }
  uint64_t next_address() const { return next_; }

  bool is_empty = false;
  bool throws = false;
  std::function<void()> inside;          // what it does while it is called
  std::vector<CUstream> last_streams{};  // of the block that was released last

 private:
  void* place(uint64_t bytes) {
    if (inside) inside();
    if (throws) throw std::runtime_error("a placement that throws");
    if (is_empty) return nullptr;
    const uint64_t va = next_;
    next_ += (bytes + 511) / 512 * 512;
    held_.insert(va);
    return reinterpret_cast<void*>(va);
  }
  void release(void* block, const std::vector<CUstream>& streams) {
    if (inside) inside();
    EXPECT_EQ(held_.erase(reinterpret_cast<uint64_t>(block)), 1u);
    last_streams = streams;
  }

  uint64_t next_ = uint64_t{5} << 40;
  std::set<uint64_t> held_;
};

}  // namespace spillway::test
