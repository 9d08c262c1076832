// Locks of heaps that are held across functions.
#pragma once

#include <utility>
#include <vector>

#include "allocator/heap.h"

namespace spillway {

// Holds a heap's lock, and can be handed on together with what was found under it.
class SPW_SCOPED_CAPABILITY HeapLock {
 public:
  HeapLock() = default;
  explicit HeapLock(BiasedMutex& mutex) SPW_ACQUIRE(mutex) : mutex_(&mutex) { mutex.lock(); }
  HeapLock(HeapLock&& other) noexcept : mutex_(std::exchange(other.mutex_, nullptr)) {}
  HeapLock& operator=(HeapLock&& other) noexcept {
    std::swap(mutex_, other.mutex_);
    return *this;
  }
  ~HeapLock() SPW_RELEASE() {
    if (mutex_ != nullptr) mutex_->unlock();
  }

 private:
  BiasedMutex* mutex_ = nullptr;
};

// A range that was taken, with the lock of its heap; or none.
struct TakenRange {
  CachedRange* range = nullptr;
  HeapLock lock;
};

// Holds the locks of several heaps; only under the arena's lock, or two threads could wait for each other.
class AllLocked {
 public:
  explicit AllLocked(const std::vector<Heap*>& heaps) {
    locks_.reserve(heaps.size());
    for (Heap* heap : heaps) locks_.emplace_back(heap->mutex);
  }

 private:
  std::vector<HeapLock> locks_;
};

}  // namespace spillway
