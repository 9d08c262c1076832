#include "allocator/pool_table.h"

#include <utility>

namespace spillway {

Pool* PoolTable::find(PoolId id) const {
  const auto found = pools_.find(id);
  return found == pools_.end() ? nullptr : found->second.get();
}

Pool* PoolTable::claimed(PoolId id) const {
  Pool* pool = find(id);
  return pool != nullptr && pool->is_claimed() ? pool : nullptr;
}

MovablePool* PoolTable::movable(PoolId id) const {
  const Pool* pool = find(id);
  return pool == nullptr ? nullptr : pool->movable();
}

SourcedPool* PoolTable::source(PoolId id) const {
  const Pool* pool = find(id);
  return pool == nullptr ? nullptr : pool->source();
}

SourcedPool* PoolTable::source_of(const PageStore& store) const {
  SourcedPool* found = nullptr;
  for_each_source([&](SourcedPool& each) {
    if (each.store.get() == &store) found = &each;
  });
  return found;
}

Pool& PoolTable::find_or_make(PoolId id) {
  if (Pool* pool = find(id); pool != nullptr) return *pool;
  return *pools_.emplace(id, std::make_unique<Pool>(id)).first->second;
}

bool PoolTable::is_away(PoolId id) const {
  const Pool* pool = find(id);
  return pool != nullptr && pool->is_away();
}

Status PoolTable::check_present(PoolId id) const {
  const Pool* pool = find(id);
  return pool == nullptr ? Status() : pool->check_present();
}

void PoolTable::set_use_of(Heap& heap) const {
  const PoolId id = heap.key.pool;
  const MovablePool* pool = movable(id);
  // mutant: pool-follows
  const bool follows_streams = pool != nullptr && pool->captured == MovablePool::Captured::kNever;
  heap.use.is_away = is_away(id);
  const bool is_moved = heap.use.is_away || (pool != nullptr && pool->is_moving());
  heap.use.may_move = pool != nullptr && !pool->is_released;
  heap.use.is_replayed = id.is_private() && !follows_streams;
  heap.use.keeps_pages = is_moved || (claimed(id) != nullptr && !follows_streams);
}

bool PoolTable::retire_source(Pool& pool) {
  if (pool.source() == nullptr) return false;
  released_sources_.push_back(pool.take_source());
  return true;
}

uint64_t PoolTable::sourced_bytes() const {
  uint64_t bytes = 0;
  for_each_source([&](const SourcedPool& source) { bytes += source.store->reserved_bytes(); });
  return bytes;
}

void PoolTable::forget_unneeded() {
  std::erase_if(pools_, [](const auto& entry) { return entry.second->is_forgotten(); });
}

}  // namespace spillway
