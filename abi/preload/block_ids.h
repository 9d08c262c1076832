// Gives what CU_POINTER_ATTRIBUTE_BUFFER_ID answers for a served block: a number of its own for as long as it
// is in the program's hands, so that whoever remembers blocks by it (communication libraries do) takes no
// other block, and no later one at the same address, for this one. A number is given when it is first asked
// for. Thread-safe; a free costs one load until then.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "stats/lock.h"

namespace spillway {

class BlockIds {
 public:
  static BlockIds& instance();

  // Returns the number of the block that begins at `address`; 0 where host memory has run out.
  uint64_t of(uint64_t address, int device) noexcept;
  // To be called before the block is freed. Unknown addresses are ignored.
  void forget(uint64_t address) noexcept {
    if (count_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      erase(address);
  }
  void forget_all(int device) noexcept;

 private:
  struct Row {
    uint64_t id;
    int device;
  };
  // The driver counts from 1.
  static constexpr uint64_t kFirst = uint64_t{1} << 63;

  void erase(uint64_t address) noexcept;

  std::atomic<size_t> count_{0};
  BlockingMutex mutex_;
  uint64_t next_ SPW_GUARDED_BY(mutex_) = kFirst;
  std::unordered_map<uint64_t, Row> rows_ SPW_GUARDED_BY(mutex_);  // by address
};

}  // namespace spillway
