// Objects behind driver handles. A handle is the object's address. Objects are never given back to the heap,
// so that a destroyed handle is told from a live one, and the last destroyed is the first to be handed out
// again: handles are recycled as eagerly as a driver ever would.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace spillway::sim {

// T has `bool alive`.
template <typename T>
class Slots {
 public:
  T* make() {
    T* slot = nullptr;
    if (free_.empty()) {
      slot = &all_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
      *slot = T();
    }
    slot->alive = true;
    return slot;
  }
  void drop(T* slot) {
    slot->alive = false;
    free_.push_back(slot);
  }
  // Its handle is never handed out again.
  void retire(T* slot) { slot->alive = false; }
  template <typename Predicate>
  void drop_if(Predicate predicate) {
    for (T& slot : all_) {
      if (slot.alive && predicate(slot)) drop(&slot);
    }
  }
  void drop_all() {
    drop_if([](const T&) { return true; });
  }
  template <typename Function>
  void for_each(Function function) {
    for (T& slot : all_) {
      if (slot.alive) function(slot);
    }
  }
  // Handles of another kind may have odd addresses.
  static bool is_alive(const T* slot) {
    return slot != nullptr && reinterpret_cast<uintptr_t>(slot) % alignof(T) == 0 && slot->alive;
  }

 private:
  std::deque<T> all_;
  std::vector<T*> free_;
};

}  // namespace spillway::sim
