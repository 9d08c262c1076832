#include "abi/preload/block_ids.h"

#include <new>

namespace spillway {

BlockIds& BlockIds::instance() {
  static BlockIds& ids = *new BlockIds;  // hooks are called until the process ends
  return ids;
}

uint64_t BlockIds::of(uint64_t address, int device) noexcept {
  const Lock lock(mutex_);
  try {
    const auto [row, is_new] = rows_.try_emplace(address, Row{next_, device});
    if (is_new) ++next_;
    count_.store(rows_.size(), std::memory_order_relaxed);
    return row->second.id;
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

void BlockIds::erase(uint64_t address) noexcept {
  const Lock lock(mutex_);
  rows_.erase(address);
  count_.store(rows_.size(), std::memory_order_relaxed);
}

void BlockIds::forget_all(int device) noexcept {
  const Lock lock(mutex_);
  std::erase_if(rows_, [&](const auto& entry) { return entry.second.device == device; });
  count_.store(rows_.size(), std::memory_order_relaxed);
}

}  // namespace spillway
