// From a device address to the block that lives there, for every device of the process: a table of two levels
// over 48-bit addresses with one entry for each 16 KiB. No two live blocks begin inside one entry's range:
// large blocks are longer than that, and a slab lies on its boundaries and takes four entries.
//
// find() takes no lock. An entry is written by the holder of the block's heap lock; a reader who then takes
// that lock sees whether the block still lives. Tables are mapped lazily and stay for the life of the
// process.
#pragma once

#include <atomic>
#include <cstdint>

#include "allocator/units.h"

namespace spillway {

struct Place;

class AddressMap {
 public:
  // The process-wide map: addresses are unique across devices (unified virtual addressing).
  static AddressMap& instance();

  // The place whose block may own `va`: the one entered for its 16 KiB; null when there is none.
  Place* find(uint64_t va) const {
    const uint64_t top = va >> kLeafShift;
    if (top >= kTops) return nullptr;
    const Entry* leaf = leaves_[top].load(std::memory_order_acquire);
    if (leaf == nullptr) return nullptr;
    return leaf[(va >> kUnitShift) & (kLeafEntries - 1)].load(std::memory_order_acquire);
  }

  // The places entered for 16 KiB at or before `va`, nearest first, until `visit` answers true or
  // `most_bytes` of addresses were looked at.
  template <typename Visit>
  void find_before(uint64_t va, uint64_t most_bytes, Visit visit) const {
    const uint64_t least = va > most_bytes ? va - most_bytes : 0;
    uint64_t unit = va >> kUnitShift;
    while ((va >> kLeafShift) < kTops && unit << kUnitShift >= least) {
      const Entry* leaf = leaves_[unit / kLeafEntries].load(std::memory_order_acquire);
      if (leaf != nullptr) {
        Place* place = leaf[unit % kLeafEntries].load(std::memory_order_acquire);
        if (place != nullptr && visit(*place)) return;
      } else {
        unit -= unit % kLeafEntries;  // nothing in the whole leaf
      }
      if (unit-- == 0) return;
    }
  }

  // False when host memory for the table has run out.
  bool set(uint64_t va, uint32_t units, Place* place) {
    for (uint32_t unit = 0; unit < units; ++unit) {
      Entry* entry = entry_at(va + unit * kUnitBytes);
      if (entry == nullptr) return false;
      entry->store(place, std::memory_order_release);
    }
    return true;
  }
  // Clears the entry of `va` if it still names `place`: another heap may have entered a block of its own
  // there.
  void clear_if(uint64_t va, const Place* place) {
    Entry* leaf = leaves_[va >> kLeafShift].load(std::memory_order_acquire);
    if (leaf == nullptr) return;
    auto* expected = const_cast<Place*>(place);
    leaf[(va >> kUnitShift) & (kLeafEntries - 1)].compare_exchange_strong(expected, nullptr,
                                                                          std::memory_order_acq_rel);
  }

 private:
  using Entry = std::atomic<Place*>;
  static constexpr int kUnitShift = 14;
  static constexpr int kLeafShift = 32;  // 4 GiB of addresses for each leaf of 2 MiB
  static constexpr uint64_t kLeafEntries = uint64_t{1} << (kLeafShift - kUnitShift);
  static constexpr uint64_t kTops = uint64_t{1} << (48 - kLeafShift);
  static_assert(kUnitBytes == uint64_t{1} << kUnitShift);

  Entry* entry_at(uint64_t va) {
    const uint64_t top = va >> kLeafShift;
    if (top >= kTops) return nullptr;
    Entry* leaf = leaves_[top].load(std::memory_order_acquire);
    if (leaf == nullptr) leaf = add_leaf(top);
    return leaf == nullptr ? nullptr : leaf + ((va >> kUnitShift) & (kLeafEntries - 1));
  }
  Entry* add_leaf(uint64_t top);

  std::atomic<Entry*> leaves_[kTops] = {};
};

}  // namespace spillway
